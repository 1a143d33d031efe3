// Where slabs come from: the interface between the manager and whatever holds the master copies.
#pragma once

#include <cstddef>

#include "kernels/runtime/runtime.h"
#include "offload/slab_layout.h"

namespace slab::offload {

// Contract: after enqueue() returns, the order of the transfer stream alone implies arrival, so the manager records
// `ready` at once. Sources that need host work (staging, disk) do it in a host function enqueued on that stream. Never
// called concurrently.
struct SlabSource {
    virtual ~SlabSource() = default;
    virtual int layers() const = 0;
    virtual const SlabLayout& layout(int layer) const = 0;
    // dst: device memory of at least layout(layer).total_bytes() bytes
    virtual void enqueue(int layer, std::byte* dst, Stream& transfer) = 0;
};

}  // namespace slab::offload
