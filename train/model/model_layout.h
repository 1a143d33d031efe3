// Where each tensor of a run lies and how large each buffer is, computed from config and settings before anything is
// allocated.
//
// Invariant: the model allocates these sizes and nothing else. So the plan that --plan prints is the peak that the
// memory account sees, byte by byte.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "kernels/runtime/memory_account.h"
#include "offload/ring_plan.h"
#include "offload/slab_layout.h"
#include "train/files/adapter_config.h"
#include "train/model/block_buffers.h"
#include "train/model/carver.h"
#include "train/model/encoded_slab.h"
#include "train/model/trained_tensors.h"
#include "train/spec/lora.h"
#include "train/spec/model_config.h"
#include "train/spec/slab_format.h"
#include "train/spec/tensor_table.h"
#include "train/spec/trained_table.h"

namespace slab::train {

inline constexpr int kMaxMicroBatchSize = 1 << 20, kMaxSequenceLen = 1 << 24;
// Tensors outside the layers reach the device through at most so much host memory.
inline constexpr size_t kOuterStagingBytes = size_t{256} << 20;

struct ModelSettings {
    int B = 1;     // --micro-batch-size, up to kMaxMicroBatchSize
    int T = 2048;  // --sequence-len, up to kMaxSequenceLen
    Recompute recompute = Recompute::none;
    std::optional<LoraSettings> lora;  // without: trained in full, except what freeze_layers freezes
    int freeze_layers = 0;             // K > 0: embeddings, tied head and the first K layers are frozen
    bool layer_offloading = false;
    int num_prefetch = 1;
    int num_slots = 2;
    std::vector<int> resident_layers;  // frozen layers that stay on the device although offloading is on
    int cache_positions = 0;           // tokens that the key/value cache for sampling holds; 0: there is none
    int ranks = 1;                     // of the whole run
    int exchange_every = 1;            // micro-batches that a rank adds in place before gradients are exchanged
    size_t transport_bytes = 0;        // device memory of the library that carries gradients
    SlabFormat slab_format = SlabFormat::bf16;  // of frozen layers, streamed or resident
    StoredTypes stored_types;                   // of the base's matrices; slab_format as_is keeps them

    // Otherwise one rank adds all gradients in place, which gives the same bits without any of this.
    bool sums_in_order() const { return ranks > 1 || exchange_every > 1; }
};

struct PlanItem {
    MemoryCategory category;
    std::string what;
    size_t bytes;
};

// Activations outside the blocks, of one micro-batch. rows = B * T.
struct OuterActivations {
    real* final_norm;        // [rows, C]; the head's backward turns it into its own gradient
    NormStats stats;         // of the final norm
    int32_t* tokens;         // [B, T]
    int32_t* targets;        // [B, T], kIgnoreTarget where masked
    int32_t* doc_start;      // [B, T]
    float* losses;           // [rows]
    double* train_loss_sum;  // [1] over the micro-batches of a step
    double* eval_loss_sum;   // [1]
};
// head_over_activations: final_norm is not carved; it lies over a block's activations.
OuterActivations carve_outer_activations(Carver& carver, const ModelConfig& config, int B, int T,
                                         bool head_over_activations);

// What one rank needs to add gradients and losses of all ranks in the order of their micro-batches.
struct RankSumBuffers {
    float* sum;          // [shard] of the gradients, over the rounds of a step
    double* own_losses;  // [exchange_every] of this rank's micro-batches in a round
    double* all_losses;  // [ranks, exchange_every]
    double* loss_sum;    // [1] over the rounds of a step
    uint64_t* digest;    // [1] of the weights after the update
};
RankSumBuffers carve_rank_sums(Carver& carver, size_t shard_elems, int ranks, int exchange_every);

// A tensor of the model and its place: in the slab of its group, or among the trained tensors.
struct Placed {
    TensorSpec spec;
    std::optional<size_t> in_slab;     // index in the group's slab; none if trained in full
    std::optional<size_t> in_trained;  // index of its first part in the trained table; the others follow
};

// An adapted module, with the indices of its A and B in the trained table.
struct PlacedAdapter {
    LinearModule module;
    size_t A, B;
};

// The tensors of one layer, or those outside the layers.
struct TensorGroup {
    std::vector<Placed> tensors;          // in the order of the tensor table
    std::vector<PlacedAdapter> adapters;  // in the order of linear_modules()
    offload::SlabLayout slab;             // of the frozen tensors; empty where all are trained

    const Placed* find(Role role) const;  // null: this model has no such tensor
};

struct ModelLayout {
    ModelConfig config;
    ModelSettings settings;

    // Tensors.
    std::vector<TensorGroup> groups;  // [1 + L] the outside, then the layers
    const TensorGroup& outside() const { return groups.front(); }
    const TensorGroup& layer(int l) const { return groups.at(1 + static_cast<size_t>(l)); }
    TrainedTable trained;
    AdapterExtent adapter_extent;
    int lowest_trained_layer;  // backward visits L-1 down to this one; L when only the outside is trained
    bool embeddings_trained;

    // Streaming.
    offload::RingPlan ring;
    std::vector<int> resident_frozen;  // frozen layers on the device
    // How slabs lie in host memory, in slots and resident; empty: as blocks read them. [L]
    std::vector<EncodedSlab> encoded;
    size_t work_slab_bytes = 0;  // the largest decoded layer; 0: nothing is decoded

    // Activations.
    int activation_sets = 1;  // block activation sets held at once
    size_t activation_set_bytes = 0;
    int residual_buffers = 0;  // [rows, C] block inputs and the last output
    size_t residual_buffer_bytes = 0;
    size_t backward_scratch_bytes = 0;
    size_t outer_activation_bytes = 0;  // final norm, tokens, targets, losses
    // With Recompute::block the blocks' activations are idle between forward and backward. The head's work lies over
    // them. The embeddings' output shares a block input's buffer, and backward computes it again at its end.
    bool head_over_activations = false, logits_over_activations = false, embedding_recomputed = false;
    int head_chunk_rows = 0;  // tokens whose logits exist at once
    size_t logits_bytes = 0;
    size_t rotary_bytes = 0;
    int rotary_positions = 0;      // rows of the rotary table
    size_t cache_layer_elems = 0;  // of one layer's keys in the cache, and of its values: [cache_positions, NKV, HD]
    size_t attention_workspace_bytes = 0;

    // Sums over ranks; nothing of it with one rank.
    size_t shard_elems = 0;  // of the gradients: each rank adds so many
    size_t rank_sums_bytes = 0;
    size_t peer_gradients_bytes = 0;  // one shard from each rank, while they are added
    bool peer_gradients_over_activations = false;

    bool layer_is_frozen(int l) const { return layer(l).slab.total_bytes() != 0; }
    bool is_encoded() const { return !encoded.empty(); }
    std::vector<offload::SlabLayout> layer_slabs() const;  // [L] as blocks read them
    std::vector<offload::SlabLayout> moved_slabs() const;  // [L] as they are stored and copied
    const offload::SlabLayout& moved_slab(int l) const {
        return is_encoded() ? encoded.at(static_cast<size_t>(l)).moved : layer(l).slab;
    }
    int residual_buffer(int layer_boundary) const;  // which buffer holds the input of this layer (L: the last output)
    int activation_set(int layer) const;

    std::vector<int> training_visits() const;  // of one micro-batch: 0..L-1, then L-1 down to the lowest trained layer
    std::vector<int> evaluation_visits() const;  // 0..L-1
    size_t cache_bytes() const;                  // keys and values of all layers

    // Host memory through which the outside reaches the device.
    size_t outer_staging_bytes() const { return std::min(outside().slab.total_bytes(), kOuterStagingBytes); }

    std::vector<PlanItem> device_items() const;
    size_t device_bytes() const;  // their sum
    // The host's memory at its peak. Staging and the start's copies of trained tensors end with the loading.
    std::vector<std::pair<std::string, size_t>> host_items() const;
    size_t host_bytes() const;  // their sum
};

// Throws data::UserError when settings contradict each other or the model (K > L, layers out of range, R < P + 1,
// ...).
ModelLayout make_layout(const ModelConfig& config, const ModelSettings& settings);

}  // namespace slab::train
