// Bringing weights to where the layout has them: into slabs, onto the device, and into the trained tensors.
//
// `stop` is asked before each piece of a tensor, on any thread. data::Interrupted ends the loading.
#pragma once

#include <cstddef>
#include <cstdint>

#include "data/base/stop_token.h"
#include "kernels/runtime/runtime.h"
#include "train/files/base_weights.h"
#include "train/model/encode_errors.h"
#include "train/model/model_layout.h"
#include "train/model/model_memory.h"
#include "train/model/trained_tensors.h"

namespace slab::train {

// The group's frozen tensors into slab memory on the host, group.slab.total_bytes() long.
void read_slab(const TensorGroup& group, BaseWeights& weights, std::byte* dst, ThreadPool& pool, data::StopToken stop);

// The frozen tensors of layer `layer` as slabs are stored and copied, into host memory
// [layout.moved_slab(layer).total_bytes()]. `errors` gets what encoding them lost.
void read_moved_slab(const ModelLayout& layout, int layer, BaseWeights& weights, std::byte* dst, ThreadPool& pool,
                     data::StopToken stop, EncodeErrors& errors);

// The frozen tensors outside the layers, through layout.outer_staging_bytes() of host memory, and the rotary table.
// Blocks.
void load_outer(const ModelLayout& layout, BaseWeights& weights, ModelMemory& memory, Stream& stream,
                data::StopToken stop);

// The same from another device of this process, where they are already. Blocks.
void copy_outer(const ModelLayout& layout, const ModelMemory& from, ModelMemory& memory, Stream& stream);

// Trained tensors as they are before the first step: adapters at LoRA's start, or weights of the base. Blocks.
void load_trained(const ModelLayout& layout, BaseWeights& weights, TrainedTensors& trained, uint64_t seed,
                  Stream& stream, data::StopToken stop);

}  // namespace slab::train
