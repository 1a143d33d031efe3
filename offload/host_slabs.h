// The default source of slabs: page-locked host memory, the only master copy of the streamed layers.
//
// The loader writes each layer straight into its slab, so a model never has to fit the device, nor the host twice; its
// threads touch the pages, near the GPU, and the slab is page-locked when it is full. Where the system refuses to lock
// more, the rest stays pageable and is staged (staged_slabs.h), which is said once. Slabs are exactly as long as their
// layout and never change after load(). A layer that is kept resident has no host copy: when it is asked for, the
// loader is asked again, through one buffer, and enqueue() returns only when the copy has landed. That happens in
// attach(), not while training.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/runtime/host_memory.h"
#include "offload/slab_source.h"
#include "offload/staged_slabs.h"

namespace slab::offload {

struct HostSlabsOptions {
    bool page_lock = true;                          // false: every slab is pageable and staged
    size_t staging_chunk_bytes = size_t{32} << 20;  // three of these are locked where slabs are staged
    // Told once, when the system refuses to lock a slab; empty: a warning on stderr.
    std::function<void(const std::string&)> warn = {};
    std::function<void(Stream&)> disturb = {};  // tests only: see StagedSlabs
};

class HostSlabs final : public SlabSource {
  public:
    // Writes every tensor of the layer's layout at its offset. Called for one layer at a time; may throw.
    using Fill = std::function<void(int layer, std::byte* dst)>;
    using Progress = std::function<void(size_t done_bytes, size_t total_bytes)>;

    // resident_layers: those without a host copy. Allocates nothing, so that a plan can be made from it.
    // Throws std::runtime_error on a layer that does not exist.
    HostSlabs(Device& device, std::vector<SlabLayout> layouts, const std::vector<int>& resident_layers,
              HostSlabsOptions options = {});

    // Allocates, fills and locks the slabs, in ascending order, telling progress after each; once. Keeps `fill` for the
    // resident layers. When it throws, nothing is kept.
    void load(Fill fill, const Progress& progress = {});

    int layers() const override { return static_cast<int>(layouts_.size()); }
    const SlabLayout& layout(int layer) const override { return layouts_.at(static_cast<size_t>(layer)); }
    void enqueue(int layer, std::byte* dst, Stream& transfer) override;

    size_t streamed_bytes() const;  // host memory of the slabs, exactly; known before load()
    size_t locked_bytes() const;    // of these, the page-locked ones; the rest is staged
    size_t ring_bytes() const;      // page-locked besides, for staging; 0 when nothing is staged
    size_t staging_bytes() const;   // the largest resident layer: held besides while resident layers are loaded
    // "32 slabs, 12.07 GiB page-locked" or "... 5.00 GiB page-locked, 7.07 GiB staged through 96.0 MiB".
    std::string report() const;

    // The master copy, layout(layer).total_bytes() long; null for a layer that has none.
    const std::byte* host(int layer) const { return slabs_.at(static_cast<size_t>(layer)).data(); }
    // Changes when any byte of the slab does. Only for layers with a host copy.
    uint64_t checksum(int layer) const;

  private:
    void fill(int layer, std::byte* dst) const;
    void lock_or_stage(HostMemory& memory, const std::string& what);
    void stage_from_now_on();
    void send(const HostMemory& memory, size_t bytes, std::byte* dst, Stream& transfer);
    void send_resident(int layer, std::byte* dst, Stream& transfer);  // after a throw as before the first layer
    void pass_resident(int layer, std::byte* dst, Stream& transfer);

    Device& device_;
    std::vector<SlabLayout> layouts_;  // [L]
    std::vector<bool> resident_;       // [L]
    HostSlabsOptions options_;
    std::vector<HostMemory> slabs_;  // [L] empty for resident layers and for layers without a slab
    Fill fill_;
    std::unique_ptr<StagedSlabs> staged_;  // null until something has to be staged
    HostMemory passage_;                   // for resident layers, while they are loaded
    int passed_ = 0;                       // resident layers that took the present passage
    bool loaded_ = false;
};

}  // namespace slab::offload
