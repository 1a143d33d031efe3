// The table of weights, family by family. See tensor_table.h.
#include "train/spec/tensor_table.h"

#include <algorithm>

namespace slab::train {

namespace {

// Collects the tensors of one layer (or of the outside) under a common key prefix.
struct TableBuilder {
    std::string prefix;
    bool transposed;  // matrices are Conv1D's
    std::vector<TensorSpec> specs;

    void vector(Role role, const char* name, size_t n, std::vector<TensorPart> parts) {
        for (auto& part : parts) part.key = prefix + part.key;
        specs.push_back({role, name, n, 1, false, false, false, std::move(parts)});
    }
    void vector(Role role, const char* name, size_t n, const char* key) { vector(role, name, n, {{key, n}}); }
    void matrix(Role role, const char* name, size_t rows, size_t cols, std::vector<TensorPart> parts) {
        for (auto& part : parts) part.key = prefix + part.key;
        specs.push_back({role, name, rows, cols, true, true, transposed, std::move(parts)});
    }
    void matrix(Role role, const char* name, size_t rows, size_t cols, const char* key) {
        matrix(role, name, rows, cols, {{key, rows}});
    }
};

std::string layer_prefix(const ModelConfig& c, int layer) {
    return (c.family == Family::gpt2 ? "transformer.h." : "model.layers.") + std::to_string(layer) + ".";
}

std::vector<TensorSpec> gpt2_layer(const ModelConfig& c, int layer) {
    TableBuilder t{layer_prefix(c, layer), true, {}};
    const size_t C = c.C, I = c.I;
    t.vector(Role::norm1_weight, "norm1.weight", C, "ln_1.weight");
    t.vector(Role::norm1_bias, "norm1.bias", C, "ln_1.bias");
    t.matrix(Role::qkv_weight, "qkv.weight", 3 * C, C, "attn.c_attn.weight");
    t.vector(Role::qkv_bias, "qkv.bias", 3 * C, "attn.c_attn.bias");
    t.matrix(Role::o_weight, "o.weight", C, C, "attn.c_proj.weight");
    t.vector(Role::o_bias, "o.bias", C, "attn.c_proj.bias");
    t.vector(Role::norm2_weight, "norm2.weight", C, "ln_2.weight");
    t.vector(Role::norm2_bias, "norm2.bias", C, "ln_2.bias");
    t.matrix(Role::fc_weight, "fc.weight", I, C, "mlp.c_fc.weight");
    t.vector(Role::fc_bias, "fc.bias", I, "mlp.c_fc.bias");
    t.matrix(Role::down_weight, "down.weight", C, I, "mlp.c_proj.weight");
    t.vector(Role::down_bias, "down.bias", C, "mlp.c_proj.bias");
    return t.specs;
}

std::vector<TensorSpec> llama_layer(const ModelConfig& c, int layer) {
    TableBuilder t{layer_prefix(c, layer), false, {}};
    const size_t C = c.C, I = c.I, HD = c.HD, QC = attn_cols(c), KC = static_cast<size_t>(c.NKV) * HD;
    t.vector(Role::norm1_weight, "norm1.weight", C, "input_layernorm.weight");
    t.matrix(Role::qkv_weight, "qkv.weight", QC + 2 * KC, C,
             {{"self_attn.q_proj.weight", QC}, {"self_attn.k_proj.weight", KC}, {"self_attn.v_proj.weight", KC}});
    if (c.qkv_bias)
        t.vector(Role::qkv_bias, "qkv.bias", QC + 2 * KC,
                 {{"self_attn.q_proj.bias", QC}, {"self_attn.k_proj.bias", KC}, {"self_attn.v_proj.bias", KC}});
    if (c.qk_norm) {
        t.vector(Role::q_norm, "q_norm.weight", HD, "self_attn.q_norm.weight");
        t.vector(Role::k_norm, "k_norm.weight", HD, "self_attn.k_norm.weight");
    }
    t.matrix(Role::o_weight, "o.weight", C, QC, "self_attn.o_proj.weight");
    if (c.o_bias) t.vector(Role::o_bias, "o.bias", C, "self_attn.o_proj.bias");
    t.vector(Role::norm2_weight, "norm2.weight", C, "post_attention_layernorm.weight");
    t.matrix(Role::fc_weight, "fc.weight", 2 * I, C, {{"mlp.gate_proj.weight", I}, {"mlp.up_proj.weight", I}});
    if (c.mlp_bias) t.vector(Role::fc_bias, "fc.bias", 2 * I, {{"mlp.gate_proj.bias", I}, {"mlp.up_proj.bias", I}});
    t.matrix(Role::down_weight, "down.weight", C, I, "mlp.down_proj.weight");
    if (c.mlp_bias) t.vector(Role::down_bias, "down.bias", C, "mlp.down_proj.bias");
    return t.specs;
}

}  // namespace

std::vector<size_t> stored_shape(size_t rows, size_t cols, bool matrix, bool transposed) {
    if (!matrix) return {rows};
    return transposed ? std::vector<size_t>{cols, rows} : std::vector<size_t>{rows, cols};
}

void transpose(const float* src, size_t rows, size_t cols, float* dst) {
    // In squares, so that both sides are read and written a cache line at a time.
    constexpr size_t kSide = 16;
    for (size_t row0 = 0; row0 < rows; row0 += kSide)
        for (size_t col0 = 0; col0 < cols; col0 += kSide)
            for (size_t row = row0; row < std::min(rows, row0 + kSide); ++row)
                for (size_t col = col0; col < std::min(cols, col0 + kSide); ++col)
                    dst[col * rows + row] = src[row * cols + col];
}

std::vector<TensorSpec> layer_tensors(const ModelConfig& c, int layer) {
    return c.family == Family::gpt2 ? gpt2_layer(c, layer) : llama_layer(c, layer);
}

std::vector<TensorSpec> outer_tensors(const ModelConfig& c) {
    const size_t C = c.C, V = c.V;
    const bool gpt2 = c.family == Family::gpt2;
    TableBuilder t{gpt2 ? "transformer." : "model.", false, {}};
    t.matrix(Role::token_embedding, "token_embedding", V, C, gpt2 ? "wte.weight" : "embed_tokens.weight");
    if (c.learned_positions)
        t.matrix(Role::position_embedding, "position_embedding", static_cast<size_t>(c.max_positions), C, "wpe.weight");
    t.vector(Role::final_norm_weight, "final_norm.weight", C, gpt2 ? "ln_f.weight" : "norm.weight");
    if (c.norm == NormKind::layer_norm) t.vector(Role::final_norm_bias, "final_norm.bias", C, "ln_f.bias");
    t.prefix.clear();
    if (!c.tied_head) t.matrix(Role::head, "head", V, C, "lm_head.weight");
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
    const std::string p = layer_prefix(c, layer);
    const size_t C = c.C, I = c.I, QC = attn_cols(c), KC = static_cast<size_t>(c.NKV) * c.HD;
    if (c.family == Family::gpt2)
        return {{p + "attn.c_attn", Linear::qkv, C, 3 * C, 0, 0},
                {p + "attn.c_proj", Linear::o, C, C, 0, 1},
                {p + "mlp.c_fc", Linear::fc, C, I, 0, 2},
                {p + "mlp.c_proj", Linear::down, I, C, 0, 3}};
    return {{p + "self_attn.q_proj", Linear::qkv, C, QC, 0, 0},
            {p + "self_attn.k_proj", Linear::qkv, C, KC, QC, 1},
            {p + "self_attn.v_proj", Linear::qkv, C, KC, QC + KC, 2},
            {p + "self_attn.o_proj", Linear::o, QC, C, 0, 3},
            {p + "mlp.gate_proj", Linear::fc, C, I, 0, 4},
            {p + "mlp.up_proj", Linear::fc, C, I, I, 5},
            {p + "mlp.down_proj", Linear::down, I, C, 0, 6}};
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
