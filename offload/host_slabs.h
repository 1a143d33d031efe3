// The default source of slabs: page-locked host memory, the only master copy of the streamed layers.
//
// The loader writes each layer straight into its slab, so a model never has to fit the device, nor the host twice.
// Slabs are exactly as long as their layout and never change after load(). A layer that is kept resident has no host
// copy: when it is asked for, the loader is asked again, through one staging buffer, and enqueue() returns only when
// the copy has landed. That happens in attach(), not while training.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/runtime.h"
#include "offload/slab_source.h"

namespace slab::offload {

class HostSlabs final : public SlabSource {
  public:
    // Writes every tensor of the layer's layout at its offset. Called for one layer at a time; may throw.
    using Fill = std::function<void(int layer, std::byte* dst)>;
    using Progress = std::function<void(size_t done_bytes, size_t total_bytes)>;

    // resident_layers: those without a host copy. Allocates nothing, so that a plan can be made from it.
    // Throws std::runtime_error on a layer that does not exist.
    HostSlabs(Device& device, std::vector<SlabLayout> layouts, const std::vector<int>& resident_layers);

    // Allocates and fills the slabs, in ascending order, telling progress after each; once. Keeps `fill` for the
    // resident layers. When it throws, nothing is kept.
    void load(Fill fill, const Progress& progress = {});

    int layers() const override { return static_cast<int>(layouts_.size()); }
    const SlabLayout& layout(int layer) const override { return layouts_.at(static_cast<size_t>(layer)); }
    void enqueue(int layer, std::byte* dst, Stream& transfer) override;

    size_t streamed_bytes() const;  // page-locked host memory of the slabs, exactly; known before load()
    size_t staging_bytes() const;   // the largest resident layer: held besides while resident layers are loaded

    // The master copy, layout(layer).total_bytes() long; null for a layer that has none.
    const std::byte* host(int layer) const { return slabs_.at(static_cast<size_t>(layer)).data(); }
    // Changes when any byte of the slab does. Only for layers with a host copy.
    uint64_t checksum(int layer) const;

  private:
    void fill(int layer, std::byte* dst) const;

    Device& device_;
    std::vector<SlabLayout> layouts_;  // [L]
    std::vector<bool> resident_;       // [L]
    std::vector<PinnedBuffer> slabs_;  // [L] empty for resident layers and for layers without a slab
    Fill fill_;
    PinnedBuffer staging_;
    int staged_ = 0;  // resident layers handed out through the present staging buffer
    bool loaded_ = false;
};

}  // namespace slab::offload
