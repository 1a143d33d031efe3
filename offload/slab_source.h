// Where slabs come from: the interface between the manager and whatever holds the master copies.
#pragma once

#include <cstddef>

#include "kernels/runtime/runtime.h"
#include "offload/ring_plan.h"
#include "offload/slab_layout.h"

namespace slab::offload {

// A slab has three sizes. All are equal where slabs are stored as blocks read them and each device fetches its own.
//
//   layout(l).total_bytes()   what a block reads
//   stored_bytes(l)           what lies in a slot
//   copied_bytes(l)           what enqueue() copies over this device's link, as Device::traffic() counts it
//
// Contract: after enqueue() returns, the order of the transfer stream alone implies arrival, so the manager records
// `ready` at once. A source that needs host work (staging, disk) does it in a host function enqueued on that stream.
// Never called concurrently.
struct SlabSource {
    virtual ~SlabSource() = default;
    virtual int layers() const = 0;
    virtual const SlabLayout& layout(int layer) const = 0;
    virtual size_t stored_bytes(int layer) const { return layout(layer).total_bytes(); }
    virtual size_t copied_bytes(int layer) const { return layout(layer).total_bytes(); }
    // False: enqueue() blocks the host until the copy has landed. Such a layer can be resident, but not streamed.
    virtual bool asynchronous(int /*layer*/) const { return true; }
    // slot: device memory of at least stored_bytes(layer) bytes.
    virtual void enqueue(int layer, std::byte* slot, Stream& transfer) = 0;
};

// Throws std::invalid_argument when the plan is of other layers or sizes than the source, or streams a layer that the
// source cannot copy without blocking the host.
void check_plan(const RingPlan& plan, const SlabSource& source);

}  // namespace slab::offload
