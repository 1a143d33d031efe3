// With Recompute::block the head's work lies over the blocks' activations, which nothing else needs meanwhile.
#include "train/model/model_memory.h"

#include "kernels/runtime/host_memory.h"
#include "train/model/carver.h"
#include "train/model/memory_plan.h"

namespace slab::train {

namespace {
DeviceBuffer allocate(Device& device, size_t bytes, MemoryCategory category, const char* what) {
    return bytes == 0 ? DeviceBuffer() : DeviceBuffer(device, bytes, category, what);
}
}  // namespace

ModelMemory::ModelMemory(Device& device, const ModelLayout& m) {
    const ModelConfig& c = m.config;
    const int B = m.settings.B, T = m.settings.T;
    using Category = MemoryCategory;

    check_address_space(m, free_address_bytes(), device.pool().size());
    outer_weights =
        allocate(device, m.outside().slab.total_bytes(), Category::weights_resident, "embeddings, final norm, head");
    rotary = allocate(device, m.rotary_bytes, Category::weights_resident, "rotary table");
    trained = std::make_unique<TrainedTensors>(device, m.trained);
    activation_memory =
        allocate(device, m.activation_sets * m.activation_set_bytes, Category::activations, "block activations");
    residual_memory =
        allocate(device, m.residual_buffers * m.residual_buffer_bytes, Category::activations, "block inputs");
    backward_memory = allocate(device, m.backward_scratch_bytes, Category::activations, "backward");
    outer_memory = allocate(device, m.outer_activation_bytes, Category::activations, "final norm, tokens, losses");
    logits_memory = allocate(device, m.logits_bytes, Category::logits, "logits");
    attention_workspace = allocate(device, m.attention_workspace_bytes, Category::workspace, "attention backward");
    cache = allocate(device, m.cache_bytes(), Category::activations, "keys and values of sampled tokens");

    rank_sums_memory = allocate(device, m.rank_sums_bytes, Category::workspace, "sums over ranks");
    peer_gradients_memory = allocate(device, m.peer_gradients_bytes, Category::workspace, "gradients of all ranks");

    for (int set = 0; set < m.activation_sets; ++set) {
        Carver carver(activation_memory.data() + set * m.activation_set_bytes);
        activations.push_back(carve_block_activations(carver, c, B, T, m.adapter_extent, m.settings.recompute));
    }
    Carver backward(backward_memory.data());
    scratch = carve_backward_scratch(backward, c, B, T, m.adapter_extent);
    scratch.attention_workspace = attention_workspace.as<float>();
    dresidual = backward.take<real>(static_cast<size_t>(B) * T * c.C);
    Carver outer_carver(outer_memory.data());
    outer = carve_outer_activations(outer_carver, c, B, T, m.head_over_activations);
    if (m.head_over_activations) outer.final_norm = activations[0].norm1;
    if (m.settings.sums_in_order()) {
        Carver sums(rank_sums_memory.data());
        rank_sums = carve_rank_sums(sums, m.shard_elems, m.settings.ranks, m.settings.exchange_every);
        peer_gradients =
            m.peer_gradients_over_activations ? activation_memory.as<float>() : peer_gradients_memory.as<float>();
    }
    chunk_logits = m.logits_over_activations ? activations[0].fc : logits_memory.as<real>();
}

}  // namespace slab::train
