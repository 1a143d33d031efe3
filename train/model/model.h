// A GPT on one device: frozen weights through the offload manager, trained tensors resident, forward and backward by
// hand.
//
// Everything is enqueued on the compute stream; the host runs ahead and blocks only where a function says so. Memory is
// what ModelLayout says, allocated in the constructor and never afterwards.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "data/base/stop_token.h"
#include "kernels/runtime/runtime.h"
#include "offload/host_slabs.h"
#include "offload/layer_offload_manager.h"
#include "train/files/base_weights.h"
#include "train/model/block.h"
#include "train/model/model_layout.h"
#include "train/model/trained_tensors.h"
#include "train/spec/micro_batch.h"

namespace slab::train {

class Model {
  public:
    struct Options {
        bool trace = false;
        std::function<void(size_t done_bytes, size_t total_bytes)> progress;  // of loading streamed layers
        data::StopToken stop;                  // asked before each piece of a tensor, on any thread
        std::function<void(Stream&)> disturb;  // tests: delays injected into either stream
        uint64_t seed = 0;                     // adapters' start and dropout
    };

    // Allocates and loads everything: frozen layers into host slabs or onto the device, trained tensors from the base
    // (full) or at LoRA's start. `weights` is read here only: resident layers stay, and streamed ones have their
    // slabs. Throws OutOfBudget, std::runtime_error from the weights, or data::Interrupted when options.stop says so.
    Model(Device& device, const ModelLayout& layout, BaseWeights& weights, const Options& options);
    ~Model();

    const ModelLayout& layout() const { return layout_; }
    offload::LayerOffloadManager& offload() { return *manager_; }
    TrainedTensors& trained() { return *trained_; }
    Stream& compute() { return compute_; }
    // What copies to the device reach alone, in GB/s: one slab as training sends it, staged or not, into activation
    // memory, timed; as much of it as fits there. Blocks; between steps only.
    double measure_link_gbps();
    size_t host_slab_bytes() const { return slabs_->streamed_bytes(); }
    const offload::HostSlabs& slabs() const { return *slabs_; }

    // One optimizer step: begin_step, then forward_backward for each micro-batch, then trained().update(...). The
    // layers visited by each micro-batch are layout().training_visits(), announced by the caller.
    void begin_step();
    // dloss: 1 / (number of targets in the whole step). Adds to gradients and to train_loss_sum.
    void forward_backward(const MicroBatch& batch, float dloss);
    const double* train_loss_sum() const { return outer_.train_loss_sum; }  // device [1]: sum, not mean

    // Forward only, without adapters' dropout; visits layout().evaluation_visits().
    void evaluate(const MicroBatch& batch, bool accumulate);  // eval_loss_sum (= or +=) the batch's loss
    const double* eval_loss_sum() const { return outer_.eval_loss_sum; }
    // Logits of rows [first_row, first_row + rows) of the flattened [B, T]; blocks. [rows, V]
    std::vector<float> logits(const MicroBatch& batch, size_t first_row, size_t rows);

    // Generating, with layout().settings.cache_positions of room: logits [V] of what follows the tokens cached so far
    // and these. Visits layout().evaluation_visits() once for every layout rows (B T) of the tokens; blocks. Throws
    // std::logic_error beyond the cache's end.
    std::vector<float> next_logits(const std::vector<int32_t>& tokens);
    void clear_cache() { cached_ = 0; }
    int cached() const { return cached_; }  // tokens

  private:
    void load_outer(BaseWeights& weights, data::StopToken stop);
    void load_trained(BaseWeights& weights, data::StopToken stop);
    void bind_adapters();
    void upload(const MicroBatch& batch);
    void send_tokens(const MicroBatch& batch);
    BlockContext context(const MicroBatch& batch, bool training);
    BlockWeights block_weights(int layer, const offload::LayerView& view) const;
    BlockGrads block_grads(int layer) const;
    const real* outer_weight(Role role) const;
    float* outer_grad(Role role) const;
    real* residual(int layer_boundary) const;
    enum class Pass { forward, backward };
    BlockActivations activations(int layer, Pass pass) const;
    void embed(const BlockContext& ctx);
    void forward_layers(BlockContext& ctx);
    void forward_batch(const MicroBatch& batch, bool training);
    KeyValueCache layer_cache(int layer) const;
    void final_norm_forward(size_t rows);
    void head_logits(size_t first_row, size_t rows);
    void head(size_t rows, float dloss, bool backward);
    void backward_layers(const MicroBatch& batch);

    // Host staging of micro-batches: a few in flight, so the host can run ahead.
    struct Upload {
        PinnedBuffer buffer;
        std::unique_ptr<Event> done;
    };

    Device& device_;
    ModelLayout layout_;
    uint64_t seed_;
    Stream compute_, transfer_;
    std::unique_ptr<offload::HostSlabs> slabs_;
    std::unique_ptr<offload::LayerOffloadManager> manager_;
    std::unique_ptr<TrainedTensors> trained_;
    DeviceBuffer outer_weights_, rotary_, activation_memory_, residual_memory_, backward_memory_, outer_memory_,
        logits_, attention_workspace_, cache_;
    std::vector<BlockActivations> activations_;
    std::vector<BlockAdapters> adapters_;  // per layer
    BackwardScratch scratch_{};
    real* dresidual_ = nullptr;  // [rows, C] gradient of the residual stream
    OuterActivations outer_{};
    real* chunk_logits_ = nullptr;  // [head_chunk_rows, V]
    int cached_ = 0;                // tokens whose keys and values are in cache_
    std::vector<Upload> uploads_;
    size_t next_upload_ = 0;
};

}  // namespace slab::train
