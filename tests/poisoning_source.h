// Slabs whose slot is filled with 0xFF, NaN as floats, before each copy: a visit that reads too early sees that.
#pragma once

#include <cstddef>
#include <stdexcept>

#include "kernels/runtime/runtime.h"
#include "offload/slab_source.h"

namespace slab::offload {

class PoisoningSource final : public SlabSource {
  public:
    explicit PoisoningSource(SlabSource& inner) : inner_(inner) {}
    int layers() const override { return inner_.layers(); }
    const SlabLayout& layout(int layer) const override { return inner_.layout(layer); }
    size_t stored_bytes(int layer) const override { return inner_.stored_bytes(layer); }
    size_t copied_bytes(int layer) const override { return inner_.copied_bytes(layer); }
    bool asynchronous(int layer) const override { return inner_.asynchronous(layer); }
    void enqueue(int layer, std::byte* slot, Stream& transfer) override {
        ++enqueued;
        fill_async(slot, 0xFF, stored_bytes(layer), transfer);
        if (layer == failing_layer) throw std::runtime_error("the source fails");
        inner_.enqueue(layer, slot, transfer);
    }
    int failing_layer = -1;
    int enqueued = 0;

  private:
    SlabSource& inner_;
};

}  // namespace slab::offload
