// Tiny base models that are stored in blocks: GGUF files with a mix of types, and bitsandbytes' 4-bit directories.
// Blocks are random, with scales that leave a model to train.
#pragma once

#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "kernels/block_formats.h"
#include "kernels/half.h"
#include "tests/gguf_builder.h"
#include "tests/tiny_model.h"
#include "train/files/base_config.h"
#include "train/files/gguf_weights.h"
#include "train/spec/tensor_table.h"

namespace slab::test {

// A llama whose rows are whole blocks of every type: C = 256, I = 512.
inline train::ModelConfig wide_llama(int L = 3) {
    train::ModelConfig c;
    c.family = train::Family::llama;
    c.L = L;
    c.C = 256, c.NH = 4, c.NKV = 1, c.HD = 64, c.I = 512, c.V = 60, c.max_positions = 40;
    c.norm_eps = 1e-5f;
    c.bos_token = 1, c.eos_token = 2;
    return c;
}

// Random blocks of ggml's type whose values are below about 0.1.
inline std::string small_blocks(data::GgmlType type, size_t elems, unsigned seed) {
    using enum data::GgmlType;
    std::mt19937 random(seed);
    const auto factor = [&] { return 0.5f + static_cast<float>(random() % 1000) * 5e-4f; };
    if (type == f32 || type == f16 || type == bf16) {
        std::string bytes;
        for (size_t i = 0; i < elems; ++i) {
            const float value = 0.2f * factor() - 0.15f;
            bytes += type == f32 ? raw(value) : type == bf16 ? raw(to_bf16(value).bits) : raw(narrow_f16(value));
        }
        return bytes;
    }
    const data::GgmlTypeInfo& info = data::info_of(type);
    // Of d, and of the second scale, which is subtracted in the K types and added in the others.
    static const std::map<data::GgmlType, std::pair<float, float>> scales = {
        {q8_0, {8e-4f, 0}},       {q4_0, {0.0125f, 0}},     {q4_1, {0.0133f, -0.1f}}, {q5_0, {6e-3f, 0}},
        {q5_1, {6.5e-3f, -0.1f}}, {q4_k, {2e-4f, 1.6e-3f}}, {q5_k, {1e-4f, 1.6e-3f}}, {q6_k, {2.4e-5f, 0}}};
    const auto [d, second] = scales.at(type);
    std::string bytes(elems / info.block_elems * info.block_bytes, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    for (size_t at = 0; at < bytes.size(); at += info.block_bytes) {
        const auto put_half = [&](size_t offset, float value) {
            bytes.replace(at + offset, 2, raw(narrow_f16(value * factor())));
        };
        put_half(type == q6_k ? 208 : 0, d);
        if (second != 0) put_half(2, second);
    }
    return bytes;
}

// Which type a GGUF's matrix has, by layer and by its key; a mix in which layers differ.
inline data::GgmlType mixed_type(const std::string& key) {
    using enum data::GgmlType;
    static const data::GgmlType types[] = {q4_k, q6_k, q8_0, q5_k, q4_0, f16, q5_1, q4_1, q5_0, bf16};
    unsigned sum = 0;
    for (const char c : key) sum = sum * 31 + static_cast<unsigned char>(c);
    return types[sum % std::size(types)];
}

// The GGUF file of a llama; type_of says what each matrix is stored as, by the key of its TensorPart.
inline GgufBuilder gguf_of(const train::ModelConfig& c,
                           const std::function<data::GgmlType(const std::string& key)>& type_of) {
    GgufBuilder b;
    b.set("general.architecture", "llama");
    b.set("llama.block_count", static_cast<uint32_t>(c.L));
    b.set("llama.context_length", static_cast<uint32_t>(c.max_positions));
    b.set("llama.embedding_length", static_cast<uint32_t>(c.C));
    b.set("llama.feed_forward_length", static_cast<uint32_t>(c.I));
    b.set("llama.attention.head_count", static_cast<uint32_t>(c.NH));
    b.set("llama.attention.head_count_kv", static_cast<uint32_t>(c.NKV));
    b.set("llama.attention.key_length", static_cast<uint32_t>(c.HD));
    b.set("llama.attention.value_length", static_cast<uint32_t>(c.HD));
    b.set("llama.attention.layer_norm_rms_epsilon", c.norm_eps);
    unsigned seed = 0;
    for (const train::TensorSpec& spec : train::all_tensors(c))
        for (const train::TensorPart& part : spec.parts) {
            const data::GgmlType type = spec.matrix ? type_of(part.key) : data::GgmlType::f32;
            std::string bytes = small_blocks(type, part.rows * spec.cols, ++seed);
            if (spec.init == train::Init::one) {
                bytes.clear();
                for (size_t i = 0; i < part.rows; ++i) bytes += raw(1.0f + 0.1f * static_cast<float>(i % 7));
            }
            b.tensor(train::gguf_name(part.key), type,
                     spec.matrix ? std::vector<uint64_t>{spec.cols, part.rows} : std::vector<uint64_t>{part.rows},
                     std::move(bytes));
        }
    return b;
}

// A base in a GGUF file of mixed types.
struct MixedGguf {
    FreshDirectory dir;
    std::filesystem::path path = dir.path / "mixed.gguf";
    train::ModelConfig config;
    explicit MixedGguf(const train::ModelConfig& c = wide_llama()) : config(c) {
        put(path, gguf_of(config, mixed_type).file());
        config = train::read_base_config(path);
    }
    train::BaseWeights weights() const { return train::BaseWeights::from_files(path, config); }
};

// Tensors of a bitsandbytes directory, by name, before they are written; a test may change them.
struct BnbTensor {
    train::DType dtype;
    std::vector<size_t> shape;
    std::string bytes;
};
using BnbTensors = std::map<std::string, BnbTensor>;

// One matrix in 4 bits, with scales that are bytes themselves, and the values that it stands for. plain: the scales are
// float32.
inline std::vector<float> add_bnb_matrix(BnbTensors& tensors, const std::string& name, size_t rows, size_t cols,
                                         unsigned seed, bool plain = false) {
    constexpr size_t block = 64, nested_block = 256;
    std::mt19937 random(seed);
    const size_t elems = rows * cols, blocks = (elems + block - 1) / block,
                 outers = (blocks + nested_block - 1) / nested_block;
    const float offset = 0.07f;
    std::vector<float> map(256), outer(outers), scales(blocks), values(elems);
    for (size_t i = 0; i < map.size(); ++i) map[i] = static_cast<float>(i) / 255 - 0.5f;
    for (float& x : outer) x = 0.05f + static_cast<float>(random() % 100) * 1e-4f;
    std::string codes((elems + 1) / 2, '\0'), indices(blocks, '\0'), map_bytes;
    for (char& byte : codes) byte = static_cast<char>(random());
    for (size_t i = 0; i < blocks; ++i) {
        indices[i] = static_cast<char>(random());
        const float product = map[static_cast<uint8_t>(indices[i])] * outer[i / nested_block];
        volatile float rounded = product;  // two roundings, as bitsandbytes has them
        scales[i] = rounded + offset;
    }
    for (size_t i = 0; i < elems; ++i) {
        const auto byte = static_cast<uint8_t>(codes[i / 2]);
        values[i] = kNf4Values[i % 2 == 0 ? byte >> 4 : byte & 15] * scales[i / block];
    }
    const auto bytes_of = [](const auto& numbers) {
        return std::string(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof numbers[0]);
    };
    for (const float value : kNf4Values) map_bytes += raw(value);
    std::string state = R"({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [)" +
                        std::to_string(rows) + ", " + std::to_string(cols) + "]";
    if (!plain) state += R"(, "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.07)";
    state += "}";
    using enum train::DType;
    tensors[name] = {u8, {codes.size(), 1}, codes};
    tensors[name + ".absmax"] = plain ? BnbTensor{f32, {blocks}, bytes_of(scales)} : BnbTensor{u8, {blocks}, indices};
    tensors[name + ".quant_map"] = {f32, {16}, map_bytes};
    tensors[name + ".quant_state.bitsandbytes__nf4"] = {u8, {state.size()}, state};
    if (plain) return values;
    tensors[name + ".nested_absmax"] = {f32, {outers}, bytes_of(outer)};
    tensors[name + ".nested_quant_map"] = {f32, {256}, bytes_of(map)};
    return values;
}

inline void write_bnb_tensors(const std::filesystem::path& file, const BnbTensors& tensors) {
    train::SafetensorsWriter writer;
    for (const auto& [name, tensor] : tensors) writer.add(name, tensor.dtype, tensor.shape, tensor.bytes.data());
    writer.write(file);
}

inline const char* bnb_config_text() {
    return R"("quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": true, "load_in_8bit": false,
 "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": true, "bnb_4bit_compute_dtype": "bfloat16",
 "bnb_4bit_quant_storage": "uint8", "llm_int8_threshold": 6.0, "llm_int8_skip_modules": null},
)";
}

// A 4-bit directory of the config's model, and beside it one of the values that it stands for. In the first layer
// down_proj is not in 4 bits, as in directories that keep some matrices; scales of up_proj are plain.
struct BnbBase {
    train::ModelConfig config;
    FreshDirectory dir;
    std::filesystem::path path = dir.path / "bnb-4bit", decoded = dir.path / "decoded";
    BnbTensors tensors;

    explicit BnbBase(const train::ModelConfig& c) : config(c) {
        std::filesystem::create_directories(path);
        std::filesystem::create_directories(decoded);
        write_tiny_model(path, config);  // its config.json
        std::string text = content(path / "config.json");
        text.insert(text.find('{') + 1, bnb_config_text());
        put(path / "config.json", text);
        unsigned seed = 0;
        write_tiny_model(decoded, config, [&](const train::TensorSpec& spec, std::vector<float>& values) {
            const size_t part_index = next_part_[spec.parts[0].key]++;
            const train::TensorPart& part = spec.parts[part_index];
            const bool in_layer = part.key.starts_with("model.layers.");
            const bool kept = part.key == "model.layers.0.mlp.down_proj.weight";
            if (spec.matrix && in_layer && !kept) {
                values = add_bnb_matrix(tensors, part.key, part.rows, spec.cols, ++seed,
                                        part.key.find("up_proj") != std::string::npos);
                return;
            }
            tensors[part.key] = {
                train::DType::f32, train::stored_shape(spec, part),
                std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float))};
        });
        write();
        config.stored_in_4bit = true;
    }
    void write() const { write_bnb_tensors(path / "model.safetensors", tensors); }
    train::BaseWeights weights() const { return train::BaseWeights::from_files(path, config); }

  private:
    std::map<std::string, size_t> next_part_;
};

// Of tests/blocks/llama_4bit, the BnbBase that hostile_test.sh spoils; tokens are bytes.
inline train::ModelConfig four_bit_fixture_config() {
    train::ModelConfig c = tiny_config("llama", 1);
    c.qkv_bias = c.o_bias = c.mlp_bias = false;
    c.rope_scaling = {};
    c.tied_head = true;
    c.C = 64, c.NH = 2, c.NKV = 1, c.HD = 32, c.I = 64, c.V = 260;
    return c;
}

}  // namespace slab::test
