// A model's device memory but for slabs: allocated once, as the layout sized it, and cut into activations and scratch.
//
// Every size comes from the layout, so what was planned is what is taken. Nothing is allocated afterwards.
#pragma once

#include <memory>
#include <vector>

#include "kernels/runtime/runtime.h"
#include "train/model/block_buffers.h"
#include "train/model/model_layout.h"
#include "train/model/trained_tensors.h"

namespace slab::train {

struct ModelMemory {
    // Throws OutOfBudget, and std::runtime_error when a limit on address space does not leave enough.
    ModelMemory(Device& device, const ModelLayout& layout);

    DeviceBuffer outer_weights, rotary;
    std::unique_ptr<TrainedTensors> trained;
    DeviceBuffer activation_memory, residual_memory, backward_memory, outer_memory, logits_memory, attention_workspace,
        cache, rank_sums_memory, peer_gradients_memory;

    // Pieces of these.
    std::vector<BlockActivations> activations;  // [activation_sets]
    BackwardScratch scratch{};
    real* dresidual = nullptr;  // [rows, C] gradient of the residual stream
    OuterActivations outer{};
    real* chunk_logits = nullptr;  // [head_chunk_rows, V]
    RankSumBuffers rank_sums{};
    float* peer_gradients = nullptr;  // [ranks, shard_elems]; lies over activations where they are large enough
};

}  // namespace slab::train
