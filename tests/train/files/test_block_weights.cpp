// Base weights in blocks: read as they are, or made while loading, the same bytes with any number of threads. Files
// that lie are refused.
#include <cmath>
#include <cstring>

#include "tests/encoded_bases.h"

using namespace slab;
using namespace slab::train;
using namespace slab::test;
namespace fs = std::filesystem;

namespace {

// A block with a scale of this F16 in place of the first one of the tensor.
std::string error_with_scale(uint16_t half, const std::string& tensor, size_t block) {
    MixedGguf base;
    GgufBuilder builder = gguf_of(wide_llama(), [](const std::string&) { return data::GgmlType::q8_0; });
    for (auto& t : builder.tensors)
        if (t.name == tensor) t.bytes.replace(block * 34, 2, raw(half));
    put(base.path, builder.file());
    BaseWeights weights = base.weights();
    ThreadPool pool(2);
    return error_of([&] {
        for (const TensorSpec& spec : layer_tensors(base.config, 1))
            for (const TensorPart& part : spec.parts) {
                if (!spec.matrix) continue;
                std::vector<std::byte> blocks(encoded_bytes(BlockFormat::q8_0, part.rows * spec.cols));
                weights.read_encoded(spec, part, BlockFormat::q8_0, blocks.data(), pool);
            }
    });
}

// Opens and reads all matrices in 4 bits of a directory whose tensors were changed.
template <class Change>
std::string error_of_bnb(Change change) {
    ModelConfig c = tiny_config("llama", 1);
    c.C = 64, c.NH = 2, c.HD = 32, c.I = 64;
    BnbBase base(c);
    change(base.tensors);
    base.write();
    return error_of([&] {
        BaseWeights weights = base.weights();
        ThreadPool pool(1);
        for (const TensorSpec& spec : layer_tensors(base.config, 0))
            for (const TensorPart& part : spec.parts) {
                std::vector<float> values(part.rows * spec.cols);
                weights.read_part(spec, part, values.data(), pool);
            }
    });
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("block weights: a file's blocks decode to the rows that are read, q and k in our order") {
        const MixedGguf base;
        BaseWeights weights = base.weights();
        ThreadPool pool(2);
        const StoredTypes stored = stored_types_of(base.path, base.config);
        size_t checked = 0;
        for (const TensorSpec& spec : all_tensors(base.config))
            for (const TensorPart& part : spec.parts) {
                const BlockFormat format = kept_format(SlabFormat::as_is, spec, part, stored);
                if (format == BlockFormat::plain) continue;
                CAPTURE(part.key);
                const size_t elems = part.rows * spec.cols;
                std::vector<std::byte> blocks(encoded_bytes(format, elems));
                const EncodeReport report = weights.read_encoded(spec, part, format, blocks.data(), pool);
                CHECK(report.squared_error == 0);
                std::vector<float> got(elems), want(elems);
                ref::decode_blocks(format, blocks.data(), got.data(), elems);
                weights.read_part(spec, part, want.data(), pool);
                CHECK(same_bits(got, want));
                ++checked;
            }
        CHECK(checked == stored.size());
    }

    TEST_CASE("block weights: made blocks and their error do not depend on threads, and the error is what was lost") {
        ModelConfig c = tiny_config("gpt2", 1);
        c.C = 256, c.HD = 64, c.I = 8192;  // fc has several pieces, and is turned
        const TinyBase base(c);
        BaseWeights weights = base.weights();
        ThreadPool one(1), three(3);
        for (const TensorSpec& spec : layer_tensors(c, 0)) {
            if (!spec.matrix) continue;
            CAPTURE(spec.name);
            const TensorPart& part = spec.parts[0];
            const size_t elems = part.rows * spec.cols;
            for (const BlockFormat format : {BlockFormat::q8_0, BlockFormat::nf4}) {
                std::vector<std::byte> a(encoded_bytes(format, elems)), b(a.size()), want(a.size());
                const EncodeReport with_one = weights.read_encoded(spec, part, format, a.data(), one),
                                   with_three = weights.read_encoded(spec, part, format, b.data(), three);
                std::vector<float> values(elems), decoded(elems);
                weights.read_part(spec, part, values.data(), three);
                REQUIRE_FALSE(encode_blocks(format, values.data(), want.data(), elems).has_value());
                CHECK(a == want);
                CHECK(b == want);
                CHECK(with_one.squared_error == with_three.squared_error);
                CHECK(with_one.squared_norm == with_three.squared_norm);
                ref::decode_blocks(format, want.data(), decoded.data(), elems);
                double error = 0, norm = 0;
                for (size_t i = 0; i < elems; ++i) {
                    error += std::pow(double{values[i]} - decoded[i], 2);
                    norm += std::pow(double{values[i]}, 2);
                }
                CHECK(with_one.relative_error() == doctest::Approx(std::sqrt(error / norm)).epsilon(1e-5));
            }
        }
    }

    TEST_CASE("block weights: random weights in blocks are those that are drawn") {
        ModelConfig c = tiny_config("llama", 2);
        c.C = 64, c.HD = 22, c.I = 64;
        BaseWeights weights = BaseWeights::random(5, c);
        ThreadPool pool(2);
        for (const TensorSpec& spec : layer_tensors(c, 1)) {
            if (!spec.matrix || spec.cols % 32 != 0) continue;
            const TensorPart& part = spec.parts.back();
            const size_t elems = part.rows * spec.cols;
            std::vector<float> values(elems);
            std::vector<std::byte> got(encoded_bytes(BlockFormat::q8_0, elems)), want(got.size());
            weights.read_part(spec, part, values.data(), pool);
            weights.read_encoded(spec, part, BlockFormat::q8_0, got.data(), pool);
            REQUIRE_FALSE(encode_blocks(BlockFormat::q8_0, values.data(), want.data(), elems).has_value());
            CHECK(got == want);
            std::vector<float> row(spec.cols);
            weights.read_part_rows(spec, part, 3, 1, row.data(), pool);
            CHECK(std::memcmp(row.data(), values.data() + 3 * spec.cols, row.size() * sizeof(float)) == 0);
        }
    }

    TEST_CASE("block weights: a scale that is not finite is refused with file, tensor, element and offset") {
        CHECK(error_with_scale(0x3c00, "blk.1.attn_v.weight", 5).empty());
        const std::string nan = error_with_scale(0x7e00, "blk.1.attn_v.weight", 5);
        CHECK(has(nan, "mixed.gguf: tensor \"blk.1.attn_v.weight\" (Q8_0 [64, 256])"));
        CHECK(has(nan, "NaN at element 160, offset "));
        CHECK(has(error_with_scale(0x7c00, "blk.1.attn_q.weight", 9), "\"blk.1.attn_q.weight\""));
        CHECK(has(error_with_scale(0xfc00, "blk.1.ffn_down.weight", 0), "infinity at element 0"));

        // A value that no F16 scale can hold.
        ModelConfig c = tiny_config("llama", 1);
        c.C = 64, c.NH = 2, c.HD = 32, c.I = 64;
        const TinyBase base(c);
        write_tiny_model(base.files.path, c, [](const TensorSpec& spec, std::vector<float>& values) {
            if (spec.role == Role::down_weight) values[40] = 3e38f;
        });
        BaseWeights weights = base.weights();
        ThreadPool pool(1);
        for (const TensorSpec& spec : layer_tensors(c, 0)) {
            if (spec.role != Role::down_weight) continue;
            std::vector<std::byte> blocks(encoded_bytes(BlockFormat::q8_0, spec.elems()));
            const std::string error =
                error_of([&] { weights.read_encoded(spec, spec.parts[0], BlockFormat::q8_0, blocks.data(), pool); });
            CHECK(has(error, "mlp.down_proj.weight"));
            CHECK(has(error, "from element 32 on is too large for Q8_0"));
        }
    }

    TEST_CASE("4-bit directories: what lies is refused by name") {
        const std::string key = "model.layers.0.self_attn.q_proj.weight",
                          state = key + ".quant_state.bitsandbytes__nf4";
        CHECK(error_of_bnb([](BnbTensors&) {}).empty());
        for (const char* beside : {".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map"}) {
            CAPTURE(beside);
            CHECK(has(error_of_bnb([&](BnbTensors& t) { t.erase(key + beside); }), key + beside));
            CHECK(has(error_of_bnb([&](BnbTensors& t) {
                          t.at(key + beside).bytes += std::string(dtype_bytes(t.at(key + beside).dtype), '\0');
                          t.at(key + beside).shape[0] += 1;
                      }),
                      key + beside));
        }
        const auto with_state = [&](const std::string& from, const std::string& to) {
            return error_of_bnb([&](BnbTensors& t) {
                std::string& text = t.at(state).bytes;
                REQUIRE(text.find(from) != std::string::npos);
                text.replace(text.find(from), from.size(), to);
                t.at(state).shape = {text.size()};
            });
        };
        CHECK(has(with_state("\"blocksize\": 64", "\"blocksize\": 128"), "blocksize"));
        CHECK(has(with_state("\"nf4\"", "\"fp4\""), "quant_type"));
        CHECK(has(with_state("[64, 64]", "[64, 32]"), state));
        CHECK(has(with_state("[64, 64]", "[-64, 64]"), "shape"));
        CHECK(has(with_state("[64, 64]", "[4096]"), "shape"));
        CHECK(has(with_state("\"nested_blocksize\": 256", "\"nested_blocksize\": 0"), "nested_blocksize"));
        CHECK(has(with_state("0.07", "\"x\""), "nested_offset"));
        CHECK(has(with_state("}", ", \"other\": 1}"), "other"));
        CHECK(has(with_state("}", ""), state));
        CHECK(has(error_of_bnb([&](BnbTensors& t) {
                      t[key + ".quant_state.bitsandbytes__fp4"] = t.at(state);
                      t.erase(state);
                  }),
                  "fp4"));
        CHECK(has(error_of_bnb([&](BnbTensors& t) { t.erase(state); }), key));
        CHECK(has(error_of_bnb([&](BnbTensors& t) { t.at(key + ".quant_map").bytes.replace(8, 4, raw(-0.5f)); }),
                  "quant_map"));
        CHECK(has(
            error_of_bnb([&](BnbTensors& t) {
                t.at(key).shape = {1, t.at(key).bytes.size() - 2}, t.at(key).bytes.resize(t.at(key).bytes.size() - 2);
            }),
            key));
        const std::string nan =
            error_of_bnb([&](BnbTensors& t) { t.at(key + ".nested_absmax").bytes.replace(0, 4, raw(std::nanf(""))); });
        CHECK(has(nan, key));
        CHECK(has(nan, "NaN at element 0"));
        CHECK(has(error_of_bnb([&](BnbTensors& t) {
                      t.at("model.layers.0.mlp.up_proj.weight.absmax").bytes.replace(4, 4, raw(HUGE_VALF));
                  }),
                  "an infinity at element 64"));
    }

    TEST_CASE("4-bit directories: the fixture that hostile_test.sh spoils is the one made here") {
        const BnbBase base(four_bit_fixture_config());
        for (const char* name : {"config.json", "model.safetensors"})
            CHECK(content(base.path / name) == content(fs::path("tests/blocks/llama_4bit") / name));
    }

    TEST_CASE("4-bit directories: config.json says which quantisation") {
        const auto error = [](const std::string& from, const std::string& to) {
            const BnbBase base(tiny_config("llama", 1));
            std::string text = content(base.path / "config.json");
            REQUIRE(text.find(from) != std::string::npos);
            put(base.path / "config.json", text.replace(text.find(from), from.size(), to));
            return error_of([&] { read_base_config(base.path); });
        };
        CHECK(error("\"nf4\"", "\"nf4\"").empty());
        CHECK(has(error("\"nf4\"", "\"fp4\""), "bnb_4bit_quant_type"));
        CHECK(has(error("\"load_in_4bit\": true", "\"load_in_4bit\": false"), "load_in_4bit"));
        CHECK(has(error("\"bitsandbytes\"", "\"gptq\""), "quantization_config"));
        CHECK(has(error("\"uint8\"", "\"bfloat16\""), "bnb_4bit_quant_storage"));
        const BnbBase base(tiny_config("llama", 1));
        const ModelConfig config = read_base_config(base.path);
        CHECK(config.stored_in_4bit);
        fs::remove(base.path / "model.safetensors");  // config.json alone: every matrix may be
        CHECK(stored_types_of(base.path, config).size() == 7);
    }
}
