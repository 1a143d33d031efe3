// Key names family by family; everything else about a tensor follows from the config.
#include "train/spec/tensor_table.h"

#include <stdexcept>

namespace slab::train {

LinearShape shape_of(const ModelConfig& c, Linear linear) {
    const size_t C = c.C, I = c.I;
    switch (linear) {
        case Linear::qkv:
            return {.N = query_cols(c) + 2 * key_cols(c), .K = C};
        case Linear::o:
            return {.N = C, .K = query_cols(c)};
        case Linear::fc:  // gate and up side by side for SwiGLU
            return {.N = c.activation == Activation::swiglu ? 2 * I : I, .K = C};
        case Linear::down:
            return {.N = C, .K = I};
    }
    throw std::logic_error("linear layer without a shape");
}

LinearRoles roles_of(Linear linear) {
    switch (linear) {
        case Linear::qkv:
            return {Role::qkv_weight, Role::qkv_bias};
        case Linear::o:
            return {Role::o_weight, Role::o_bias};
        case Linear::fc:
            return {Role::fc_weight, Role::fc_bias};
        case Linear::down:
            return {Role::down_weight, Role::down_bias};
    }
    throw std::logic_error("linear layer without roles");
}

namespace {

std::string layer_prefix(const ModelConfig& c, int layer) {
    return (c.family == Family::gpt2 ? "transformer.h." : "model.layers.") + std::to_string(layer) + ".";
}

const char* name_of(Linear linear) {
    constexpr const char* names[kLinears] = {"qkv", "o", "fc", "down"};
    return names[static_cast<int>(linear)];
}

// Collects the tensors of one layer, or of the outside. Keys are full keys.
struct TableBuilder {
    std::vector<TensorSpec> specs;

    void vector(Role role, std::string name, size_t n, Init init, std::vector<TensorPart> parts) {
        specs.push_back({.role = role,
                         .name = std::move(name),
                         .rows = n,
                         .cols = 1,
                         .matrix = false,
                         .decay = false,
                         .transposed = false,
                         .init = init,
                         .parts = std::move(parts)});
    }
    void vector(Role role, std::string name, size_t n, Init init, const std::string& key) {
        vector(role, std::move(name), n, init, std::vector<TensorPart>{{key, n}});
    }

    void matrix(Role role, std::string name, const LinearShape& shape, std::vector<TensorPart> parts,
                Init init = Init::normal, bool transposed = false) {
        specs.push_back({.role = role,
                         .name = std::move(name),
                         .rows = shape.N,
                         .cols = shape.K,
                         .matrix = true,
                         .decay = true,
                         .transposed = transposed,
                         .init = init,
                         .parts = std::move(parts)});
    }

    // The weight [N, K] and, where the model has one, the bias [N] of a linear layer: its modules' rows in their order.
    void linear(const ModelConfig& c, Linear which, bool with_bias, const std::vector<LinearModule>& modules) {
        const LinearShape shape = shape_of(c, which);
        std::vector<TensorPart> weights, biases;
        for (const LinearModule& module : modules) {
            if (module.linear != which) continue;
            weights.push_back({module.path + ".weight", module.out});
            biases.push_back({module.path + ".bias", module.out});
        }
        const bool ends_branch = which == Linear::o || which == Linear::down;
        const LinearRoles roles = roles_of(which);
        const std::string name = name_of(which);
        matrix(roles.weight, name + ".weight", shape, std::move(weights),
               ends_branch ? Init::residual_normal : Init::normal, c.family == Family::gpt2);
        if (with_bias) vector(roles.bias, name + ".bias", shape.N, Init::zero, std::move(biases));
    }
};

}  // namespace

std::vector<size_t> stored_shape(size_t rows, size_t cols, bool matrix, bool transposed) {
    if (!matrix) return {rows};
    return transposed ? std::vector<size_t>{cols, rows} : std::vector<size_t>{rows, cols};
}

std::vector<TensorSpec> layer_tensors(const ModelConfig& c, int layer) {
    const size_t C = c.C, HD = c.HD;
    const bool gpt2 = c.family == Family::gpt2, norm_bias = c.norm == NormKind::layer_norm;
    const std::string prefix = layer_prefix(c, layer), norm1 = prefix + (gpt2 ? "ln_1" : "input_layernorm"),
                      norm2 = prefix + (gpt2 ? "ln_2" : "post_attention_layernorm");
    const std::vector<LinearModule> modules = linear_modules(c, layer);
    TableBuilder t;
    t.vector(Role::norm1_weight, "norm1.weight", C, Init::one, norm1 + ".weight");
    if (norm_bias) t.vector(Role::norm1_bias, "norm1.bias", C, Init::zero, norm1 + ".bias");
    t.linear(c, Linear::qkv, c.qkv_bias, modules);
    if (c.qk_norm) {
        t.vector(Role::q_norm, "q_norm.weight", HD, Init::one, prefix + "self_attn.q_norm.weight");
        t.vector(Role::k_norm, "k_norm.weight", HD, Init::one, prefix + "self_attn.k_norm.weight");
    }
    t.linear(c, Linear::o, c.o_bias, modules);
    t.vector(Role::norm2_weight, "norm2.weight", C, Init::one, norm2 + ".weight");
    if (norm_bias) t.vector(Role::norm2_bias, "norm2.bias", C, Init::zero, norm2 + ".bias");
    t.linear(c, Linear::fc, c.mlp_bias, modules);
    t.linear(c, Linear::down, c.mlp_bias, modules);
    return t.specs;
}

std::vector<TensorSpec> outer_tensors(const ModelConfig& c) {
    const size_t C = c.C, V = c.V, positions = static_cast<size_t>(c.max_positions);
    const bool gpt2 = c.family == Family::gpt2;
    const std::string prefix = gpt2 ? "transformer." : "model.", norm = prefix + (gpt2 ? "ln_f" : "norm");
    TableBuilder t;
    t.matrix(Role::token_embedding, "token_embedding", {V, C},
             {{prefix + (gpt2 ? "wte.weight" : "embed_tokens.weight"), V}});
    if (c.learned_positions)
        t.matrix(Role::position_embedding, "position_embedding", {positions, C}, {{prefix + "wpe.weight", positions}});
    t.vector(Role::final_norm_weight, "final_norm.weight", C, Init::one, norm + ".weight");
    if (c.norm == NormKind::layer_norm)
        t.vector(Role::final_norm_bias, "final_norm.bias", C, Init::zero, norm + ".bias");
    if (!c.tied_head) t.matrix(Role::head, "head", {V, C}, {{"lm_head.weight", V}});
    return t.specs;
}

std::vector<TensorSpec> all_tensors(const ModelConfig& c) {
    std::vector<TensorSpec> all = outer_tensors(c);
    for (int l = 0; l < c.L; ++l)
        for (auto& spec : layer_tensors(c, l)) all.push_back(std::move(spec));
    return all;
}

size_t parameter_count(const ModelConfig& c) {
    size_t elems = 0;
    for (const TensorSpec& spec : all_tensors(c)) elems += spec.elems();
    return elems;
}

std::vector<LinearModule> linear_modules(const ModelConfig& c, int layer) {
    const std::string prefix = layer_prefix(c, layer);
    std::vector<LinearModule> modules;
    const auto add = [&](Linear linear, const char* name, size_t out) {
        size_t first_col = 0;  // after the modules of the same linear layer
        for (const LinearModule& m : modules)
            if (m.linear == linear) first_col += m.out;
        modules.push_back({.path = prefix + name,
                           .linear = linear,
                           .in = shape_of(c, linear).K,
                           .out = out,
                           .first_col = first_col,
                           .site = static_cast<int>(modules.size())});
    };
    const auto add_whole = [&](Linear linear, const char* name) { add(linear, name, shape_of(c, linear).N); };
    if (c.family == Family::gpt2) {
        add_whole(Linear::qkv, "attn.c_attn");
        add_whole(Linear::o, "attn.c_proj");
        add_whole(Linear::fc, "mlp.c_fc");
        add_whole(Linear::down, "mlp.c_proj");
    } else {
        const size_t gate_cols = shape_of(c, Linear::fc).N / 2;
        add(Linear::qkv, "self_attn.q_proj", query_cols(c));
        add(Linear::qkv, "self_attn.k_proj", key_cols(c));
        add(Linear::qkv, "self_attn.v_proj", key_cols(c));
        add_whole(Linear::o, "self_attn.o_proj");
        add(Linear::fc, "mlp.gate_proj", gate_cols);
        add(Linear::fc, "mlp.up_proj", gate_cols);
        add_whole(Linear::down, "mlp.down_proj");
    }
    return modules;
}

bool is_ignorable_key(const ModelConfig& c, const std::string& key) {
    const auto ends_with = [&](const char* suffix) { return key.ends_with(suffix); };
    if (c.family == Family::gpt2 && (ends_with(".attn.bias") || ends_with(".attn.masked_bias"))) return true;
    if (ends_with(".rotary_emb.inv_freq")) return true;
    return c.tied_head && key == "lm_head.weight";  // the same numbers as the token embedding
}

std::vector<std::string> key_spellings(const std::string& key) {
    for (const char* prefix : {"transformer.", "model."})
        if (key.starts_with(prefix)) return {key, key.substr(std::string(prefix).size())};
    return {key};
}

}  // namespace slab::train
