// Slabs whose slot is filled with 0xFF, NaN as floats, before each copy: a visit that reads too early sees that.
#pragma once

#include <cstddef>
#include <stdexcept>

#include "kernels/runtime/runtime.h"
#include "offload/host_slabs.h"

namespace slab::offload {

class PoisoningSource final : public SlabSource {
  public:
    explicit PoisoningSource(SlabSource& inner) : inner_(inner) {}
    int layers() const override { return inner_.layers(); }
    const SlabLayout& layout(int layer) const override { return inner_.layout(layer); }
    void enqueue(int layer, std::byte* dst, Stream& transfer) override {
        ++enqueued;
        fill_async(dst, 0xFF, layout(layer).total_bytes(), transfer);
        if (layer == failing_layer) throw std::runtime_error("the source fails");
        inner_.enqueue(layer, dst, transfer);
    }
    int failing_layer = -1;
    int enqueued = 0;

  private:
    SlabSource& inner_;
};

}  // namespace slab::offload
