// The model's loops over layers and the head in token chunks. How it comes to be is in model_construction.cpp. See
// model.h.
#include "train/model/model.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/matmul.h"
#include "train/spec/micro_batch.h"

namespace slab::train {

const real* Model::outer_weight(Role role) const {
    if (const int index = layout_.outer_slab_index[index_of(role)]; index >= 0)
        return reinterpret_cast<const real*>(outer_weights_.data() + layout_.outer_slab.offset_bytes(index));
    if (const int index = layout_.outer_full_index[index_of(role)]; index >= 0) return trained_->param(index);
    return nullptr;
}

float* Model::outer_grad(Role role) const {
    const int index = layout_.outer_full_index[index_of(role)];
    return index >= 0 ? trained_->grad(index) : nullptr;
}

BlockWeights Model::block_weights(int layer, const offload::LayerView& view) const {
    BlockWeights w{};
    for (int role = 0; role < kRoles; ++role) {
        if (const int index = layout_.slab_index[layer][role]; index >= 0)
            w[role] = reinterpret_cast<const real*>(view.base + view.layout->offset_bytes(index));
        else if (const int full = layout_.full_index[layer][role]; full >= 0)
            w[role] = trained_->param(full);
    }
    return w;
}

BlockGrads Model::block_grads(int layer) const {
    BlockGrads g{};
    for (int role = 0; role < kRoles; ++role)
        if (const int full = layout_.full_index[layer][role]; full >= 0) g[role] = trained_->grad(full);
    return g;
}

real* Model::residual(int layer_boundary) const {
    return reinterpret_cast<real*>(residual_memory_.data() +
                                   layout_.residual_buffer(layer_boundary) * layout_.residual_buffer_bytes);
}

// With Recompute::block x1 has no buffer of its own. Forward puts it where backward's running gradient will be,
// backward over the block's output, which nothing reads any more by then.
BlockActivations Model::activations(int layer, Pass pass) const {
    BlockActivations acts = activations_[layout_.activation_set(layer)];
    if (layout_.settings.recompute == Recompute::block)
        acts.x1 = pass == Pass::forward ? dresidual_ : residual(layer + 1);
    return acts;
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
    if (slot.done->recorded()) slot.done->synchronize();  // several micro-batches ago
    const auto send = [&](int32_t* dst, const std::vector<int32_t>& src, size_t place) {
        if (src.empty()) return;
        int32_t* const staged = slot.buffer.as<int32_t>() + place * rows;
        std::copy(src.begin(), src.end(), staged);
        copy_async(dst, staged, rows * sizeof(int32_t), CopyKind::host_to_device, compute_);
    };
    send(outer_.tokens, batch.tokens, 0);
    send(outer_.targets, batch.targets, 1);
    send(outer_.doc_start, batch.doc_start, 2);
    slot.done->record(compute_);
}

BlockContext Model::context(const MicroBatch& batch, bool training) {
    LoraDropout dropout;
    if (training && layout_.settings.lora) dropout.p = layout_.settings.lora->dropout;
    dropout.T_len = batch.T;
    dropout.key = {.seed = seed_, .first_sample = batch.first_sample};
    return {.config = layout_.config,
            .B = batch.B,
            .T = batch.T,
            .rotary_table = layout_.config.rotary ? rotary_.as<float>() : nullptr,
            .doc_start = batch.doc_start.empty() ? nullptr : outer_.doc_start,
            .dropout = dropout,
            .stream = compute_};
}

double Model::measure_link_gbps() {
    const int layer = layout_.streamed.at(0);
    const DeviceBuffer& idle =
        activation_memory_.bytes() > residual_memory_.bytes() ? activation_memory_ : residual_memory_;
    const size_t slab_bytes = slabs_->layout(layer).total_bytes(), bytes = std::min(slab_bytes, idle.bytes());
    Event start(device_, true), end(device_, true);
    double best_ms = 1e30;
    for (int repeat = 0; repeat < 4; ++repeat) {
        start.record(transfer_);
        if (bytes == slab_bytes)
            slabs_->enqueue(layer, idle.data(), transfer_);  // as training does it, staged or not
        else
            copy_async(idle.data(), slabs_->host(layer), bytes, CopyKind::host_to_device, transfer_);
        end.record(transfer_);
        end.synchronize();
        best_ms = std::min<double>(best_ms, elapsed_ms(start, end));
    }
    return static_cast<double>(bytes) / 1e6 / std::max(best_ms, 1e-6);
}

void Model::begin_step() {
    trained_->zero_grads(compute_);
    fill_async(outer_.train_loss_sum, 0, sizeof(double), compute_);
}

void Model::embed(const BlockContext& ctx) {
    embedding_forward(EmbeddingForward<real>{.x = residual(0),
                                             .tokens = outer_.tokens,
                                             .doc_start = ctx.doc_start,
                                             .wte = outer_weight(Role::token_embedding),
                                             .wpe = outer_weight(Role::position_embedding),
                                             .rows = ctx.rows(),
                                             .T_len = ctx.T,
                                             .C = layout_.config.C,
                                             .first_position = ctx.cache ? ctx.cache->filled : 0},
                      compute_);
}

void Model::forward_layers(BlockContext& ctx) {
    embed(ctx);
    for (int l = 0; l < layout_.config.L; ++l) {
        const offload::LayerView view = manager_->begin_layer(l);
        ctx.dropout.key.layer = l;
        if (ctx.cache) ctx.cache = layer_cache(l);
        block_forward(ctx, residual(l + 1), residual(l), block_weights(l, view), adapters_[l],
                      activations(l, Pass::forward));
        manager_->end_layer(l);
    }
}

void Model::forward_batch(const MicroBatch& batch, bool training) {
    upload(batch);
    BlockContext ctx = context(batch, training);
    forward_layers(ctx);
}

KeyValueCache Model::layer_cache(int layer) const {
    real* const keys = cache_.as<real>() + 2 * static_cast<size_t>(layer) * layout_.cache_layer_elems;
    return {.k = keys, .v = keys + layout_.cache_layer_elems, .filled = cached_};
}

void Model::final_norm_forward(size_t rows) {
    norm_forward(layout_.config, outer_.final_norm, {outer_.mean, outer_.rstd}, residual(layout_.config.L),
                 outer_weight(Role::final_norm_weight), outer_weight(Role::final_norm_bias), rows, compute_);
}

// logits [rows, V] of tokens first_row .. of the final norm's output
void Model::head_logits(size_t first_row, size_t rows) {
    const ModelConfig& c = layout_.config;
    const size_t C = c.C, V = c.V;
    matmul_forward(MatmulForward<real>{.y = chunk_logits_,
                                       .x = outer_.final_norm + first_row * C,
                                       .w = outer_weight(c.tied_head ? Role::token_embedding : Role::head),
                                       .bias = nullptr,
                                       .add = nullptr,
                                       .rows = rows,
                                       .N = c.V,
                                       .K = c.C,
                                       .ld_y = V,
                                       .ld_x = C},
                   compute_);
}

// Final norm, then logits, loss and (with backward) the gradient of the residual stream, a chunk of tokens at a time.
void Model::head(size_t rows, float dloss, bool backward) {
    const ModelConfig& c = layout_.config;
    const size_t C = c.C, V = c.V, chunk = static_cast<size_t>(layout_.head_chunk_rows);
    const Role head_role = c.tied_head ? Role::token_embedding : Role::head;
    final_norm_forward(rows);
    for (size_t first = 0; first < rows; first += chunk) {
        const size_t n = std::min(chunk, rows - first);
        head_logits(first, n);
        cross_entropy(outer_.losses + first, chunk_logits_, outer_.targets + first, n, c.V, dloss, backward, compute_);
        if (!backward) continue;
        real* const chunk_norm = outer_.final_norm + first * C;  // becomes its own gradient, last of all
        if (float* const dw = outer_grad(head_role))
            matmul_backward_weight(MatmulBackwardWeight<real>{.dw = dw,
                                                              .dy = chunk_logits_,
                                                              .x = chunk_norm,
                                                              .rows = n,
                                                              .N = c.V,
                                                              .K = c.C,
                                                              .ld_dy = V,
                                                              .ld_x = C},
                                   compute_);
        matmul_backward_input(MatmulBackwardInput<real>{.dx = chunk_norm,
                                                        .dy = chunk_logits_,
                                                        .w = outer_weight(head_role),
                                                        .rows = n,
                                                        .N = c.V,
                                                        .K = c.C,
                                                        .ld_dx = C,
                                                        .ld_dy = V},
                              compute_);
    }
    if (!backward) return;
    fill_async(dresidual_, 0, rows * C * sizeof(real), compute_);
    norm_backward(c, dresidual_, outer_grad(Role::final_norm_weight), outer_grad(Role::final_norm_bias),
                  outer_.final_norm, residual(c.L), outer_weight(Role::final_norm_weight), {outer_.mean, outer_.rstd},
                  rows, compute_);
}

void Model::backward_layers(const MicroBatch& batch) {
    const ModelConfig& c = layout_.config;
    const int low = layout_.lowest_trained_layer;
    BlockContext ctx = context(batch, true);
    for (int l = c.L - 1; l >= low; --l) {
        const offload::LayerView view = manager_->begin_layer(l);
        ctx.dropout.key.layer = l;
        const BlockWeights weights = block_weights(l, view);
        if (l == 0 && layout_.embedding_recomputed) embed(ctx);
        if (layout_.settings.recompute == Recompute::block)
            block_forward(ctx, nullptr, residual(l), weights, adapters_[l], activations(l, Pass::backward));
        block_backward(ctx, dresidual_, residual(l), weights, block_grads(l), adapters_[l],
                       activations(l, Pass::backward), scratch_, l > low || layout_.embeddings_trained);
        manager_->end_layer(l);
    }
    if (!layout_.embeddings_trained) return;
    embedding_backward(EmbeddingBackward<real>{.dwte = outer_grad(Role::token_embedding),
                                               .dwpe = outer_grad(Role::position_embedding),
                                               .dx = dresidual_,
                                               .tokens = outer_.tokens,
                                               .doc_start = ctx.doc_start,
                                               .rows = ctx.rows(),
                                               .T_len = batch.T,
                                               .C = c.C,
                                               .V = c.V},
                       compute_);
}

void Model::forward_backward(const MicroBatch& batch, float dloss) {
    const size_t rows = static_cast<size_t>(batch.B) * batch.T;
    forward_batch(batch, true);
    head(rows, dloss, true);
    sum_losses(outer_.train_loss_sum, outer_.losses, rows, true, compute_);
    backward_layers(batch);
}

void Model::evaluate(const MicroBatch& batch, bool accumulate) {
    const size_t rows = static_cast<size_t>(batch.B) * batch.T;
    forward_batch(batch, false);
    head(rows, 0, false);
    sum_losses(outer_.eval_loss_sum, outer_.losses, rows, accumulate, compute_);
}

std::vector<float> Model::logits(const MicroBatch& batch, size_t first_row, size_t rows) {
    const size_t V = layout_.config.V, chunk = static_cast<size_t>(layout_.head_chunk_rows);
    forward_batch(batch, false);
    final_norm_forward(static_cast<size_t>(batch.B) * batch.T);
    std::vector<float> all(rows * V);
    std::vector<real> part(std::min(chunk, rows) * V);
    for (size_t first = 0; first < rows; first += chunk) {
        const size_t n = std::min(chunk, rows - first);
        head_logits(first_row + first, n);
        copy_async(part.data(), chunk_logits_, n * V * sizeof(real), CopyKind::device_to_host, compute_);
        compute_.synchronize();
        for (size_t i = 0; i < n * V; ++i) all[first * V + i] = to_float(part[i]);
    }
    return all;
}

std::vector<float> Model::next_logits(const std::vector<int32_t>& tokens) {
    const ModelSettings& s = layout_.settings;
    if (tokens.empty() || tokens.size() > static_cast<size_t>(s.cache_positions - cached_))
        throw std::logic_error("next_logits: " + std::to_string(tokens.size()) + " tokens behind " +
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
        BlockContext ctx = context(piece, false);
        ctx.cache = layer_cache(0);
        forward_layers(ctx);
        cached_ += piece.T;
    }
    final_norm_forward(rows);
    head_logits(rows - 1, 1);
    const size_t V = layout_.config.V;
    std::vector<real> row(V);
    copy_async(row.data(), chunk_logits_, V * sizeof(real), CopyKind::device_to_host, compute_);
    compute_.synchronize();
    std::vector<float> logits(V);
    for (size_t i = 0; i < V; ++i) logits[i] = to_float(row[i]);
    return logits;
}

}  // namespace slab::train
