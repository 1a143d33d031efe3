// The default source of slabs: copies a host store's slabs to one device.
//
// Each device has a sender of its own, with its own staging ring; the store is shared. A page-locked slab is one copy.
// A pageable one goes through the ring (staged_slabs.h). A resident layer has no host copy: the store asks its loader
// again, the sender stages the layer in one buffer, and enqueue() returns only when the copy has landed. Resident
// layers are asked for in attach(), not while training.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "offload/host_store.h"
#include "offload/slab_source.h"
#include "offload/staged_slabs.h"

namespace slab::offload {

class SlabSender final : public SlabSource {
  public:
    // Makes the staging ring where the store has pageable slabs; throws PinnedLimit when that cannot be locked. The
    // store must outlive the sender. disturb: tests only, see StagedSlabs.
    SlabSender(const HostStore& store, Device& device, std::function<void(Stream&)> disturb = {});

    int layers() const override { return store_.layers(); }
    const SlabLayout& layout(int layer) const override { return store_.layout(layer); }
    bool asynchronous(int layer) const override { return store_.host(layer) != nullptr; }
    void enqueue(int layer, std::byte* slot, Stream& transfer) override;

    size_t ring_bytes() const { return staged_ ? staged_->ring_bytes() : 0; }  // page-locked, for staging

  private:
    void send(const HostMemory& memory, size_t bytes, std::byte* slot, Stream& transfer);
    void send_resident(int layer, std::byte* slot, Stream& transfer);
    StagedSlabs& staging_ring();
    void lock_resident_staging();

    const HostStore& store_;
    Device& device_;
    std::function<void(Stream&)> disturb_;
    int resident_slabs_ = 0;               // layers with a slab and without a host copy
    std::unique_ptr<StagedSlabs> staged_;  // null until something has to be staged
    HostMemory resident_staging_;          // only while resident layers are loaded
    int resident_sent_ = 0;                // layers that went through resident_staging_ since it was made
};

}  // namespace slab::offload
