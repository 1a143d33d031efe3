// Page-locked slabs and the way resident layers take past them. Gaps between tensors are zeroed, so that a slab's bytes
// are a function of the model alone.
#include "offload/host_slabs.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace slab::offload {

HostSlabs::HostSlabs(Device& device, std::vector<SlabLayout> layouts, const std::vector<int>& resident_layers)
    : device_(device), layouts_(std::move(layouts)), resident_(layouts_.size(), false), slabs_(layouts_.size()) {
    for (int layer : resident_layers) {
        if (layer < 0 || layer >= layers())
            throw std::runtime_error("resident layer " + std::to_string(layer) +
                                     " given, but the model has layers 0 to " + std::to_string(layers() - 1));
        resident_[static_cast<size_t>(layer)] = true;
    }
}

void HostSlabs::load(Fill fill, const Progress& progress) {
    if (loaded_) throw std::logic_error("host slabs: loaded twice; they do not change");
    fill_ = std::move(fill);
    std::vector<PinnedBuffer> slabs(layouts_.size());
    size_t done_bytes = 0;
    for (int layer = 0; layer < layers(); ++layer) {
        const size_t l = static_cast<size_t>(layer), bytes = layouts_[l].total_bytes();
        if (resident_[l] || bytes == 0) continue;
        slabs[l] = PinnedBuffer(device_, bytes, "slab of layer " + std::to_string(layer));
        this->fill(layer, slabs[l].data());
        done_bytes += bytes;
        if (progress) progress(done_bytes, streamed_bytes());
    }
    slabs_ = std::move(slabs);
    loaded_ = true;
}

void HostSlabs::fill(int layer, std::byte* dst) const {
    size_t end_bytes = 0;
    const auto zero_up_to = [&](size_t offset_bytes) { std::memset(dst + end_bytes, 0, offset_bytes - end_bytes); };
    for (const SlabTensor& tensor : layout(layer).tensors()) {
        zero_up_to(tensor.offset_bytes);
        end_bytes = tensor.offset_bytes + tensor.bytes;
    }
    zero_up_to(layout(layer).total_bytes());
    fill_(layer, dst);
}

void HostSlabs::enqueue(int layer, std::byte* dst, Stream& transfer) {
    if (!loaded_) throw std::logic_error("host slabs: asked for layer " + std::to_string(layer) + " before load()");
    const size_t bytes = layout(layer).total_bytes();
    if (!resident_[static_cast<size_t>(layer)]) {
        copy_async(dst, host(layer), bytes, CopyKind::host_to_device, transfer);
        return;
    }
    if (staging_.bytes() < bytes) {
        staging_ = {};  // before its successor is allocated
        staging_ = PinnedBuffer(device_, staging_bytes(), "staging of resident layers");
    }
    fill(layer, staging_.data());
    copy_async(dst, staging_.data(), bytes, CopyKind::host_to_device, transfer);
    transfer.synchronize();  // the next layer is filled into the same buffer
    // Every resident layer is asked for once when streaming is attached; after the last one the buffer is not needed.
    if (++staged_ < std::count(resident_.begin(), resident_.end(), true)) return;
    staging_ = {};
    staged_ = 0;
}

size_t HostSlabs::streamed_bytes() const {
    size_t bytes = 0;
    for (size_t l = 0; l < layouts_.size(); ++l)
        if (!resident_[l]) bytes += layouts_[l].total_bytes();
    return bytes;
}

size_t HostSlabs::staging_bytes() const {
    size_t bytes = 0;
    for (size_t l = 0; l < layouts_.size(); ++l)
        if (resident_[l]) bytes = std::max(bytes, layouts_[l].total_bytes());
    return bytes;
}

uint64_t HostSlabs::checksum(int layer) const {
    const std::byte* bytes = host(layer);
    if (bytes == nullptr) throw std::logic_error("host slabs: layer " + std::to_string(layer) + " has no host copy");
    uint64_t sum = 0;
    for (size_t i = 0; i < layout(layer).total_bytes(); i += sizeof(uint64_t)) {
        uint64_t word;
        std::memcpy(&word, bytes + i, sizeof word);
        sum = std::rotl(sum ^ word, 23) * 0x9e3779b97f4a7c15u;  // odd, so each step keeps differences
    }
    return sum;
}

}  // namespace slab::offload
