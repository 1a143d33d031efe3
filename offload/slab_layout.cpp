// Offsets of a slab's tensors: each begins at the next multiple of the alignment after the one before it.
//
// The total is rounded up as well, so that slots laid out one after another stay aligned. Sizes come from files and are
// therefore not trusted: a sum that overflows is an error, never a small number.
#include "offload/slab_layout.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>

namespace slab::offload {

size_t SlabLayout::add(std::string name, size_t bytes) {
    const bool taken =
        std::any_of(tensors_.begin(), tensors_.end(), [&](const SlabTensor& tensor) { return tensor.name == name; });
    if (taken) throw std::logic_error("slab layout: tensor " + name + " is added twice");
    const size_t room_bytes = SIZE_MAX - (kSlabAlignmentBytes - 1) - total_bytes_;
    if (total_bytes_ > SIZE_MAX - (kSlabAlignmentBytes - 1) || bytes > room_bytes)
        throw std::overflow_error("slab layout: tensor " + name + " of " + std::to_string(bytes) +
                                  " bytes after offset " + std::to_string(total_bytes_) +
                                  " does not fit in an address space");
    tensors_.push_back({std::move(name), total_bytes_, bytes});
    total_bytes_ += (bytes + kSlabAlignmentBytes - 1) / kSlabAlignmentBytes * kSlabAlignmentBytes;
    return tensors_.size() - 1;
}

std::vector<size_t> slab_bytes(const std::vector<SlabLayout>& layouts) {
    std::vector<size_t> bytes;
    for (const SlabLayout& layout : layouts) bytes.push_back(layout.total_bytes());
    return bytes;
}

}  // namespace slab::offload
