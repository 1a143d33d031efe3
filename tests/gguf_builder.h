// GGUF files for tests, put together byte by byte: valid ones, and ones that lie where a test wants them to.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "data/gguf/gguf.h"

namespace slab::test {

template <class T>
std::string raw(T value) {
    return {reinterpret_cast<const char*>(&value), sizeof value};
}
inline std::string gguf_text(const std::string& text) {
    return raw<uint64_t>(text.size()) + text;
}

struct GgufBuilder {
    struct Tensor {
        std::string name;
        uint32_t type;
        std::vector<uint64_t> shape;  // in GGUF's order, fastest first
        std::string bytes;
    };
    std::string magic = "GGUF";
    uint32_t version = 3;
    uint64_t alignment = 32;          // also where a file says another
    std::vector<std::string> values;  // key, type, value
    std::vector<Tensor> tensors;

    void value(const std::string& key, uint32_t type, const std::string& bytes) {
        values.push_back(gguf_text(key) + raw(type) + bytes);
    }
    void set(const std::string& key, const std::string& text) { value(key, 8, gguf_text(text)); }
    void set(const std::string& key, const char* text) { set(key, std::string(text)); }
    void set(const std::string& key, uint32_t number) { value(key, 4, raw(number)); }
    void set(const std::string& key, int32_t number) { value(key, 5, raw(number)); }
    void set(const std::string& key, float number) { value(key, 6, raw(number)); }
    void set(const std::string& key, bool yes) { value(key, 7, raw<uint8_t>(yes)); }
    void set(const std::string& key, const std::vector<std::string>& texts) {
        std::string bytes = raw<uint32_t>(8) + raw<uint64_t>(texts.size());
        for (const auto& text : texts) bytes += gguf_text(text);
        value(key, 9, bytes);
    }
    void set(const std::string& key, const std::vector<int32_t>& numbers) {
        std::string bytes = raw<uint32_t>(5) + raw<uint64_t>(numbers.size());
        for (const auto& number : numbers) bytes += raw(number);
        value(key, 9, bytes);
    }
    void tensor(const std::string& name, data::GgmlType type, std::vector<uint64_t> shape, std::string bytes) {
        tensors.push_back({name, static_cast<uint32_t>(type), std::move(shape), std::move(bytes)});
    }

    static std::string describe(const Tensor& tensor, uint64_t offset_bytes) {
        std::string bytes = gguf_text(tensor.name) + raw<uint32_t>(tensor.shape.size());
        for (const uint64_t size : tensor.shape) bytes += raw(size);
        return bytes + raw(tensor.type) + raw(offset_bytes);
    }
    std::string file() const {
        std::string bytes = magic + raw(version) + raw<uint64_t>(tensors.size()) + raw<uint64_t>(values.size());
        std::string data;
        for (const auto& value : values) bytes += value;
        for (const auto& tensor : tensors) {
            bytes += describe(tensor, data.size());
            data += tensor.bytes;
            data.resize((data.size() + alignment - 1) / alignment * alignment);
        }
        bytes.resize((bytes.size() + alignment - 1) / alignment * alignment);
        return bytes + data;
    }
};

// A llama that loads: C = 32, NH = 4, NKV = 2, HD = 8, I = 32, V = 5. type_of(name) says how each tensor is stored, in
// the file's order; every byte of the weights is `fill`.
inline GgufBuilder gguf_llama(uint32_t L, const std::function<data::GgmlType(const std::string& name)>& type_of,
                              char fill) {
    GgufBuilder b;
    b.set("general.architecture", "llama");
    b.set("llama.block_count", L);
    b.set("llama.context_length", uint32_t{64});
    b.set("llama.embedding_length", uint32_t{32});
    b.set("llama.feed_forward_length", uint32_t{32});
    b.set("llama.attention.head_count", uint32_t{4});
    b.set("llama.attention.head_count_kv", uint32_t{2});
    b.set("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    const auto add = [&](const std::string& name, uint64_t rows, uint64_t cols) {
        const data::GgmlTypeInfo& info = data::info_of(type_of(name));
        b.tensor(name, info.type, rows == 1 ? std::vector<uint64_t>{cols} : std::vector<uint64_t>{cols, rows},
                 std::string(rows * cols / info.block_elems * info.block_bytes, fill));
    };
    add("token_embd.weight", 5, 32);
    add("output_norm.weight", 1, 32);
    for (uint32_t l = 0; l < L; ++l) {
        const std::string layer = "blk." + std::to_string(l) + ".";
        add(layer + "attn_norm.weight", 1, 32);
        add(layer + "attn_q.weight", 32, 32);
        add(layer + "attn_k.weight", 16, 32);
        add(layer + "attn_v.weight", 16, 32);
        add(layer + "attn_output.weight", 32, 32);
        add(layer + "ffn_norm.weight", 1, 32);
        for (const char* matrix : {"ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"}) add(layer + matrix, 32, 32);
    }
    return b;
}

}  // namespace slab::test
