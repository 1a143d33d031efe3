// Slabs that travel encoded: the interface between the manager and whatever knows the formats.
//
// The source's layouts and bytes are those of encoded slabs then. A layer is decoded into the one work slab at the
// beginning of its visit, on the compute stream.
#pragma once

#include <cstddef>

#include "kernels/runtime/runtime.h"
#include "offload/slab_layout.h"

namespace slab::offload {

struct SlabDecoder {
    virtual ~SlabDecoder() = default;
    // What a block reads: the decoded slab. Empty for a layer whose encoded slab is empty.
    virtual const SlabLayout& layout(int layer) const = 0;
    // Enqueues the decoding of the slab at `encoded` [stored_bytes of the layer] into `work` [total_bytes of its
    // layout], both on the device. All reads of `encoded` are enqueued on `compute` when this returns.
    virtual void enqueue(int layer, const std::byte* encoded, std::byte* work, Stream& compute) = 0;
};

}  // namespace slab::offload
