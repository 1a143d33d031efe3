// Tensors that repeat what the config says: a head of its own counts, and other differences are told.
#include <doctest/doctest.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/base/json_file.h"
#include "kernels/rotary.h"
#include "tests/tiny_model.h"
#include "train/files/base_config.h"
#include "train/files/model_directory.h"
#include "train/files/model_files.h"
#include "train/files/redundant_tensors.h"
#include "train/spec/tensor_table.h"

using namespace slab;
using namespace slab::train;
using namespace slab::test;
namespace fs = std::filesystem;

namespace {

// The model of `config` with config.json changed, and with more tensors.
struct Changed {
    FreshDirectory files;
    explicit Changed(const ModelConfig& config) { write_tiny_model(files.path, config); }

    void say_tied(bool tied) const {
        nlohmann::json json = data::read_json_file(files.path / "config.json");
        json["tie_word_embeddings"] = tied;
        put(files.path / "config.json", json.dump());
    }
    // Writes the weights again. own(name, values) may change them; more(writer) adds tensors.
    void rewrite(const std::function<void(SafetensorsWriter&, const std::vector<float>& embeddings)>& more) const {
        const fs::path path = files.path / "model.safetensors";
        SafetensorsWriter writer;
        std::deque<std::vector<float>> kept;
        {
            const SafetensorsFile file(path);
            for (const SafetensorsEntry& entry : file.entries()) {
                auto& values = kept.emplace_back(entry.elems);
                file.read_as(entry.name, values.data());
                writer.add(entry.name, DType::f32, entry.shape, kept.back().data());
            }
            const bool gpt2 = file.find("transformer.wte.weight") != nullptr;
            const std::string embeddings = gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight";
            std::vector<float> values(file.at(embeddings).elems);
            file.read_as(embeddings, values.data());
            kept.push_back(values);
        }
        more(writer, kept.back());
        writer.write(path);
    }
    ModelConfig config() const { return read_base_config(files.path); }
};

ModelConfig with_head(const std::string& family) {
    ModelConfig config = tiny_config(family, 2);
    config.tied_head = false;
    return config;
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("redundant tensors: a head that differs from the embeddings it is tied to is the model's head") {
        for (const std::string family : {"qwen2", "gpt2", "llama"}) {
            CAPTURE(family);
            const Changed model(with_head(family));
            const ModelConfig untied = model.config();
            CHECK((!untied.tied_head && untied.weight_notices.empty()));
            model.say_tied(true);
            const ModelConfig config = model.config();
            CHECK(!config.tied_head);
            REQUIRE(config.weight_notices.size() == 1);
            CHECK(has(config.weight_notices[0], "lm_head.weight"));
            CHECK(has(config.weight_notices[0], "tie_word_embeddings"));

            const SafetensorsFile file(model.files.path / "model.safetensors");
            std::vector<float> stored(file.at("lm_head.weight").elems), read(stored.size());
            file.read_as("lm_head.weight", stored.data());
            BaseWeights weights = BaseWeights::from_files(model.files.path, config);
            ThreadPool pool(1);
            weights.read(outer_tensors(config).back(), read.data(), pool);
            CHECK(read == stored);
            CHECK(weights.fingerprint(config) == weights.fingerprint(untied));

            // What is made of it says so: every version of transformers then uses the head.
            for (const auto dtype : {std::optional<DType>(), std::optional(DType::bf16)}) {
                const auto json = nlohmann::json::parse(config_json_for(model.files.path, config, dtype));
                CHECK(json["tie_word_embeddings"] == false);
                CHECK(json["vocab_size"] == config.V);
            }
        }
    }

    TEST_CASE("redundant tensors: a head that is the embeddings once more stays tied") {
        for (const DType type : {DType::f32, DType::bf16}) {
            const Changed model(tiny_config("qwen2", 2));
            std::vector<std::byte> bytes;
            model.rewrite([&](SafetensorsWriter& writer, const std::vector<float>& embeddings) {
                bytes.resize(embeddings.size() * dtype_bytes(type));
                REQUIRE(store_as(type, embeddings.data(), embeddings.size(), bytes.data()));
                writer.add("lm_head.weight", type, {37, 16}, bytes.data());
            });
            const ModelConfig config = model.config();
            // bf16 rounds them: these are other numbers, and another head.
            CHECK(config.tied_head == (type == DType::f32));
            CHECK(config.weight_notices.empty() == config.tied_head);
            const std::string text = content(model.files.path / "config.json");
            CHECK((config_json_for(model.files.path, config, std::nullopt) == text) == config.tied_head);
        }
    }

    TEST_CASE("redundant tensors: a last number that differs is enough, and a head of another shape is refused") {
        const Changed model(tiny_config("qwen2", 2));
        model.rewrite([](SafetensorsWriter& writer, const std::vector<float>& embeddings) {
            static std::vector<float> head;
            head = embeddings;
            head.back() += 1;
            writer.add("lm_head.weight", DType::f32, {37, 16}, head.data());
        });
        CHECK(!model.config().tied_head);

        const Changed wide(tiny_config("qwen2", 2));
        static const std::vector<float> rows(38 * 16, 1.0f);
        wide.rewrite([](SafetensorsWriter& writer, const std::vector<float>&) {
            writer.add("lm_head.weight", DType::f32, {38, 16}, rows.data());
        });
        const ModelConfig config = wide.config();
        CHECK(has(error_of([&] { BaseWeights::from_files(wide.files.path, config); }),
                  "tensor \"lm_head.weight\" has shape [38, 16]; wanted [37, 16]"));
    }

    TEST_CASE("redundant tensors: a run trains the head that the files hold, and random weights do not look at files") {
        const Changed model(with_head("qwen2"));
        model.say_tied(true);
        const FreshDirectory dir;
        write_tiny_tokens(dir.path / "rows.bin", 37, 400, 3);
        const auto loss_of = [&](const std::string& run, const std::vector<std::string>& more) {
            std::vector<std::string> flags = {"--base-model",   model.files.path.string(),
                                              "--train-data",   (dir.path / "rows.bin").string(),
                                              "--output-dir",   (dir.path / run).string(),
                                              "--sequence-len", "16",
                                              "--max-steps",    "1"};
            flags.insert(flags.end(), more.begin(), more.end());
            const Program program = run_train_gpt(flags);
            CAPTURE(program.error);
            REQUIRE(program.code == 0);
            CHECK(has(program.out, "lm_head.weight") == (run == "tied"));
            const std::string log = content(dir.path / run / "log.jsonl");
            return log.substr(log.find("\"loss\":"), 20);
        };
        const std::string tied = loss_of("tied", {});
        CHECK(loss_of("random", {"--from-scratch", "--adapter", "none"}) != tied);
        CHECK(data::read_json_file(dir.path / "random" / "config.json")["tie_word_embeddings"] == true);
        model.say_tied(false);
        CHECK(loss_of("untied", {}) == tied);
    }

    TEST_CASE("redundant tensors: rotary frequencies are compared with the config's") {
        for (const std::string family : {"llama", "qwen2"}) {  // llama's are stretched
            const ModelConfig tiny = tiny_config(family, 2);
            const size_t half = static_cast<size_t>(tiny.HD) / 2;
            std::vector<float> right(half), wrong(half);
            const RotaryScaling& s = tiny.rope_scaling;
            for (size_t i = 0; i < half; ++i) {
                right[i] = inverse_frequency(
                    static_cast<int>(i), tiny.HD, tiny.rope_theta,
                    {s.llama3, s.factor, s.low_freq_factor, s.high_freq_factor, s.original_max_position_embeddings});
                wrong[i] = right[i] * (i == half - 1 ? 0.25f : 1);
            }
            const std::string name = "model.layers.1.self_attn.rotary_emb.inv_freq";
            const auto notices = [&](const std::vector<float>& values, DType type) {
                const Changed model(tiny);
                std::vector<std::byte> bytes(half * dtype_bytes(type));
                REQUIRE(store_as(type, values.data(), half, bytes.data()));
                model.rewrite([&](SafetensorsWriter& writer, const std::vector<float>&) {
                    writer.add(name, type, {half}, bytes.data());
                });
                BaseWeights::from_files(model.files.path, model.config());
                return model.config().weight_notices;
            };
            for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
                CHECK(notices(right, type).empty());
                const std::vector<std::string> told = notices(wrong, type);
                REQUIRE(told.size() == 1);
                CHECK(has(told[0], "\"" + name + "\" holds other rotary frequencies than config.json gives"));
            }
        }
    }

    TEST_CASE("redundant tensors: GPT-2's masks are causal, or it is told") {
        const auto notices = [](const std::vector<unsigned char>& mask, float masked) {
            const Changed model(tiny_config("gpt2", 2));
            model.rewrite([&](SafetensorsWriter& writer, const std::vector<float>&) {
                writer.add("transformer.h.0.attn.bias", DType::u8, {1, 1, 3, 3}, mask.data());
                writer.add("transformer.h.1.attn.bias", DType::u8, {1, 1, 3, 3}, mask.data());
                writer.add("transformer.h.0.attn.masked_bias", DType::f32, {}, &masked);
            });
            return model.config().weight_notices;
        };
        CHECK(notices({1, 0, 0, 1, 1, 0, 1, 1, 1}, -1e4f).empty());
        const std::vector<std::string> full = notices({1, 1, 1, 1, 1, 1, 1, 1, 1}, -1e9f);
        REQUIRE(full.size() == 1);
        CHECK(has(full[0], "\"transformer.h.0.attn.bias\" holds another mask than the causal one, and so do 1 more"));
        const std::vector<std::string> unmasked = notices({1, 0, 0, 1, 1, 0, 1, 1, 1}, 0);
        REQUIRE(unmasked.size() == 1);
        CHECK(has(unmasked[0], "masks nothing"));
    }
}
