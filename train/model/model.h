// A GPT on one device: frozen weights through the offload manager, trained tensors resident, forward and backward by
// hand.
//
// Everything is enqueued on the compute stream. The host runs ahead and blocks only where a function says so. Memory is
// what ModelLayout says, allocated in the constructor and never afterwards.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "data/base/stop_token.h"
#include "kernels/runtime/runtime.h"
#include "offload/host_store.h"
#include "offload/layer_offload_manager.h"
#include "offload/slab_sender.h"
#include "train/files/base_weights.h"
#include "train/model/block.h"
#include "train/model/bound_weights.h"
#include "train/model/encode_errors.h"
#include "train/model/model_layout.h"
#include "train/model/model_memory.h"
#include "train/model/slab_codec.h"
#include "train/model/trained_tensors.h"
#include "train/spec/micro_batch.h"

namespace slab::train {

class Model {
  public:
    struct Options {
        bool trace = false;
        // Progress of loading the streamed layers.
        std::function<void(size_t done_bytes, size_t total_bytes)> progress;
        data::StopToken stop;  // asked before each piece of a tensor, on any thread
        // For tests: injects delays into either stream.
        std::function<void(Stream&)> disturb;
        uint64_t seed = 0;  // adapters' start and dropout
        // A model of the same layout, loaded already, whose host slabs this one shares, and whose weights outside the
        // layers and trained tensors it copies. It is used and destroyed by nobody else meanwhile; its slabs live on.
        const Model* leader = nullptr;
        // For benchmarks: every layer is a copy of the first. All layers must be laid out alike.
        bool copies_of_first_layer = false;
    };

    // Allocates and loads everything: frozen layers into host slabs or onto the device, trained tensors from the base
    // (full) or at LoRA's start. `weights` is read here only. Throws OutOfBudget, std::runtime_error from the weights,
    // or data::Interrupted when options.stop says so.
    Model(Device& device, const ModelLayout& layout, BaseWeights& weights, const Options& options);
    ~Model();

    const ModelLayout& layout() const { return layout_; }
    offload::LayerOffloadManager& offload() { return *manager_; }
    TrainedTensors& trained() { return *memory_.trained; }
    Stream& compute() { return compute_; }
    Stream& transfer() { return transfer_; }
    const offload::HostStore& slabs() const { return *slabs_; }
    offload::SlabSender& sender() { return *sender_; }
    // What encoding the frozen layers lost; empty where slabs are the file's own blocks, or not encoded.
    const EncodeErrors& encode_errors() const { return encode_errors_; }
    size_t host_slab_bytes() const { return slabs_->streamed_bytes(); }
    const RankSumBuffers& rank_sums() const { return memory_.rank_sums; }
    float* peer_gradients() const { return memory_.peer_gradients; }  // [ranks, shard_elems]; blocks' work destroys it
    const DeviceBuffer& idle_memory() const;  // the larger of the buffers that hold nothing between steps

    // One optimizer step: begin_step, then forward_backward for each micro-batch, then trained().update(...). Each
    // micro-batch visits layout().training_visits(), announced by the caller.
    void begin_step();
    void zero_train_loss();  // a part of begin_step
    // dloss: 1 / (number of targets in the whole step). Adds to gradients and to train_loss_sum.
    void forward_backward(const MicroBatch& batch, float dloss);
    const double* train_loss_sum() const { return memory_.outer.train_loss_sum; }  // device [1]: sum, not mean

    // Forward only, without the adapters' dropout. Visits layout().evaluation_visits().
    void evaluate(const MicroBatch& batch, bool accumulate);  // eval_loss_sum (= or +=) the batch's loss
    const double* eval_loss_sum() const { return memory_.outer.eval_loss_sum; }
    // Logits of rows [first_row, first_row + rows) of the flattened [B, T]; blocks. [rows, V]
    std::vector<float> logits(const MicroBatch& batch, size_t first_row, size_t rows);

    // Generation, with room for layout().settings.cache_positions tokens. Logits [V] of the token after the cached ones
    // and these; blocks. Visits layout().evaluation_visits() once for each piece of the tokens; a piece is B T rows of
    // the layout. Throws std::logic_error beyond the cache's end.
    std::vector<float> next_logits(const std::vector<int32_t>& tokens);
    void clear_cache() { cached_ = 0; }
    int cached() const { return cached_; }  // tokens

  private:
    enum class Purpose { training, evaluation };
    enum class Pass { forward, backward };

    void forward_layers(BlockContext& ctx);
    void head(const BlockContext& ctx, Purpose purpose, float dloss);
    void backward_layers(BlockContext& ctx);
    void embed(const BlockContext& ctx);
    void final_norm_forward(const BlockContext& ctx);
    void head_logits(size_t first_row, size_t rows);

    void fill_slab(int layer, std::byte* dst, BaseWeights& weights, const Options& options);
    void upload(const MicroBatch& batch);
    void send_tokens(const MicroBatch& batch);
    BlockContext context(const MicroBatch& batch, Purpose purpose);
    void enter_layer(BlockContext& ctx, int layer) const;
    BlockWeights block_weights(int layer, const offload::LayerView& view) const;
    BlockActivations activations(int layer, Pass pass) const;
    real* residual(int layer_boundary) const;
    KeyValueCache layer_cache(int layer) const;

    // Host staging of a micro-batch. A few are in flight, so that the host can run ahead.
    struct Upload {
        PinnedBuffer buffer;
        std::unique_ptr<Event> done;
    };

    ModelLayout layout_;
    uint64_t seed_;
    Stream compute_, transfer_;
    EncodeErrors encode_errors_;
    std::vector<std::byte> first_layer_;  // with copies_of_first_layer, while loading
    std::unique_ptr<SlabCodec> codec_;    // null: slabs are as blocks read them
    std::shared_ptr<const offload::HostStore> slabs_;
    std::unique_ptr<offload::SlabSender> sender_;
    std::unique_ptr<offload::LayerOffloadManager> manager_;
    ModelMemory memory_;
    std::vector<Upload> uploads_;
    size_t next_upload_ = 0;
    OuterWeights outer_{};
    std::vector<BlockAdapters> adapters_;  // [L]
    int cached_ = 0;                       // tokens whose keys and values are in memory_.cache
};

}  // namespace slab::train
