// The only master copy of the streamed layers: page-locked host memory, filled once and immutable from then on.
//
// The loader writes each layer straight into its slab. A model thus never has to fit the device, nor the host twice.
// The loader's threads touch the pages, near the GPU; a full slab is page-locked, for all devices of the process. Where
// the system refuses to lock more, the rest stays pageable and each sender stages it (slab_sender.h); one warning says
// so. Slabs are exactly as long as their layout. Any number of senders may read one store, each for its own device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/runtime/host_memory.h"
#include "offload/ring_plan.h"
#include "offload/slab_layout.h"

namespace slab::offload {

struct HostStoreOptions {
    bool page_lock = true;                          // false: every slab is pageable and staged
    size_t staging_chunk_bytes = size_t{32} << 20;  // three of these are locked by each sender that stages slabs
    // Called after each slab.
    std::function<void(size_t done_bytes, size_t total_bytes)> progress = {};
    // Called once, when the system refuses to lock a slab; empty: a warning on stderr.
    std::function<void(const std::string&)> warn = {};
};

class HostStore {
  public:
    // Writes every tensor of the layer's layout at its offset. Called for one layer at a time; may throw.
    using Fill = std::function<void(int layer, std::byte* dst)>;

    // Allocates, fills and locks the slabs of the layers that the plan streams, in ascending order. `device` counts the
    // locked bytes and must outlive the store. Keeps `fill`, which read() calls for the other layers. What it throws,
    // fill's errors included, leaves nothing behind. Throws std::invalid_argument when layouts and plan do not fit.
    HostStore(Device& device, std::vector<SlabLayout> layouts, const RingPlan& plan, Fill fill,
              HostStoreOptions options = {});

    int layers() const { return static_cast<int>(layouts_.size()); }
    const SlabLayout& layout(int layer) const { return layouts_.at(layer); }
    // The master copy, layout(layer).total_bytes() long; empty for a layer that does not stream.
    const HostMemory& slab(int layer) const { return slabs_.at(layer); }
    const std::byte* host(int layer) const { return slab(layer).data(); }
    // Asks the loader for a layer's bytes, gaps between tensors zeroed. dst: host memory [layout(layer).total_bytes()].
    // Not concurrently.
    void read(int layer, std::byte* dst) const;

    size_t streamed_bytes() const;           // host memory of the slabs, exactly
    size_t locked_bytes() const;             // of these, the page-locked ones; senders stage the others
    size_t resident_staging_bytes() const;   // the largest resident layer: each sender holds it while loading those
    bool staged() const { return staged_; }  // the system refused to lock more, or was not to be asked
    size_t staging_chunk_bytes() const { return options_.staging_chunk_bytes; }
    // "32 slabs, 12.07 GiB page-locked" or "... 5.00 GiB page-locked, 7.07 GiB staged through 96.0 MiB".
    std::string report() const;

    // Changes when any byte of the slab does. Only for layers with a host copy.
    uint64_t checksum(int layer) const;

  private:
    void load();
    void lock(HostMemory& slab, const std::string& what);
    void stage_the_rest(const std::string& why);
    void leave_room_for_staging();

    Device& device_;
    std::vector<SlabLayout> layouts_;  // [L]
    std::vector<bool> streams_;        // [L]
    Fill fill_;
    HostStoreOptions options_;
    std::vector<HostMemory> slabs_;  // [L] empty for layers that do not stream
    bool staged_ = false;
};

}  // namespace slab::offload
