// Cuts one buffer into pieces, or counts what that would take.
#pragma once

#include <cstddef>

namespace slab::train {

// Hands out consecutive 256-byte aligned pieces. With a null base it only counts, so sizes in the plan and pointers at
// run time come from the same lines of code.
class Carver {
  public:
    explicit Carver(std::byte* base = nullptr) : base_(base) {}
    template <class T>
    T* take(size_t elems) {
        std::byte* p = base_ ? base_ + used_bytes_ : nullptr;
        used_bytes_ += (elems * sizeof(T) + 255) / 256 * 256;
        return reinterpret_cast<T*>(p);
    }
    size_t used_bytes() const { return used_bytes_; }

  private:
    std::byte* base_;
    size_t used_bytes_ = 0;
};

}  // namespace slab::train
