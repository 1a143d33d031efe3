// A micro-batch's way through the model, in the order of events; what serves it comes after.
#include "train/model/model.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/matmul.h"
#include "kernels/runtime/host_memory.h"
#include "train/model/model_loading.h"
#include "train/spec/micro_batch.h"

namespace slab::train {

void Model::begin_step() {
    trained().zero_grads(compute_);
    zero_train_loss();
}

void Model::zero_train_loss() {
    fill_async(memory_.outer.train_loss_sum, 0, sizeof(double), compute_);
}

void Model::forward_backward(const MicroBatch& batch, float dloss) {
    upload(batch);
    BlockContext ctx = context(batch, Purpose::training);
    forward_layers(ctx);
    head(ctx, Purpose::training, dloss);
    sum_losses(memory_.outer.train_loss_sum, memory_.outer.losses, ctx.rows(), true, compute_);
    backward_layers(ctx);
}

void Model::forward_layers(BlockContext& ctx) {
    embed(ctx);
    for (int l = 0; l < layout_.config.L; ++l) {
        const offload::LayerView view = manager_->begin_layer(l);
        enter_layer(ctx, l);
        block_forward(ctx, ForwardRun::first, residual(l + 1), residual(l), block_weights(l, view),
                      activations(l, Pass::forward));
        manager_->end_layer(l);
    }
}

// Final norm, then logits, loss and, in training, the gradient of the residual stream, a chunk of tokens at a time.
void Model::head(const BlockContext& ctx, Purpose purpose, float dloss) {
    const OuterActivations& a = memory_.outer;
    const bool training = purpose == Purpose::training;
    const int V = outer_.head.N, C = outer_.head.K;
    const size_t rows = ctx.rows(), ld_v = static_cast<size_t>(V), ld_c = static_cast<size_t>(C);
    const size_t chunk = static_cast<size_t>(layout_.head_chunk_rows);
    real* const dlogits = memory_.chunk_logits;  // cross_entropy writes them over the logits
    final_norm_forward(ctx);
    for (size_t first = 0; first < rows; first += chunk) {
        const size_t n = std::min(chunk, rows - first);
        head_logits(first, n);
        cross_entropy(a.losses + first, memory_.chunk_logits, a.targets + first, n, V, dloss, training, compute_);
        if (!training) continue;
        real* const norm = a.final_norm + first * ld_c;  // the last product turns it into its own gradient
        if (outer_.head.dw)
            matmul_backward_weight(MatmulBackwardWeight<real>{.dw = outer_.head.dw,
                                                              .dy = dlogits,
                                                              .x = norm,
                                                              .rows = n,
                                                              .N = V,
                                                              .K = C,
                                                              .ld_dy = ld_v,
                                                              .ld_x = ld_c},
                                   compute_);
        matmul_backward_input(
            MatmulBackwardInput<real>{
                .dx = norm, .dy = dlogits, .w = outer_.head.w, .rows = n, .N = V, .K = C, .ld_dx = ld_c, .ld_dy = ld_v},
            compute_);
    }
    if (!training) return;
    fill_async(memory_.dresidual, 0, rows * ld_c * sizeof(real), compute_);
    norm_backward(ctx, memory_.dresidual, a.final_norm, residual(layout_.config.L), a.stats, outer_.final_norm);
}

void Model::backward_layers(BlockContext& ctx) {
    const int low = layout_.lowest_trained_layer;
    for (int l = layout_.config.L - 1; l >= low; --l) {
        const offload::LayerView view = manager_->begin_layer(l);
        enter_layer(ctx, l);
        const BlockWeights weights = block_weights(l, view);
        const BlockActivations acts = activations(l, Pass::backward);
        if (l == 0 && layout_.embedding_recomputed) embed(ctx);
        if (ctx.recompute == Recompute::block)
            block_forward(ctx, ForwardRun::again, nullptr, residual(l), weights, acts);
        block_backward(ctx, memory_.dresidual, residual(l), weights, acts, l > low || layout_.embeddings_trained);
        manager_->end_layer(l);
    }
    if (!layout_.embeddings_trained) return;
    embedding_backward(EmbeddingBackward<real>{.dwte = outer_.dwte,
                                               .dwpe = outer_.dwpe,
                                               .dx = memory_.dresidual,
                                               .tokens = memory_.outer.tokens,
                                               .doc_start = ctx.doc_start,
                                               .rows = ctx.rows(),
                                               .T_len = ctx.T,
                                               .C = layout_.config.C,
                                               .V = layout_.config.V},
                       compute_);
}

void Model::embed(const BlockContext& ctx) {
    embedding_forward(EmbeddingForward<real>{.x = residual(0),
                                             .tokens = memory_.outer.tokens,
                                             .doc_start = ctx.doc_start,
                                             .wte = outer_.wte,
                                             .wpe = outer_.wpe,
                                             .rows = ctx.rows(),
                                             .T_len = ctx.T,
                                             .C = layout_.config.C,
                                             .first_position = ctx.cache ? ctx.cache->filled : 0},
                      compute_);
}

void Model::final_norm_forward(const BlockContext& ctx) {
    norm_forward(ctx, memory_.outer.final_norm, memory_.outer.stats, residual(layout_.config.L), outer_.final_norm);
}

// chunk_logits [rows, V] = the final norm's output, rows first_row and on, times the head.
void Model::head_logits(size_t first_row, size_t rows) {
    const LinearWeights& w = outer_.head;
    const size_t K = static_cast<size_t>(w.K);
    matmul_forward(MatmulForward<real>{.y = memory_.chunk_logits,
                                       .x = memory_.outer.final_norm + first_row * K,
                                       .w = w.w,
                                       .bias = nullptr,
                                       .add = nullptr,
                                       .rows = rows,
                                       .N = w.N,
                                       .K = w.K,
                                       .ld_y = static_cast<size_t>(w.N),
                                       .ld_x = K},
                   compute_);
}

void Model::evaluate(const MicroBatch& batch, bool accumulate) {
    upload(batch);
    BlockContext ctx = context(batch, Purpose::evaluation);
    forward_layers(ctx);
    head(ctx, Purpose::evaluation, 0);
    sum_losses(memory_.outer.eval_loss_sum, memory_.outer.losses, ctx.rows(), accumulate, compute_);
}

std::vector<float> Model::logits(const MicroBatch& batch, size_t first_row, size_t rows) {
    const size_t V = layout_.config.V, chunk = static_cast<size_t>(layout_.head_chunk_rows);
    upload(batch);
    BlockContext ctx = context(batch, Purpose::evaluation);
    forward_layers(ctx);
    final_norm_forward(ctx);
    std::vector<float> all(rows * V);
    std::vector<real> part(std::min(chunk, rows) * V);
    for (size_t first = 0; first < rows; first += chunk) {
        const size_t n = std::min(chunk, rows - first);
        head_logits(first_row + first, n);
        copy_async(part.data(), memory_.chunk_logits, n * V * sizeof(real), CopyKind::device_to_host, compute_);
        compute_.synchronize();
        for (size_t i = 0; i < n * V; ++i) all[first * V + i] = to_float(part[i]);
    }
    return all;
}

std::vector<float> Model::next_logits(const std::vector<int32_t>& tokens) {
    const ModelSettings& s = layout_.settings;
    if (tokens.empty() || tokens.size() > static_cast<size_t>(s.cache_positions - cached_))
        throw std::logic_error("next_logits: " + std::to_string(tokens.size()) + " tokens after " +
                               std::to_string(cached_) + "; the cache holds " + std::to_string(s.cache_positions));
    const size_t most_rows = static_cast<size_t>(s.B) * static_cast<size_t>(s.T);
    size_t rows = 0;  // of the last piece
    for (size_t first = 0; first < tokens.size(); first += rows) {
        rows = std::min(most_rows, tokens.size() - first);
        MicroBatch piece;
        piece.B = 1;
        piece.T = static_cast<int>(rows);
        const auto begin = tokens.begin() + static_cast<std::ptrdiff_t>(first);
        piece.tokens.assign(begin, begin + static_cast<std::ptrdiff_t>(rows));
        send_tokens(piece);
        BlockContext ctx = context(piece, Purpose::evaluation);
        ctx.cache = layer_cache(0);
        forward_layers(ctx);
        cached_ += piece.T;
        if (first + rows == tokens.size()) final_norm_forward(ctx);
    }
    head_logits(rows - 1, 1);
    const size_t V = layout_.config.V;
    std::vector<real> row(V);
    copy_async(row.data(), memory_.chunk_logits, V * sizeof(real), CopyKind::device_to_host, compute_);
    compute_.synchronize();
    std::vector<float> logits(V);
    for (size_t i = 0; i < V; ++i) logits[i] = to_float(row[i]);
    return logits;
}

void Model::upload(const MicroBatch& batch) {
    const size_t rows = static_cast<size_t>(batch.B) * batch.T;
    if (batch.B < 1 || batch.T < 1 || batch.T > layout_.settings.T ||
        rows > static_cast<size_t>(layout_.settings.B) * static_cast<size_t>(layout_.settings.T))
        throw std::logic_error("micro-batch is larger than the layout's");
    if (batch.tokens.size() != rows || batch.targets.size() != rows ||
        (!batch.doc_start.empty() && batch.doc_start.size() != rows))
        throw std::logic_error("micro-batch arrays do not have B x T elements");
    send_tokens(batch);
}

void Model::send_tokens(const MicroBatch& batch) {
    const size_t rows = static_cast<size_t>(batch.B) * batch.T;
    Upload& slot = uploads_[next_upload_];
    next_upload_ = (next_upload_ + 1) % uploads_.size();
    // The copies of several micro-batches ago read this buffer.
    if (slot.done->recorded()) slot.done->synchronize();  // guard: UPLOAD
    const auto send = [&](int32_t* dst, const std::vector<int32_t>& src, size_t place) {
        if (src.empty()) return;
        int32_t* const staged = slot.buffer.as<int32_t>() + place * rows;
        std::copy(src.begin(), src.end(), staged);
        copy_async(dst, staged, rows * sizeof(int32_t), CopyKind::host_to_device, compute_);
    };
    send(memory_.outer.tokens, batch.tokens, 0);
    send(memory_.outer.targets, batch.targets, 1);
    send(memory_.outer.doc_start, batch.doc_start, 2);
    slot.done->record(compute_);
}

BlockContext Model::context(const MicroBatch& batch, Purpose purpose) {
    LoraDropout dropout;
    if (purpose == Purpose::training && layout_.settings.lora) dropout.p = layout_.settings.lora->dropout;
    dropout.T_len = batch.T;
    dropout.key = {.seed = seed_, .first_sample = batch.first_sample};
    return {.config = layout_.config,
            .B = batch.B,
            .T = batch.T,
            .recompute = layout_.settings.recompute,
            .rotary_table = layout_.config.rotary ? memory_.rotary.as<float>() : nullptr,
            .doc_start = batch.doc_start.empty() ? nullptr : memory_.outer.doc_start,
            .dropout = dropout,
            .scratch = memory_.scratch,
            .stream = compute_};
}

void Model::enter_layer(BlockContext& ctx, int layer) const {
    ctx.dropout.key.layer = layer;
    ctx.trained_in_full = !layout_.layer_is_frozen(layer);
    if (ctx.cache) ctx.cache = layer_cache(layer);
}

BlockWeights Model::block_weights(int layer, const offload::LayerView& view) const {
    return bind_block(layout_, layer, view, *memory_.trained, adapters_[static_cast<size_t>(layer)]);
}

// With Recompute::block x1 has no buffer of its own. Forward puts it where backward's running gradient will be.
// Backward puts it over the block's output, which nothing reads any more.
BlockActivations Model::activations(int layer, Pass pass) const {
    BlockActivations acts = memory_.activations[static_cast<size_t>(layout_.activation_set(layer))];
    if (layout_.settings.recompute == Recompute::block)
        acts.x1 = pass == Pass::forward ? memory_.dresidual : residual(layer + 1);
    return acts;
}

real* Model::residual(int layer_boundary) const {
    return reinterpret_cast<real*>(memory_.residual_memory.data() +
                                   layout_.residual_buffer(layer_boundary) * layout_.residual_buffer_bytes);
}

KeyValueCache Model::layer_cache(int layer) const {
    real* const keys = memory_.cache.as<real>() + 2 * static_cast<size_t>(layer) * layout_.cache_layer_elems;
    return {.k = keys, .v = keys + layout_.cache_layer_elems, .filled = cached_};
}

const DeviceBuffer& Model::idle_memory() const {
    return memory_.activation_memory.bytes() > memory_.residual_memory.bytes() ? memory_.activation_memory
                                                                               : memory_.residual_memory;
}

Model::Model(Device& device, const ModelLayout& layout, BaseWeights& weights, const Options& options)
    : layout_(layout),
      seed_(options.seed),
      compute_(device, "compute", matmul_workspace_bytes()),
      transfer_(device, "transfer"),
      memory_(device, layout_) {
    constexpr size_t kUploadsInFlight = 4;
    const size_t rows = static_cast<size_t>(layout_.settings.B) * layout_.settings.T;
    for (size_t i = 0; i < kUploadsInFlight; ++i)
        uploads_.push_back({PinnedBuffer(device, 3 * sizeof(int32_t) * rows, "tokens of a micro-batch"),
                            std::make_unique<Event>(device)});

    // A file that is read into memory that stays is dropped from the system's cache where there is no room for both.
    const bool drop_cached = available_host_bytes() < 2 * layout_.ring.streamed_bytes();
    const auto fill = [this, &weights, options, drop_cached](int layer, std::byte* dst) {
        fill_slab(layer, dst, weights, options);
        if (drop_cached) weights.drop_cached_files();
    };
    if (layout_.is_encoded()) codec_ = std::make_unique<SlabCodec>(layout_);
    slabs_ = options.leader != nullptr
                 ? options.leader->slabs_
                 : std::make_shared<offload::HostStore>(device, layout_.moved_slabs(), layout_.ring, fill,
                                                        offload::HostStoreOptions{.progress = options.progress});
    sender_ = std::make_unique<offload::SlabSender>(*slabs_, device);
    manager_ = std::make_unique<offload::LayerOffloadManager>(
        *sender_, layout_.ring, compute_, transfer_, device,
        offload::OffloadOptions{.trace = options.trace, .disturb = options.disturb}, codec_.get());
    manager_->attach();
    first_layer_ = {};
    if (options.leader != nullptr) {
        copy_outer(layout_, options.leader->memory_, memory_, compute_);
        trained().copy_from(*options.leader->memory_.trained, compute_);
        trained().zero_grads(compute_);
        compute_.synchronize();
    } else {
        load_outer(layout_, weights, memory_, compute_, options.stop);
        load_trained(layout_, weights, trained(), seed_, compute_, options.stop);
    }
    adapters_ = bind_adapters(layout_, trained());
    outer_ = bind_outer(layout_, memory_.outer_weights.data(), trained());
}

void Model::fill_slab(int layer, std::byte* dst, BaseWeights& weights, const Options& options) {
    Device& device = compute_.device();
    const size_t bytes = layout_.moved_slab(layer).total_bytes();
    if (options.copies_of_first_layer && first_layer_.size() == bytes) {
        constexpr size_t kCopiedAtOnce = size_t{4} << 20;
        device.pool().parallel_ranges(bytes, kCopiedAtOnce, [&](size_t begin, size_t end) {
            std::memcpy(dst + begin, first_layer_.data() + begin, end - begin);
        });
        return;
    }
    read_moved_slab(layout_, layer, weights, dst, device.pool(), options.stop, encode_errors_);
    if (options.copies_of_first_layer) first_layer_.assign(dst, dst + bytes);
}

Model::~Model() {
    // Buffers go only when nothing uses them any more; an error is the next synchronize's business, not a destructor's.
    for (Stream* stream : {&compute_, &transfer_}) {
        try {
            stream->synchronize();
        } catch (const std::exception& e) {
            std::fprintf(stderr, "warning: %s\n", e.what());
        }
    }
}

}  // namespace slab::train
