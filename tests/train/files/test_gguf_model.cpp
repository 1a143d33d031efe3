// Base models from GGUF files (tests/gguf, made by dev/reference/make_gguf.py). Number types are compared with the gguf
// package's values, whole models bit for bit with their Hugging Face form. Files that do not fit are refused.
#include <doctest/doctest.h>

#include <cstring>
#include <map>

#include "kernels/runtime/thread_pool.h"
#include "tests/gguf_builder.h"
#include "tests/kernel_checks.h"
#include "tests/temporary_files.h"
#include "tests/tiny_model.h"
#include "train/files/base_config.h"
#include "train/files/base_tokenizer.h"
#include "train/files/base_weights.h"
#include "train/files/gguf_blocks.h"
#include "train/files/gguf_config.h"
#include "train/files/gguf_weights.h"
#include "train/files/model_config_writer.h"
#include "train/run/run_setup.h"

using namespace slab;
using namespace slab::train;
using data::GgmlType;
using data::GgufFile;
using slab::test::content;
using slab::test::error_of;
using slab::test::FreshDirectory;
using slab::test::GgufBuilder;
using slab::test::has;
using slab::test::put;
using slab::test::raw;
using slab::test::same_bits;
namespace fs = std::filesystem;

namespace {

const char* const kModels[] = {"llama", "llama3", "llama_mixed", "qwen2", "qwen3", "gpt2"};

template <class T>
std::vector<T> read_all(BaseWeights& weights, const TensorSpec& spec, ThreadPool& pool) {
    std::vector<T> values(spec.elems());
    weights.read(spec, values.data(), pool);
    return values;
}

// One layer in several number types. Weights are all 0.
GgufBuilder llama() {
    const std::map<std::string, GgmlType> types = {{"token_embd.weight", GgmlType::q8_0},
                                                   {"blk.0.attn_q.weight", GgmlType::q4_0},
                                                   {"blk.0.attn_k.weight", GgmlType::f16},
                                                   {"blk.0.attn_v.weight", GgmlType::bf16},
                                                   {"blk.0.attn_output.weight", GgmlType::q4_1}};
    const auto type_of = [&](const std::string& name) { return types.count(name) ? types.at(name) : GgmlType::f32; };
    return test::gguf_llama(1, type_of, '\0');
}

// Opens and reads all of the file as a base model; the error must name the file.
std::string error_loading(const fs::path& path) {
    const std::string error = error_of([&] {
        const ModelConfig config = read_base_config(path);
        BaseWeights weights = BaseWeights::from_files(path, config);
        ThreadPool pool(1);
        for (const TensorSpec& spec : all_tensors(config)) read_all<float>(weights, spec, pool);
    });
    if (!error.empty()) CHECK(has(error, path.string()));
    return error;
}

std::string error_loading(const GgufBuilder& builder) {
    const FreshDirectory dir;
    put(dir.path / "hostile.gguf", builder.file());
    return error_loading(dir.path / "hostile.gguf");
}

template <class Change>
std::string error_with(Change change) {
    GgufBuilder b = llama();
    change(b);
    return error_loading(b);
}

// Replaces or adds a value.
template <class T>
std::string error_with_value(const std::string& key, const T& value) {
    return error_with([&](GgufBuilder& b) {
        std::erase_if(b.values, [&](const std::string& v) { return v.substr(8, key.size()) == key; });
        b.set(key, value);
    });
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("GGUF: every number type decodes to the bits of the gguf package, in any range of rows") {
        const GgufFile file("tests/gguf/quants.gguf");
        size_t types = 0;
        for (const auto& tensor : file.tensors()) {
            if (tensor.name.ends_with(".values")) continue;
            CAPTURE(tensor.name);
            CHECK(tensor.name == data::info_of(tensor.type).name);
            const data::GgufTensor* expected = file.find(tensor.name + ".values");
            REQUIRE(expected != nullptr);
            std::vector<float> want(expected->elems), got(tensor.elems);
            file.read(*expected, 0, want.data(), expected->bytes);
            std::vector<std::byte> blocks(tensor.bytes);
            file.read(tensor, 0, blocks.data(), blocks.size());
            decode_blocks(tensor.type, blocks.data(), got.data(), got.size());
            CHECK(same_bits(got, want));
            const size_t half = tensor.elems / 2;
            decode_blocks(tensor.type, blocks.data() + tensor.bytes / 2, got.data(), half);
            CHECK(std::memcmp(got.data(), want.data() + half, half * sizeof(float)) == 0);
            ++types;
        }
        CHECK(types == 11);
    }

    TEST_CASE("GGUF: a model has the config and the bits of its Hugging Face form") {
        ThreadPool pool(2);
        for (const char* name : kModels) {
            CAPTURE(name);
            const FreshDirectory dir;
            const fs::path gguf = fs::path("tests/gguf") / name / "model.gguf", directory = gguf.parent_path();
            const ModelConfig got = read_base_config(gguf), want = read_base_config(directory);
            put(dir.path / "got.json", model_config_json(got, "float32"));
            put(dir.path / "want.json", model_config_json(want, "float32"));
            CHECK(content(dir.path / "got.json") == content(dir.path / "want.json"));
            CHECK(got.qkv_bias == want.qkv_bias);
            CHECK(got.o_bias == want.o_bias);
            CHECK(got.mlp_bias == want.mlp_bias);
            CHECK(got.rope_scaling.llama3 == (name == std::string("llama3")));

            BaseWeights from_gguf = BaseWeights::from_files(gguf, got);
            BaseWeights from_directory = BaseWeights::from_files(directory, want);
            for (const TensorSpec& spec : all_tensors(want)) {
                CAPTURE(spec.parts[0].key);
                CHECK(same_bits(read_all<float>(from_gguf, spec, pool), read_all<float>(from_directory, spec, pool)));
                CHECK(same_bits(read_all<bf16>(from_gguf, spec, pool), read_all<bf16>(from_directory, spec, pool)));
            }
            CHECK(from_gguf.inexact_elems() == from_directory.inexact_elems());
        }
    }

    TEST_CASE("GGUF: a file under any name is its own tokenizer, a directory named *.gguf is not") {
        const FreshDirectory dir;
        const fs::path gguf = "tests/gguf/llama/model.gguf", renamed = dir.path / "blob", named = dir.path / "d.gguf";
        fs::copy_file(gguf, renamed);
        fs::create_directory(named);
        put(named / "tokenizer.json", "{}");
        for (const fs::path& file : {gguf, renamed}) CHECK(base_tokenizer_path(file, read_base_config(file)) == file);
        CHECK(base_tokenizer_path(named, read_base_config(gguf)) == named);
    }

    TEST_CASE("GGUF: rows come in any piece, reordered or not") {
        const fs::path path = "tests/gguf/llama_mixed/model.gguf";
        const ModelConfig config = read_base_config(path);
        const GgufWeights weights(path, config);
        for (const TensorSpec& spec : layer_tensors(config, 1))
            for (const TensorPart& part : spec.parts) {
                CAPTURE(part.key);
                std::vector<float> all(part.rows * spec.cols);
                weights.read_rows(spec, part, 0, part.rows, all.data());
                for (size_t first = 0; first < part.rows; first += 3)
                    for (const size_t rows : {size_t{1}, size_t{2}, size_t{11}}) {
                        if (rows > part.rows - first) continue;
                        std::vector<float> some(rows * spec.cols);
                        weights.read_rows(spec, part, first, rows, some.data());
                        CHECK(std::memcmp(some.data(), all.data() + first * spec.cols, some.size() * sizeof(float)) ==
                              0);
                    }
                std::vector<float> none(1);
                CHECK_THROWS_AS(weights.read_rows(spec, part, part.rows, 1, none.data()), std::out_of_range);
            }
    }

    TEST_CASE("GGUF: names, and the order of rotary rows") {
        CHECK(gguf_name("model.layers.12.self_attn.q_proj.weight") == "blk.12.attn_q.weight");
        CHECK(gguf_name("model.layers.0.mlp.down_proj.bias") == "blk.0.ffn_down.bias");
        CHECK(gguf_name("model.embed_tokens.weight") == "token_embd.weight");
        CHECK(gguf_name("lm_head.weight") == "output.weight");
        CHECK(gguf_name("transformer.h.3.attn.c_attn.bias") == "blk.3.attn_qkv.bias");
        CHECK(gguf_name("transformer.ln_f.bias") == "output_norm.bias");
        for (const char* none : {"", "weight", "model.layers.1.weight", "model.layers..mlp.up_proj.weight",
                                 "model.layers.1.mlp.up_proj", "model.layers.1.mlp.other.weight"})
            CHECK(gguf_name(none).empty());
        // Head of 6: pairs (0, 3), (1, 4), (2, 5) lie side by side in GGUF.
        const size_t expected[] = {0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11};
        for (size_t row = 0; row < 12; ++row) CHECK(gguf_row(row, 6) == expected[row]);
    }

    TEST_CASE("GGUF: models that are not implemented, or not whole, are refused by name") {
        CHECK(error_loading(llama()).empty());
        CHECK(has(error_with_value("general.architecture", "gemma2"), "\"gemma2\""));
        CHECK(has(error_with_value("general.type", "adapter"), "general.type"));
        CHECK(has(error_with_value("split.count", uint32_t{3}), "3 parts"));
        CHECK(has(error_with_value("llama.expert_count", uint32_t{8}), "llama.expert_count"));
        CHECK(has(error_with_value("llama.attention.value_length", uint32_t{4}), "attention.value_length"));
        CHECK(has(error_with_value("llama.attention.key_length", uint32_t{7}), "even head size"));
        CHECK(has(error_with_value("llama.attention.head_count_kv", uint32_t{3}), "divisor"));
        CHECK(has(error_with_value("llama.attention.head_count", uint32_t{5}), "attention.head_count"));
        CHECK(has(error_with_value("llama.attention.head_count", uint32_t{0}), "from 1 to"));
        CHECK(has(error_with_value("llama.attention.layer_norm_rms_epsilon", std::nanf("")), "epsilon"));
        CHECK(has(error_with_value("llama.rope.dimension_count", uint32_t{4}), "partial rotation"));
        CHECK(has(error_with_value("llama.rope.scaling.type", "yarn"), "\"yarn\""));
        CHECK(has(error_with_value("llama.rope.scaling.factor", 4.0f), "linear rotary scaling"));
        CHECK(has(error_with_value("llama.attention.sliding_window", uint32_t{16}), "sliding_window"));
        CHECK(has(error_with_value("llama.block_count", uint32_t{2}), "blk.1.attn_norm.weight"));
        CHECK(has(error_with_value("llama.block_count", uint32_t{10001}), "block_count"));
        CHECK(has(error_with_value("llama.embedding_length", uint32_t{64}), "token_embd.weight"));
        CHECK(has(error_with_value("llama.feed_forward_length", uint32_t{64}), "blk.0.ffn_gate.weight"));
        CHECK(
            has(error_with_value("llama.attention.causal", false), "\"llama.attention.causal\" is false; wanted true"));
        CHECK(error_with_value("llama.attention.causal", true).empty());
        CHECK(error_with_value("llama.attention.something", uint32_t{0}).empty());
        CHECK(error_with_value("llama.vocab_size", uint32_t{5}).empty());

        const auto has_error = [](auto change, const char* what) {
            const std::string error = error_with(change);
            INFO(error);
            return has(error, what);
        };
        CHECK(has_error([](auto& b) { b.tensors.erase(b.tensors.begin() + 3); }, "\"blk.0.attn_q.weight\" is missing"));
        CHECK(has_error([](auto& b) { b.tensors[3].name = "blk.0.attn_other.weight"; }, "is missing"));
        CHECK(has_error([](auto& b) { b.tensor("blk.0.attn_gate.weight", GgmlType::f32, {1}, std::string(4, '\0')); },
                        "\"blk.0.attn_gate.weight\" is not part of a llama"));
        CHECK(has_error([](auto& b) { b.tensor("blk.0.attn_q.bias", GgmlType::f32, {32}, std::string(128, '\0')); },
                        "attn_q.bias"));
        CHECK(
            has_error([](auto& b) { std::swap(b.tensors[4].shape[0], b.tensors[4].shape[1]); }, "has shape [32, 16]"));
        const auto with_factors = [&](std::vector<float> factors) {
            return error_with([&](GgufBuilder& b) {
                b.tensor("rope_freqs.weight", GgmlType::f32, {factors.size()},
                         {reinterpret_cast<const char*>(factors.data()), factors.size() * sizeof(float)});
            });
        };
        CHECK(with_factors({1, 1, 1, 1}).empty());
        CHECK(has(with_factors({1, 1, 1}), "half a head"));
        CHECK(has(with_factors({1, 2, 1, 8}), "rotary scaling"));
        CHECK(has(with_factors({1, 1, 1, std::nanf("")}), "rotary scaling"));
        CHECK(has(with_factors({0, 0, 0, 0}), "rotary scaling"));
        CHECK(has(with_factors({1, 1, 1, -8}), "rotary scaling"));
    }

    TEST_CASE("GGUF: numbers that are not finite are refused, naming the tensor") {
        const std::string infinity = raw<uint16_t>(0x7c00), nan = raw<uint16_t>(0x7e00);
        const auto error = [&](size_t tensor, size_t at, const std::string& bytes) {
            return error_with([&](GgufBuilder& b) { b.tensors[tensor].bytes.replace(at, bytes.size(), bytes); });
        };
        const std::string q8 = error(0, 34 * 3, nan);
        CHECK(has(q8, "\"token_embd.weight\" (Q8_0 [5, 32])"));
        CHECK(has(q8, "NaN at element 96"));
        CHECK(has(error(3, 18 * 30, infinity), "\"blk.0.attn_q.weight\""));
        CHECK(has(error(4, 2 * 33, infinity), "an infinity at element 33"));
        CHECK(has(error(5, 2, raw<uint16_t>(0x7f80)), "\"blk.0.attn_v.weight\""));
        CHECK(has(error(6, 2, nan), "\"blk.0.attn_output.weight\""));
        CHECK(has(error(1, 4, raw(std::nanf(""))), "\"output_norm.weight\""));

        // Finite in float, too large for bf16.
        const FreshDirectory dir;
        GgufBuilder b = llama();
        b.tensors[1].bytes.replace(8, 4, raw(3.4e38f));
        put(dir.path / "a.gguf", b.file());
        const ModelConfig config = read_base_config(dir.path / "a.gguf");
        BaseWeights weights = BaseWeights::from_files(dir.path / "a.gguf", config);
        ThreadPool pool(1);
        const auto read_norm = [&](auto zero) {
            return error_of([&] { read_all<decltype(zero)>(weights, outer_tensors(config)[1], pool); });
        };
        CHECK(read_norm(0.0f).empty());
        CHECK(has(read_norm(bf16{}), "too large for BF16"));
    }

    TEST_CASE("GGUF: what the plan says of the file") {
        const GgufFile file("tests/gguf/llama_mixed/model.gguf");
        const std::string text = describe_gguf(file, read_gguf_config(file), 4);
        INFO(text);
        CHECK(has(text, "model.gguf: "));
        CHECK(has(text, "on disk (F16, "));
        CHECK(has(text, "Q4_1"));
        CHECK(has(text, "decoded to float32"));
    }
}
