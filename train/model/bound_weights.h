// From places in the layout to pointers: weights in a slab or among the trained tensors, with gradients and adapters.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "kernels/lora.h"
#include "offload/layer_offload_manager.h"
#include "train/model/block_weights.h"
#include "train/model/model_layout.h"
#include "train/model/trained_tensors.h"

namespace slab::train {

using BlockAdapters = std::array<LoraGroup<real>, kLinears>;  // no modules: no adapter on that linear layer

// What lies outside the layers. Gradients are +=, null where frozen.
struct OuterWeights {
    const real* wte;  // [V, C]
    const real* wpe;  // [positions, C], null without learned positions
    float* dwte;      // [V, C] +=
    float* dwpe;      // [positions, C] +=
    NormWeights final_norm;
    LinearWeights head;  // [V, C]; wte when tied
};

std::vector<BlockAdapters> bind_adapters(const ModelLayout& layout, const TrainedTensors& trained);  // [L]
// slab: the group's frozen tensors on the device, null when it has none.
OuterWeights bind_outer(const ModelLayout& layout, const std::byte* slab, const TrainedTensors& trained);
// The result points into `adapters`.
BlockWeights bind_block(const ModelLayout& layout, int layer, const offload::LayerView& view,
                        const TrainedTensors& trained, const BlockAdapters& adapters);

}  // namespace slab::train
