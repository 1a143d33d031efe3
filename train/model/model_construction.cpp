// How a model comes to be: its buffers as the layout sized them, the base's weights in host slabs and on the device,
// adapters bound to their tensors. The loops over layers are in model.cpp. See model.h.
//
// Every allocation has its size from the layout, so that what was planned is what is taken.
#include <cstdio>
#include <stdexcept>

#include "kernels/matmul.h"
#include "kernels/rotary.h"
#include "kernels/runtime/host_memory.h"
#include "train/files/adapter_files.h"
#include "train/model/carver.h"
#include "train/model/initial_adapter.h"
#include "train/model/model.h"
#include "train/spec/lora.h"
#include "train/spec/trained_table.h"

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

    const auto fill = [this, &weights, stop = options.stop](int layer, std::byte* dst) {
        const auto& specs = layout_.layer_specs[layer];
        for (const auto& spec : specs) {
            const int index = layout_.slab_index[layer][index_of(spec.role)];
            weights.read(spec, reinterpret_cast<real*>(dst + layout_.slabs[layer].offset_bytes(index)), device_.pool(),
                         stop);
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
    load_outer(weights, options.stop);
    load_trained(weights, options.stop);
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

void Model::load_outer(BaseWeights& weights, data::StopToken stop) {
    const ModelConfig& c = layout_.config;
    if (layout_.outer_slab.total_bytes() != 0) {
        // One copy at the start: not worth locking pages for.
        const HostMemory staging(layout_.outer_slab.total_bytes(), device_.numa_node(), "embeddings, final norm, head");
        for (const auto& spec : layout_.outer_specs)
            if (const int index = layout_.outer_slab_index[index_of(spec.role)]; index >= 0)
                weights.read(spec, reinterpret_cast<real*>(staging.data() + layout_.outer_slab.offset_bytes(index)),
                             device_.pool(), stop);
        copy_async(outer_weights_.data(), staging.data(), staging.bytes(), CopyKind::host_to_device, compute_);
        compute_.synchronize();
    }
    if (c.rotary) {
        const std::vector<float> table = rotary_table_of(c, layout_.rotary_positions);
        copy_async(rotary_.data(), table.data(), table.size() * sizeof(float), CopyKind::host_to_device, compute_);
        compute_.synchronize();
    }
}

void Model::load_trained(BaseWeights& weights, data::StopToken stop) {
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
                    weights.read(spec, packed.data() + packed_offset[first], device_.pool(), stop);
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

}  // namespace slab::train
