// Weights first, then streaming, then activations: each part of the layout needs only those before it.
#include "train/model/model_layout.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "data/base/error.h"
#include "kernels/attention/attention.h"
#include "kernels/matmul.h"
#include "train/model/carver.h"
#include "train/spec/lora.h"
#include "train/spec/trained_table.h"

namespace slab::train {

namespace {

// Logits of at most about this many bytes exist at once.
constexpr size_t kLogitsTargetBytes = size_t{64} << 20;
constexpr int kLogitsRowStep = 64;
// The most float32 copies of the trained tensors that the host holds: resuming reads weights and both moments, and lays
// two of them out as on the device.
constexpr size_t kTrainedHostCopies = 5;

[[noreturn]] void refuse(const std::string& text) {
    throw data::UserError(text);
}

void check_settings(const ModelConfig& c, const ModelSettings& s) {
    if (s.B < 1 || s.B > kMaxMicroBatchSize)
        refuse("--micro-batch-size " + std::to_string(s.B) + " is out of range; wanted 1 to " +
               std::to_string(kMaxMicroBatchSize));
    if (s.T < 1 || s.T > kMaxSequenceLen)
        refuse("--sequence-len " + std::to_string(s.T) + " is out of range; wanted 1 to " +
               std::to_string(kMaxSequenceLen));
    if (static_cast<size_t>(s.B) * s.T > size_t{1} << 30)
        refuse("--micro-batch-size " + std::to_string(s.B) + " times --sequence-len " + std::to_string(s.T) +
               " is more than 2^30 tokens");
    check_sequence_len(c, s.T);
    if (c.HD > kMaxAttentionHeadSize)
        refuse("the model's head size is " + std::to_string(c.HD) + "; the GPU's attention takes at most " +
               std::to_string(kMaxAttentionHeadSize) + ". Hint: build for the CPU (make BACKEND=cpu)");
    if (s.cache_positions < 0 || s.cache_positions > most_positions(c))
        throw std::logic_error("a cache for more tokens than the model has positions");
    if (s.lora) check_lora_settings(c, *s.lora);
    if (s.freeze_layers < 0 || s.freeze_layers > c.L)
        refuse("--freeze-layers " + std::to_string(s.freeze_layers) + " is out of range; the model has " +
               std::to_string(c.L) + " layers");
    if (s.lora && s.freeze_layers != 0)
        refuse("--freeze-layers trains whole layers and needs --adapter none; with lora every layer is frozen anyway");
    const int frozen = s.lora ? c.L : s.freeze_layers;
    for (int layer : s.resident_layers) {
        const std::string named = "--resident-layers names layer " + std::to_string(layer);
        if (layer < 0 || layer >= c.L) refuse(named + "; the model has layers 0 to " + std::to_string(c.L - 1));
        if (layer >= frozen)
            refuse(named + ", which is trained in full and stays on the device anyway; wanted " +
                   (frozen == 0 ? "none: no layer is frozen (--freeze-layers)"
                                : "frozen ones, 0 to " + std::to_string(frozen - 1)));
    }
    if (!s.layer_offloading) return;
    if (s.num_prefetch < 1)
        refuse("--num-prefetch " + std::to_string(s.num_prefetch) + " is out of range; wanted 1 or more");
    if (const int least = offload::least_slots(s.num_prefetch); s.num_slots < least)
        refuse("--num-slots " + std::to_string(s.num_slots) + " cannot hold the open layer and --num-prefetch " +
               std::to_string(s.num_prefetch) + " more; wanted at least " + std::to_string(least));
}

// Sums and products of bytes, checked: a plan that wrapped around would fit any budget. Sizes of one tensor or of one
// block's activations cannot wrap, since read_model_config bounds every width.
constexpr size_t kMostBytes = size_t{1} << 63;

[[noreturn]] void refuse_size() {
    refuse(
        "this shape needs more than 2^63 bytes; wanted less: lower --micro-batch-size or --sequence-len, or check the "
        "sizes in --base-model's config.json");
}

size_t plus(size_t a, size_t b) {
    size_t sum = 0;
    if (__builtin_add_overflow(a, b, &sum) || sum > kMostBytes) refuse_size();
    return sum;
}

size_t times(size_t a, size_t b) {
    size_t product = 0;
    if (__builtin_mul_overflow(a, b, &product) || product > kMostBytes) refuse_size();
    return product;
}

void place_in_slab(TensorGroup& group, Placed& tensor) {
    tensor.in_slab = group.slab.add(tensor.spec.name, tensor.spec.elems() * sizeof(real));
}

void place_in_trained(TrainedTable& table, Placed& tensor, int layer) {
    const TensorSpec& spec = tensor.spec;
    for (const auto& part : spec.parts) {
        const bool first = !tensor.in_trained;
        const size_t index = table.add({.key = part.key,
                                        .kind = TrainedKind::base,
                                        .rows = part.rows,
                                        .cols = spec.cols,
                                        .matrix = spec.matrix,
                                        .decay = spec.decay,
                                        .transposed = spec.transposed,
                                        .joined = !first,
                                        .layer = layer});
        if (first) tensor.in_trained = index;
    }
}

// For each linear layer first every A, which makes them one matrix, then every B.
void place_adapters(ModelLayout& m, TensorGroup& group, int layer) {
    const LoraSettings& lora = *m.settings.lora;
    const size_t r = static_cast<size_t>(lora.r);
    for (auto& module : adapted_modules(m.config, lora, layer)) group.adapters.push_back({std::move(module), 0, 0});
    const auto add = [&](const std::string& path, TrainedKind kind, size_t rows, size_t cols, bool joined) {
        return m.trained.add({.key = peft_key(path, kind == TrainedKind::lora_A ? 'A' : 'B'),
                              .kind = kind,
                              .rows = rows,
                              .cols = cols,
                              .matrix = true,
                              .decay = true,
                              .transposed = false,
                              .joined = joined,
                              .layer = layer});
    };
    for (const Linear linear : {Linear::qkv, Linear::o, Linear::fc, Linear::down}) {
        size_t ranks = 0;
        for (auto& [module, A, B] : group.adapters) {
            if (module.linear != linear) continue;
            A = add(module.path, TrainedKind::lora_A, r, module.in, ranks != 0);
            ranks += r;
        }
        for (auto& [module, A, B] : group.adapters)
            if (module.linear == linear) B = add(module.path, TrainedKind::lora_B, module.out, r, false);
        size_t& largest = m.adapter_extent.r[static_cast<size_t>(linear)];
        largest = std::max(largest, ranks);
    }
}

// Tensors outside the layers are trained with the layers. But with freeze_layers the embeddings are frozen, a tied head
// with them.
bool is_trained_in_full(const ModelLayout& m, const TensorSpec& spec, int layer) {
    if (m.settings.lora) return false;
    if (layer >= 0) return layer >= m.settings.freeze_layers;
    const bool embedding = spec.role == Role::token_embedding || spec.role == Role::position_embedding;
    return !embedding || m.embeddings_trained;
}

void place_tensors(ModelLayout& m, TensorGroup& group, std::vector<TensorSpec> specs, int layer) {
    for (auto& spec : specs) {
        Placed& tensor = group.tensors.emplace_back(Placed{std::move(spec), std::nullopt, std::nullopt});
        if (is_trained_in_full(m, tensor.spec, layer))
            place_in_trained(m.trained, tensor, layer);
        else
            place_in_slab(group, tensor);
    }
}

// The layers come before the outside in the trained table. The gradient norm is summed in that order.
void lay_out_weights(ModelLayout& m) {
    const ModelConfig& c = m.config;
    m.embeddings_trained = !m.settings.lora && m.settings.freeze_layers == 0;
    m.groups.resize(1 + static_cast<size_t>(c.L));
    for (int l = 0; l < c.L; ++l) {
        TensorGroup& group = m.groups[1 + static_cast<size_t>(l)];
        place_tensors(m, group, layer_tensors(c, l), l);
        if (m.settings.lora) place_adapters(m, group, l);
    }
    place_tensors(m, m.groups[0], outer_tensors(c), -1);
    m.trained.finish();
    m.adapter_extent.dropout = m.settings.lora && m.settings.lora->dropout > 0;

    m.lowest_trained_layer = c.L;
    for (const auto& t : m.trained.tensors())
        if (t.layer >= 0) m.lowest_trained_layer = std::min(m.lowest_trained_layer, t.layer);
    if (m.embeddings_trained) m.lowest_trained_layer = 0;
}

void lay_out_streaming(ModelLayout& m) {
    const ModelSettings& s = m.settings;
    offload::RingOptions options;
    if (s.layer_offloading) {
        options = {.num_prefetch = s.num_prefetch, .num_slots = s.num_slots, .resident_layers = s.resident_layers};
    } else {
        options.resident_layers.resize(m.config.L);
        std::iota(options.resident_layers.begin(), options.resident_layers.end(), 0);
    }
    m.ring = offload::RingPlan(offload::slab_bytes(m.moved_slabs()), options);
    for (int l = 0; l < m.config.L; ++l)
        if (m.layer_is_frozen(l) && !m.ring.streams(l)) m.resident_frozen.push_back(l);
}

void lay_out_activations(ModelLayout& m) {
    const ModelConfig& c = m.config;
    const int B = m.settings.B, T = m.settings.T, low = m.lowest_trained_layer;
    const size_t rows = static_cast<size_t>(B) * T, C = c.C;
    // Layers below the lowest trained one keep nothing: they share one set, and two buffers for their inputs.
    m.activation_sets = m.settings.recompute == Recompute::block ? 1 : c.L - low + (low > 0 ? 1 : 0);
    m.embedding_recomputed = m.settings.recompute == Recompute::block && low == 0 && c.L >= 2;
    m.residual_buffers = std::min(low, 2) + c.L + 1 - low - (m.embedding_recomputed ? 1 : 0);
    Carver residual, acts, scratch, outer;
    (void)residual.take<real>(rows * C);  // all buffers are aligned alike: kernels are chosen by alignment
    m.residual_buffer_bytes = residual.used_bytes();
    const Recompute recompute = m.settings.recompute;
    carve_block_activations(acts, c, B, T, m.adapter_extent, recompute);
    m.activation_set_bytes = acts.used_bytes();
    carve_backward_scratch(scratch, c, B, T, m.adapter_extent);
    m.backward_scratch_bytes = scratch.used_bytes() + m.residual_buffer_bytes;  // and the running gradient
    m.head_over_activations = recompute == Recompute::block;
    carve_outer_activations(outer, c, B, T, m.head_over_activations);
    m.outer_activation_bytes = outer.used_bytes();
    m.attention_workspace_bytes = attention_backward_workspace_bytes(B, T, c.NH, c.NKV, c.HD);
    m.rotary_positions = c.rotary ? std::max(T, m.settings.cache_positions) : 0;
    m.rotary_bytes = static_cast<size_t>(m.rotary_positions) * c.HD * sizeof(float);
    m.cache_layer_elems = static_cast<size_t>(m.settings.cache_positions) * c.NKV * c.HD;

    // The chunk is a function of shapes, never of free memory: the head's weight gradient is summed chunk by chunk.
    const size_t row_bytes = static_cast<size_t>(c.V) * sizeof(real);
    const size_t fitting = kLogitsTargetBytes / row_bytes / kLogitsRowStep * kLogitsRowStep;
    m.head_chunk_rows = static_cast<int>(std::min(rows, std::max<size_t>(fitting, kLogitsRowStep)));
    const size_t logits_bytes = static_cast<size_t>(m.head_chunk_rows) * row_bytes;
    m.logits_over_activations =
        m.head_over_activations && logits_bytes <= rows * shape_of(c, Linear::fc).N * sizeof(real);
    m.logits_bytes = m.logits_over_activations ? 0 : logits_bytes;
}

// A rank's shard keeps the alignment of the whole, since kernels are chosen by alignment.
void lay_out_rank_sums(ModelLayout& m) {
    constexpr size_t kShardStep = 64;
    const ModelSettings& s = m.settings;
    if (s.ranks < 1 || s.exchange_every < 1) throw std::logic_error("a layout for no rank");
    if (!s.sums_in_order()) return;
    const size_t ranks = static_cast<size_t>(s.ranks), step = ranks * kShardStep;
    m.shard_elems = (m.trained.total_elems() + step - 1) / step * kShardStep;
    Carver sums;
    carve_rank_sums(sums, m.shard_elems, s.ranks, s.exchange_every);
    m.rank_sums_bytes = sums.used_bytes();
    const size_t peers_bytes = times(times(ranks, m.shard_elems), sizeof(float));
    m.peer_gradients_over_activations =
        peers_bytes <= times(static_cast<size_t>(m.activation_sets), m.activation_set_bytes);
    m.peer_gradients_bytes = m.peer_gradients_over_activations ? 0 : peers_bytes;
}

}  // namespace

RankSumBuffers carve_rank_sums(Carver& carver, size_t shard_elems, int ranks, int exchange_every) {
    const size_t own = static_cast<size_t>(exchange_every);
    RankSumBuffers b{};
    b.sum = carver.take<float>(shard_elems);
    b.own_losses = carver.take<double>(own);
    b.all_losses = carver.take<double>(own * static_cast<size_t>(ranks));
    b.loss_sum = carver.take<double>(1);
    b.digest = carver.take<uint64_t>(1);
    return b;
}

OuterActivations carve_outer_activations(Carver& carver, const ModelConfig& c, int B, int T,
                                         bool head_over_activations) {
    const size_t rows = static_cast<size_t>(B) * T;
    OuterActivations a{};
    if (!head_over_activations) a.final_norm = carver.take<real>(rows * c.C);
    if (c.norm == NormKind::layer_norm) a.stats.mean = carver.take<float>(rows);
    a.stats.rstd = carver.take<float>(rows);
    a.tokens = carver.take<int32_t>(rows);
    a.targets = carver.take<int32_t>(rows);
    a.doc_start = carver.take<int32_t>(rows);
    a.losses = carver.take<float>(rows);
    a.train_loss_sum = carver.take<double>(1);
    a.eval_loss_sum = carver.take<double>(1);
    return a;
}

const Placed* TensorGroup::find(Role role) const {
    for (const Placed& tensor : tensors)
        if (tensor.spec.role == role) return &tensor;
    return nullptr;
}

std::vector<offload::SlabLayout> ModelLayout::layer_slabs() const {
    std::vector<offload::SlabLayout> slabs;
    for (int l = 0; l < config.L; ++l) slabs.push_back(layer(l).slab);
    return slabs;
}

int ModelLayout::residual_buffer(int layer_boundary) const {
    const int low = lowest_trained_layer;
    if (layer_boundary < low) return layer_boundary % 2;
    // The embeddings' output shares the buffer of block 1's output. Forward writes the latter after block 0 has read
    // its input. Backward has finished with it before block 0 needs its input again.
    if (embedding_recomputed) return layer_boundary == 0 ? 1 : layer_boundary - 1;
    return std::min(low, 2) + layer_boundary - low;
}

int ModelLayout::activation_set(int layer) const {
    const int low = lowest_trained_layer;
    if (settings.recompute == Recompute::block || layer < low) return 0;
    return layer - low + (low > 0 ? 1 : 0);
}

std::vector<int> ModelLayout::evaluation_visits() const {
    std::vector<int> visits(config.L);
    std::iota(visits.begin(), visits.end(), 0);
    return visits;
}

std::vector<int> ModelLayout::training_visits() const {
    std::vector<int> visits = evaluation_visits();
    for (int l = config.L - 1; l >= lowest_trained_layer; --l) visits.push_back(l);
    return visits;
}

size_t ModelLayout::cache_bytes() const {
    return times(2 * static_cast<size_t>(config.L), cache_layer_elems * sizeof(real));
}

std::vector<PlanItem> ModelLayout::device_items() const {
    const offload::RingPlan& plan = ring;
    size_t resident_bytes = 0;
    for (int l : resident_frozen) resident_bytes = plus(resident_bytes, moved_slab(l).total_bytes());
    const TrainedBytes t = trained_bytes(trained);
    using enum MemoryCategory;
    std::vector<PlanItem> items = {
        {weights_resident, "embeddings, final norm, head (frozen)", outside().slab.total_bytes()},
        {weights_resident, std::to_string(resident_frozen.size()) + " frozen layers" + kept_as_text(*this),
         resident_bytes},
        {weights_resident, "rotary table", rotary_bytes},
        {ring,
         std::to_string(plan.slots()) + " slots for " + std::to_string(plan.streamed_layers()) + " streamed layers",
         times(plan.slots(), plan.slot_bytes())},
        {ring, "work slab (one decoded layer)", work_slab_bytes},
        {MemoryCategory::trained, settings.lora ? "A and B" : "as layers read them", t.params},
        {MemoryCategory::trained, "float32 masters", t.master},
        {MemoryCategory::trained, "gradients", t.grads},
        {optimizer, "exp_avg, exp_avg_sq, norm", plus(times(2, t.moments), t.control)},
        {activations, std::to_string(activation_sets) + " block activation sets",
         times(static_cast<size_t>(activation_sets), activation_set_bytes)},
        {activations, std::to_string(residual_buffers) + " block inputs",
         times(static_cast<size_t>(residual_buffers), residual_buffer_bytes)},
        {activations, "backward", backward_scratch_bytes},
        {activations, "final norm, tokens, losses", outer_activation_bytes},
        {activations, "keys and values of " + std::to_string(settings.cache_positions) + " sampled tokens",
         cache_bytes()},
        {logits, std::to_string(head_chunk_rows) + " tokens at once", logits_bytes},
        {workspace, "matrix products", matmul_workspace_bytes()},
        {workspace, "attention backward", attention_workspace_bytes},
        {workspace, "sums over ranks (1/" + std::to_string(settings.ranks) + " of gradients)", rank_sums_bytes},
        {workspace, "gradients of all ranks while they are added", peer_gradients_bytes},
        {workspace, "NCCL", settings.transport_bytes},
    };
    std::erase_if(items, [](const PlanItem& item) { return item.bytes == 0; });
    return items;
}

size_t ModelLayout::device_bytes() const {
    size_t sum = 0;
    for (const auto& item : device_items()) sum = plus(sum, item.bytes);
    return sum;
}

std::vector<std::pair<std::string, size_t>> ModelLayout::host_items() const {
    size_t streamed_bytes = 0, staging_bytes = 0;
    for (int l : ring.streamed()) streamed_bytes = plus(streamed_bytes, moved_slab(l).total_bytes());
    for (int l : resident_frozen) staging_bytes = std::max(staging_bytes, moved_slab(l).total_bytes());
    std::vector<std::pair<std::string, size_t>> items = {
        {"slabs of " + std::to_string(ring.streamed_layers()) + " streamed layers" + kept_as_text(*this),
         streamed_bytes},
        {"staging while loading", std::max(staging_bytes, outer_staging_bytes())},
        {"trained tensors while saving or resuming",
         times(kTrainedHostCopies, times(trained.parameter_count(), sizeof(float)))}};
    std::erase_if(items, [](const auto& item) { return item.second == 0; });
    return items;
}

size_t ModelLayout::host_bytes() const {
    size_t sum = 0;
    for (const auto& item : host_items()) sum = plus(sum, item.second);
    return sum;
}

ModelLayout make_layout(const ModelConfig& config, const ModelSettings& settings) {
    check_settings(config, settings);
    ModelLayout m{};
    m.config = config;
    m.settings = settings;
    lay_out_weights(m);
    lay_out_encoding(m);
    lay_out_streaming(m);
    lay_out_activations(m);
    lay_out_rank_sums(m);
    m.device_bytes();  // throws when the sum exceeds kMostBytes
    return m;
}

}  // namespace slab::train
