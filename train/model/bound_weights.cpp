// Pointers come from the layout's indices alone; a tensor that the model has not stays null.
#include "train/model/bound_weights.h"

#include "train/spec/lora.h"

namespace slab::train {

namespace {

struct BoundGroup {
    const TensorGroup& group;
    const std::byte* slab;
    const TrainedTensors& trained;

    const real* weight(Role role) const {
        const Placed* const tensor = group.find(role);
        if (!tensor) return nullptr;
        if (tensor->in_trained) return trained.param(*tensor->in_trained);
        return reinterpret_cast<const real*>(slab + group.slab.offset_bytes(*tensor->in_slab));
    }
    float* gradient(Role role) const {
        const Placed* const tensor = group.find(role);
        return tensor && tensor->in_trained ? trained.grad(*tensor->in_trained) : nullptr;
    }
    NormWeights norm(Role w, Role b) const {
        return {.w = weight(w), .b = weight(b), .dw = gradient(w), .db = gradient(b)};
    }
};

}  // namespace

std::vector<BlockAdapters> bind_adapters(const ModelLayout& layout, const TrainedTensors& trained) {
    std::vector<BlockAdapters> layers(static_cast<size_t>(layout.config.L));
    for (int l = 0; l < layout.config.L; ++l)
        for (const auto& [module, A, B] : layout.layer(l).adapters) {
            const LoraSettings& lora = *layout.settings.lora;
            LoraGroup<real>& group = layers[static_cast<size_t>(l)][static_cast<size_t>(module.linear)];
            if (group.modules.empty()) {  // the A matrices of the others follow this one
                group.A = trained.param(A);
                group.dA = trained.grad(A);
                group.K = static_cast<int>(module.in);
            }
            group.modules.push_back({.B = trained.param(B),
                                     .dB = trained.grad(B),
                                     .r = lora.r,
                                     .N = static_cast<int>(module.out),
                                     .first_row = group.r,
                                     .first_col = static_cast<int>(module.first_col),
                                     .scale = lora.scale(),
                                     .site = module.site});
            group.r += lora.r;
        }
    return layers;
}

OuterWeights bind_outer(const ModelLayout& layout, const std::byte* slab, const TrainedTensors& trained) {
    const BoundGroup outside{layout.outside(), slab, trained};
    const Role head = layout.config.tied_head ? Role::token_embedding : Role::head;
    return {.wte = outside.weight(Role::token_embedding),
            .wpe = outside.weight(Role::position_embedding),
            .dwte = outside.gradient(Role::token_embedding),
            .dwpe = outside.gradient(Role::position_embedding),
            .final_norm = outside.norm(Role::final_norm_weight, Role::final_norm_bias),
            .head = {.w = outside.weight(head),
                     .bias = nullptr,
                     .dw = outside.gradient(head),
                     .dbias = nullptr,
                     .lora = nullptr,
                     .N = layout.config.V,
                     .K = layout.config.C}};
}

BlockWeights bind_block(const ModelLayout& layout, int layer, const offload::LayerView& view,
                        const TrainedTensors& trained, const BlockAdapters& adapters) {
    const BoundGroup group{layout.layer(layer), view.base, trained};
    const auto linear = [&](Linear which) {
        const LinearShape shape = shape_of(layout.config, which);
        const LinearRoles roles = roles_of(which);
        const LoraGroup<real>& lora = adapters[static_cast<size_t>(which)];
        return LinearWeights{.w = group.weight(roles.weight),
                             .bias = group.weight(roles.bias),
                             .dw = group.gradient(roles.weight),
                             .dbias = group.gradient(roles.bias),
                             .lora = lora.modules.empty() ? nullptr : &lora,
                             .N = static_cast<int>(shape.N),
                             .K = static_cast<int>(shape.K)};
    };
    return {.norm1 = group.norm(Role::norm1_weight, Role::norm1_bias),
            .norm2 = group.norm(Role::norm2_weight, Role::norm2_bias),
            .qkv = linear(Linear::qkv),
            .qk_norm = {.w_q = group.weight(Role::q_norm),
                        .w_k = group.weight(Role::k_norm),
                        .dw_q = group.gradient(Role::q_norm),
                        .dw_k = group.gradient(Role::k_norm)},
            .o = linear(Linear::o),
            .fc = linear(Linear::fc),
            .down = linear(Linear::down)};
}

}  // namespace slab::train
