// One slot of the ring: room for a slab on the device, and the two events that guard it.
//
//   transfer:  wait free   copy slab -> slot       record ready     fill()
//   compute:   wait ready                                           await()
//   compute:               the visit's kernels     record free      let_go()
//
// `ready` means that the copy has landed, `free` that the last reader is done, backward included. A wait takes the
// event's latest record at the moment it is enqueued. A slot changes layers only between visits, so that record belongs
// to the slab, or to the reader, in question. These two waits stand between streaming and silently wrong numbers.
#pragma once

#include <cstddef>

#include "kernels/runtime/runtime.h"
#include "offload/slab_source.h"

namespace slab::offload {

class RingSlot {
  public:
    // memory: device memory that holds any slab the slot is filled with; it must outlive the slot.
    RingSlot(Device& device, std::byte* memory) : memory_(memory), ready_(device), free_(device) {}

    std::byte* memory() const { return memory_; }

    // Enqueues the layer's slab into the slot, after its last reader. Throws what the source throws; the slot then
    // holds nothing.
    void fill(SlabSource& source, int layer, Stream& transfer);
    // Work enqueued on `compute` from here on starts after the slab has landed.
    void await(Stream& compute);
    // The slot may be overwritten once the work enqueued on `compute` so far is done.
    void let_go(Stream& compute);

  private:
    std::byte* memory_;
    Event ready_;  // recorded on the transfer stream
    Event free_;   // recorded on the compute stream
};

}  // namespace slab::offload
