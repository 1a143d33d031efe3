// Where each frozen tensor of one decoder layer lies in its slab.
//
// A slab is one contiguous piece of memory with all frozen tensors of a layer, so that one layer is one copy. Each
// tensor lies at a 256-byte aligned offset, where vector loads and tensor cores want it. The table is made once from a
// list of names and sizes; host memory, ring slots and views all read the same table.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace slab::offload {

inline constexpr size_t kSlabAlignmentBytes = 256;

struct SlabTensor {
    std::string name;
    size_t offset_bytes;
    size_t bytes;
};

class SlabLayout {
  public:
    // Appends a tensor; returns its index. Throws std::logic_error on a second tensor of the same name,
    // std::overflow_error on sizes that overflow.
    size_t add(std::string name, size_t bytes);

    const std::vector<SlabTensor>& tensors() const { return tensors_; }
    size_t offset_bytes(size_t index) const { return tensors_.at(index).offset_bytes; }
    size_t total_bytes() const { return total_bytes_; }  // a multiple of kSlabAlignmentBytes; 0 when empty

  private:
    std::vector<SlabTensor> tensors_;
    size_t total_bytes_ = 0;
};

// total_bytes() of each layer's slab [L], as a ring plan takes them.
std::vector<size_t> slab_bytes(const std::vector<SlabLayout>& layouts);

}  // namespace slab::offload
