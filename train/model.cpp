// The model's loops over layers, the head in token chunks, and how memory and weights come to be. See model.h.
#include "train/model.h"

#include <algorithm>
#include <cstdio>
#include <stdexcept>

#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/host_memory.h"
#include "kernels/matmul.h"
#include "kernels/rotary.h"
#include "train/adapter_files.h"

namespace slab::train {

namespace {

constexpr size_t kUploadsInFlight = 4;

DeviceBuffer allocate(Device& device, size_t bytes, MemoryCategory category, const char* what) {
    return bytes == 0 ? DeviceBuffer() : DeviceBuffer(device, bytes, category, what);
}

std::vector<float> rotary_table_of(const ModelConfig& c, int positions) {
    const RotaryScalingParams scaling{
        .llama3 = c.rope_scaling.llama3,
        .factor = c.rope_scaling.factor,
        .low_freq_factor = c.rope_scaling.low_freq_factor,
        .high_freq_factor = c.rope_scaling.high_freq_factor,
        .original_max_position_embeddings = c.rope_scaling.original_max_position_embeddings};
    return rotary_table(positions, c.HD, c.rope_theta, scaling);
}

}  // namespace

size_t MicroBatch::target_count() const {
    return targets.size() - static_cast<size_t>(std::count(targets.begin(), targets.end(), kIgnoreTarget));
}

Model::Model(Device& device, const ModelLayout& layout, BaseWeights& weights, const Options& options)
    : device_(device),
      layout_(layout),
      seed_(options.seed),
      compute_(device, "compute", matmul_workspace_bytes()),
      transfer_(device, "transfer") {
    const ModelConfig& c = layout_.config;
    const int B = layout_.settings.B, T = layout_.settings.T;
    using enum MemoryCategory;

    check_address_space(layout_, free_address_bytes(), device.pool().size());
    outer_weights_ =
        allocate(device, layout_.outer_slab.total_bytes(), weights_resident, "embeddings, final norm, head");
    rotary_ = allocate(device, layout_.rotary_bytes, weights_resident, "rotary table");
    trained_ = std::make_unique<TrainedTensors>(device, layout_.trained);
    activation_memory_ =
        allocate(device, layout_.activation_sets * layout_.activation_set_bytes, activations, "block activations");
    residual_memory_ =
        allocate(device, layout_.residual_buffers * layout_.residual_buffer_bytes, activations, "block inputs");
    backward_memory_ = allocate(device, layout_.backward_scratch_bytes, activations, "backward");
    outer_memory_ = allocate(device, layout_.outer_activation_bytes, activations, "final norm, tokens, losses");
    logits_ = allocate(device, layout_.logits_bytes, logits, "logits");
    attention_workspace_ = allocate(device, layout_.attention_workspace_bytes, workspace, "attention backward");
    cache_ = allocate(device, layout_.cache_bytes(), activations, "keys and values of sampled tokens");

    for (int set = 0; set < layout_.activation_sets; ++set) {
        Carver carver(activation_memory_.data() + set * layout_.activation_set_bytes);
        activations_.push_back(
            carve_block_activations(carver, c, B, T, layout_.adapter_extent, layout_.settings.recompute));
    }
    Carver backward(backward_memory_.data());
    scratch_ = carve_backward_scratch(backward, c, B, T, layout_.adapter_extent);
    scratch_.attention_workspace = attention_workspace_.as<float>();
    dresidual_ = backward.take<real>(static_cast<size_t>(B) * T * c.C);
    Carver outer(outer_memory_.data());
    outer_ = carve_outer_activations(outer, c, B, T, layout_.head_over_activations);
    if (layout_.head_over_activations) outer_.final_norm = activations_[0].norm1;
    chunk_logits_ = layout_.logits_over_activations ? activations_[0].fc : logits_.as<real>();

    for (size_t i = 0; i < kUploadsInFlight; ++i)
        uploads_.push_back({PinnedBuffer(device, 3 * sizeof(int32_t) * B * T, "tokens of a micro-batch"),
                            std::make_unique<Event>(device)});

    const auto fill = [this, &weights, check = options.check](int layer, std::byte* dst) {
        const auto& specs = layout_.layer_specs[layer];
        for (const auto& spec : specs) {
            const int index = layout_.slab_index[layer][index_of(spec.role)];
            weights.read(spec, reinterpret_cast<real*>(dst + layout_.slabs[layer].offset_bytes(index)), device_.pool(),
                         check);
        }
    };
    std::vector<int> resident = layout_.resident_frozen;
    for (int l = 0; l < c.L; ++l)
        if (!layout_.layer_is_frozen(l)) resident.push_back(l);
    slabs_ = std::make_unique<offload::HostSlabs>(device, layout_.slabs, resident);
    slabs_->load(fill, options.progress);
    manager_ = std::make_unique<offload::LayerOffloadManager>(
        *slabs_,
        offload::OffloadOptions{.num_prefetch = layout_.settings.num_prefetch,
                                .num_slots = layout_.settings.num_slots,
                                .resident_layers = resident,
                                .trace = options.trace,
                                .disturb = options.disturb},
        compute_, transfer_, device);
    manager_->attach();
    load_outer(weights, options.check);
    load_trained(weights, options.check);
    bind_adapters();
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

void Model::load_outer(BaseWeights& weights, const std::function<void()>& check) {
    const ModelConfig& c = layout_.config;
    if (layout_.outer_slab.total_bytes() != 0) {
        // One copy at the start: not worth locking pages for.
        const HostMemory staging(layout_.outer_slab.total_bytes(), device_.numa_node(), "embeddings, final norm, head");
        for (const auto& spec : layout_.outer_specs)
            if (const int index = layout_.outer_slab_index[index_of(spec.role)]; index >= 0)
                weights.read(spec, reinterpret_cast<real*>(staging.data() + layout_.outer_slab.offset_bytes(index)),
                             device_.pool(), check);
        copy_async(outer_weights_.data(), staging.data(), staging.bytes(), CopyKind::host_to_device, compute_);
        compute_.synchronize();
    }
    if (c.rotary) {
        const std::vector<float> table = rotary_table_of(c, layout_.rotary_positions);
        copy_async(rotary_.data(), table.data(), table.size() * sizeof(float), CopyKind::host_to_device, compute_);
        compute_.synchronize();
    }
}

void Model::load_trained(BaseWeights& weights, const std::function<void()>& check) {
    const TrainedTable& table = layout_.trained;
    std::vector<float> packed;
    if (layout_.settings.lora) {
        packed = initial_adapter(table, seed_);
    } else {
        packed.resize(table.parameter_count());
        const std::vector<size_t> packed_offset = table.packed_offsets();
        const auto read_all = [&](const std::vector<TensorSpec>& specs, const std::array<int, kRoles>& full_index) {
            for (const auto& spec : specs)  // the parts of one tensor follow each other in the table
                if (const int first = full_index[index_of(spec.role)]; first >= 0)
                    weights.read(spec, packed.data() + packed_offset[first], device_.pool(), check);
        };
        read_all(layout_.outer_specs, layout_.outer_full_index);
        for (int l = 0; l < layout_.config.L; ++l) read_all(layout_.layer_specs[l], layout_.full_index[l]);
    }
    trained_->write_weights(packed, compute_);
    trained_->zero_moments(compute_);
    trained_->zero_grads(compute_);
    compute_.synchronize();
}

void Model::bind_adapters() {
    adapters_.resize(layout_.config.L);
    if (!layout_.settings.lora) return;
    const LoraSettings& lora = *layout_.settings.lora;
    for (int l = 0; l < layout_.config.L; ++l)
        for (int linear = 0; linear < kLinears; ++linear) {
            const auto& slots = layout_.adapters[l][linear];
            if (slots.empty()) continue;
            LoraGroup<real>& group = adapters_[l].groups[linear];
            group.A = trained_->param(slots.front().A);
            group.dA = trained_->grad(slots.front().A);
            group.K = static_cast<int>(slots.front().module.in);
            for (const auto& slot : slots) {
                group.modules.push_back({.B = trained_->param(slot.B),
                                         .dB = trained_->grad(slot.B),
                                         .r = lora.r,
                                         .N = static_cast<int>(slot.module.out),
                                         .first_row = group.R,
                                         .first_col = static_cast<int>(slot.module.first_col),
                                         .scale = lora.scale(),
                                         .site = slot.module.site});
                group.R += lora.r;
            }
        }
}

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
