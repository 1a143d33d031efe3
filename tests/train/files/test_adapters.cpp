// Adapters are read back bit for bit, those that do not fit the model are refused with file and tensor, and
// adapter_config.json has the meaning that PEFT gives it.
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/philox.h"
#include "tests/tiny_model.h"
#include "train/files/adapter_config.h"
#include "train/files/adapter_files.h"
#include "train/model/initial_adapter.h"
#include "train/spec/lora.h"
#include "train/spec/micro_batch.h"
#include "train/spec/trained_table.h"

using namespace slab;
using namespace slab::train;
using namespace slab::test;
using nlohmann::json;

namespace {

json minimal_config() {
    return {{"peft_type", "LORA"}, {"r", 3}, {"lora_alpha", 7}, {"target_modules", {"q_proj", "v_proj"}}};
}

struct ConfigFile {
    FreshDirectory dir;
    ModelConfig model = tiny_config("llama");
    std::filesystem::path path = dir.path / "adapter_config.json";
    LoraSettings read(const json& j) {
        put(path, j.dump());
        return read_adapter_config(path, model);
    }
    std::string error(const json& j) {
        return error_of([&] { read(j); });
    }
    std::string error_with(const std::string& key, const json& value) {
        json j = minimal_config();
        j[key] = value;
        return error(j);
    }
};

// A set of write_trained() whose tensors lie in one vector, in table order without gaps.
NamedWeights packed_set(const char* key_prefix, const TrainedTable& table, const std::vector<float>& packed) {
    return {key_prefix, [&](size_t index, float* dst) {
                std::copy_n(packed.data() + table.packed_offsets()[index], table.at(index).elems(), dst);
            }};
}

std::vector<std::string> paths_of(const std::vector<LinearModule>& modules) {
    std::vector<std::string> paths;
    for (const auto& module : modules) paths.push_back(module.path);
    return paths;
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("adapters: what is written reads back with the same bits, under PEFT's keys and shapes") {
        const FreshDirectory dir;
        for (const auto& family : tiny_families()) {
            CAPTURE(family);
            const ModelLayout layout = make_layout(tiny_config(family), tiny_settings());
            std::vector<float> weights = random_vector<float>(layout.trained.parameter_count(), 5);
            weights[0] = -0.0f;
            weights[1] = 1e-42f;  // denormal
            const auto file = dir.path / (family + ".safetensors");
            write_trained(file, layout.trained, {packed_set("", layout.trained, weights)});
            CHECK(same_bits(read_trained(file, layout.trained), weights));
            const SafetensorsFile written(file);
            CHECK(written.entries().size() == layout.trained.tensors().size());
            const bool gpt2 = family == "gpt2";
            const std::string module =
                gpt2 ? "base_model.model.transformer.h.4.mlp.c_fc" : "base_model.model.model.layers.4.mlp.down_proj";
            const ModelConfig& c = layout.config;
            const size_t in = gpt2 ? c.C : c.I, out = gpt2 ? c.I : c.C;
            CHECK(written.at(module + ".lora_A.weight").shape == std::vector<size_t>{3, in});
            CHECK(written.at(module + ".lora_B.weight").shape == std::vector<size_t>{out, 3});
            CHECK(written.at(module + ".lora_B.weight").dtype == DType::f32);
        }
    }

    TEST_CASE("adapters: weights trained in full read back, in the files' orientation") {
        const FreshDirectory dir;
        const ModelLayout layout = make_layout(tiny_config("gpt2"), tiny_full_settings());
        const std::vector<float> weights = random_vector<float>(layout.trained.parameter_count(), 6);
        write_trained(dir.path / "w.safetensors", layout.trained, {packed_set("", layout.trained, weights)});
        CHECK(same_bits(read_trained(dir.path / "w.safetensors", layout.trained), weights));
        const SafetensorsFile written(dir.path / "w.safetensors");
        CHECK(written.at("transformer.h.0.attn.c_attn.weight").shape == std::vector<size_t>{20, 60});  // Conv1D
        CHECK(written.at("transformer.wte.weight").shape == std::vector<size_t>{41, 20});
        CHECK(written.at("transformer.h.0.ln_1.weight").shape == std::vector<size_t>{20});
    }

    TEST_CASE("adapters: prefixed sets lie side by side in one file") {
        const FreshDirectory dir;
        const ModelLayout layout = make_layout(tiny_config("qwen2", 2), tiny_settings());
        const size_t n = layout.trained.parameter_count();
        const std::vector<float> m = random_vector<float>(n, 1), v = random_vector<float>(n, 2);
        const auto file = dir.path / "optimizer.safetensors";
        write_trained(file, layout.trained,
                      {packed_set("exp_avg.", layout.trained, m), packed_set("exp_avg_sq.", layout.trained, v)});
        CHECK(same_bits(read_trained(file, layout.trained, "exp_avg."), m));
        CHECK(same_bits(read_trained(file, layout.trained, "exp_avg_sq."), v));
        CHECK(has(error_of([&] { read_trained(file, layout.trained); }), "is missing"));
    }

    TEST_CASE("adapters: a file that does not fit is refused with its name and the tensor's") {
        const FreshDirectory dir;
        const auto file = dir.path / "adapter_model.safetensors";
        const ModelLayout layout = make_layout(tiny_config("llama", 2), tiny_settings());
        const std::vector<float> weights = random_vector<float>(layout.trained.parameter_count(), 5);
        const std::string q = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";

        const auto error_for = [&](const ModelConfig& config, const ModelSettings& settings) {
            const ModelLayout wanted = make_layout(config, settings);
            write_trained(file, layout.trained, {packed_set("", layout.trained, weights)});
            return error_of([&] { read_trained(file, wanted.trained); });
        };
        CHECK(error_for(layout.config, layout.settings) == "");
        ModelSettings rank = layout.settings;
        rank.lora->r = 4;
        const std::string of_rank = error_for(layout.config, rank);
        CHECK(has(of_rank, "adapter_model.safetensors"));
        CHECK(has(of_rank, q));
        CHECK(has(of_rank, "has shape [3, 18]; wanted [4, 18]"));
        ModelSettings fewer = layout.settings;
        fewer.lora->target_modules = {"q_proj"};
        const std::string extra = error_for(layout.config, fewer);
        CHECK(has(extra, "adapter_model.safetensors"));
        CHECK(has(extra, "lora_"));
        CHECK(has(extra, "has no place in this model"));
        SafetensorsWriter writer;  // orders for a terminal
        const float one = 1;
        writer.add("\x1b[31mname\n", {1}, &one);
        writer.write(file);
        CHECK(has(error_of([&] { read_trained(file, TrainedTable()); }), "tensor \"\\x1b[31mname\\x0a\" has no place"));
        const std::string missing = error_for(tiny_config("llama", 3), layout.settings);
        CHECK(has(missing, "adapter_model.safetensors"));
        CHECK(has(missing, "layers.2."));
        CHECK(has(missing, "is missing"));
        CHECK(has(error_for(tiny_config("gpt2", 2), layout.settings), "transformer.h.0.attn.c_attn.lora_A"));

        for (const float bad : {NAN, INFINITY, -INFINITY}) {
            std::vector<float> poisoned = weights;
            poisoned[7] = bad;
            write_trained(file, layout.trained, {packed_set("", layout.trained, poisoned)});
            const std::string error = error_of([&] { read_trained(file, layout.trained); });
            CHECK(has(error, "adapter_model.safetensors"));
            CHECK(has(error, q));
            CHECK(has(error, "finite"));
        }
        put(file, "");
        CHECK(has(error_of([&] { read_trained(file, layout.trained); }), "adapter_model.safetensors"));
        std::filesystem::remove(file);
        CHECK(has(error_of([&] { read_trained(file, layout.trained); }), "adapter_model.safetensors"));
    }

    TEST_CASE("adapters: files in F16 and BF16, which others write, are read with their exact values") {
        const FreshDirectory dir;
        const ModelLayout layout = make_layout(tiny_config("qwen2", 2), tiny_settings());
        const std::vector<size_t> offsets = layout.trained.packed_offsets();
        const std::vector<float> weights = random_vector<float>(layout.trained.parameter_count(), 5);
        for (const DType dtype : {DType::f16, DType::bf16}) {
            CAPTURE(dtype_name(dtype));
            SafetensorsWriter writer;
            std::vector<std::vector<std::byte>> kept;
            for (size_t i = 0; i < offsets.size(); ++i) {
                const TrainedTensor& t = layout.trained.at(i);
                auto& bytes = kept.emplace_back(2 * t.elems());
                REQUIRE(store_as(dtype, weights.data() + offsets[i], t.elems(), bytes.data()));
                writer.add(t.key, dtype, {t.rows, t.cols}, bytes.data());
            }
            writer.write(dir.path / "adapter_model.safetensors");
            const std::vector<float> got = read_trained(adapter_weights_file(dir.path), layout.trained);
            bool exact = true;
            for (size_t i = 0; i < offsets.size(); ++i) {
                std::vector<std::byte> again(kept[i].size());
                exact &= store_as(dtype, got.data() + offsets[i], layout.trained.at(i).elems(), again.data());
                exact &= again == kept[i];
            }
            CHECK(exact);
            CHECK(max_error(got, weights) < (dtype == DType::f16 ? 0x1p-11 : 0x1p-8));
        }
    }

    TEST_CASE("adapters: a new one has B zero and A uniform in +-1/sqrt(in), a function of the seed") {
        const ModelLayout layout = make_layout(tiny_config("llama"), tiny_settings());
        const std::vector<float> start = initial_adapter(layout.trained, 3);
        CHECK(same_bits(initial_adapter(layout.trained, 3), start));
        CHECK_FALSE(same_bits(initial_adapter(layout.trained, 4), start));
        const float* values = start.data();
        for (const auto& t : layout.trained.tensors()) {
            CAPTURE(t.key);
            double square = 0;
            float largest = 0;
            for (size_t i = 0; i < t.elems(); ++i) {
                square += static_cast<double>(values[i]) * values[i];
                largest = std::max(largest, std::abs(values[i]));
            }
            const double bound = 1 / std::sqrt(static_cast<double>(t.cols));
            if (has(t.key, ".lora_B.")) {
                CHECK(square == 0);
            } else {
                CHECK(largest <= bound);
                CHECK(largest > 0.8 * bound);
                // of uniform numbers: bound / sqrt(3), within what 54 draws give
                CHECK(std::sqrt(square / static_cast<double>(t.elems())) ==
                      doctest::Approx(bound / std::sqrt(3)).epsilon(0.25));
            }
            values += t.elems();
        }
    }

    TEST_CASE("adapters: dropout's sites are each module's own, and apart from whatever else draws with the seed") {
        for (const char* family : {"llama", "qwen2", "qwen3", "gpt2"}) {
            const ModelConfig config = tiny_config(family);
            std::set<int> sites;
            const std::vector<LinearModule> modules = linear_modules(config, 1);
            for (const LinearModule& module : modules) {
                CHECK(module.site >= 0);
                CHECK(module.site < static_cast<int>(kDropoutSites));
                sites.insert(module.site);
            }
            CHECK(sites.size() == modules.size());
        }
    }

    TEST_CASE("adapters: at its start an adapter changes nothing, trained it changes the output, by its scale") {
        const TinyBase base("llama", 2);
        const MicroBatch batch = tiny_batch(base.config, {}, 3);
        TinyRun plain(base, tiny_full_settings());
        const std::vector<float> want = plain.model.logits(batch, 0, 18);
        const auto logits_with = [&](const LoraSettings& lora, bool start) {
            ModelSettings settings = tiny_settings();
            settings.lora = lora;
            TinyRun run(base, settings);
            if (!start)
                run.model.trained().write_weights(
                    random_vector<float>(run.layout.trained.parameter_count(), 8, -0.3, 0.3), run.model.compute());
            return run.model.logits(batch, 0, 18);
        };
        LoraSettings lora = tiny_lora(4);
        CHECK(logits_with(lora, true) == want);
        lora.alpha = 8;
        const std::vector<float> twice = logits_with(lora, false);
        CHECK(max_error(twice, want) > 1e-2);
        lora.rslora = true;
        lora.alpha = 4;  // 4 / sqrt(4) = 8 / 4
        CHECK(logits_with(lora, false) == twice);
        lora.alpha = 8;
        CHECK(logits_with(lora, false) != twice);
    }

    TEST_CASE("adapter config: scale is alpha / r, or alpha / sqrt(r) with rsLoRA") {
        LoraSettings lora = tiny_lora(16);
        lora.alpha = 32;
        CHECK(lora.scale() == 2);
        lora.rslora = true;
        CHECK(lora.scale() == 8);
    }

    TEST_CASE("adapter config: targets are PEFT's: whole paths or dotted suffixes, and all-linear") {
        const ModelConfig llama = tiny_config("llama"), gpt2 = tiny_config("gpt2");
        LoraSettings lora = tiny_lora();
        CHECK(adapted_modules(llama, lora, 0).size() == 7);
        CHECK(adapted_modules(gpt2, lora, 0).size() == 4);
        lora.target_modules = {"c_proj"};
        CHECK(paths_of(adapted_modules(gpt2, lora, 1)) ==
              std::vector<std::string>{"transformer.h.1.attn.c_proj", "transformer.h.1.mlp.c_proj"});
        lora.target_modules = {"mlp.c_proj"};
        CHECK(paths_of(adapted_modules(gpt2, lora, 1)) == std::vector<std::string>{"transformer.h.1.mlp.c_proj"});
        lora.target_modules = {"model.layers.2.self_attn.k_proj", "up_proj"};
        CHECK(paths_of(adapted_modules(llama, lora, 2)) ==
              std::vector<std::string>{"model.layers.2.self_attn.k_proj", "model.layers.2.mlp.up_proj"});
        CHECK(paths_of(adapted_modules(llama, lora, 1)) == std::vector<std::string>{"model.layers.1.mlp.up_proj"});
        lora.target_modules = {"proj"};  // no suffix at a dot
        CHECK(adapted_modules(llama, lora, 0).empty());
        CHECK(has(error_of([&] { check_lora_settings(llama, lora); }), "\"proj\""));
        lora.target_modules = {"q_proj"};
        lora.layers_to_transform = {1, 3};
        CHECK(adapted_modules(llama, lora, 0).empty());
        CHECK(adapted_modules(llama, lora, 3).size() == 1);
    }

    TEST_CASE("adapter config: settings without sense are refused by name") {
        const ModelConfig config = tiny_config("llama");
        const auto error_for = [&](const std::function<void(LoraSettings&)>& edit) {
            LoraSettings lora = tiny_lora();
            edit(lora);
            return error_of([&] { check_lora_settings(config, lora); });
        };
        CHECK(error_for([](LoraSettings&) {}) == "");
        CHECK(has(error_for([](LoraSettings& l) { l.r = 0; }), "rank 0"));
        CHECK(has(error_for([](LoraSettings& l) { l.r = 4097; }), "rank 4097"));
        CHECK(has(error_for([](LoraSettings& l) { l.alpha = 0; }), "alpha"));
        CHECK(has(error_for([](LoraSettings& l) { l.alpha = NAN; }), "alpha"));
        CHECK(has(error_for([](LoraSettings& l) { l.alpha = 1e-7f; }), "alpha 1e-07"));
        CHECK(has(error_for([](LoraSettings& l) { l.alpha = 2e6f; }), "alpha 2000000 is"));
        CHECK(has(error_for([](LoraSettings& l) { l.dropout = 1; }), "dropout"));
        CHECK(has(error_for([](LoraSettings& l) { l.dropout = NAN; }), "dropout"));
        CHECK(has(error_for([](LoraSettings& l) { l.target_modules = {}; }), "no target modules"));
        CHECK(has(error_for([](LoraSettings& l) { l.target_modules = {"c_attn"}; }), "\"c_attn\""));
        CHECK(has(error_for([](LoraSettings& l) { l.target_modules = {"c_attn"}; }), "q_proj, k_proj"));
        CHECK(has(error_for([](LoraSettings& l) { l.target_modules = {"lm_head"}; }), "\"lm_head\""));
        CHECK(has(error_for([](LoraSettings& l) { l.target_modules = {"all-linear", "q_proj"}; }), "all-linear"));
        CHECK(has(error_for([](LoraSettings& l) { l.layers_to_transform = {5}; }), "layer 5"));
        CHECK(has(error_for([](LoraSettings& l) { l.layers_to_transform = {-1}; }), "layer -1"));
        CHECK(has(error_for([](LoraSettings& l) {
                      l.target_modules = {"model.layers.2.self_attn.q_proj"};
                      l.layers_to_transform = {1};
                  }),
                  "no module"));
    }

    TEST_CASE("adapter config: read in PEFT's variants") {
        ConfigFile file;
        LoraSettings lora = file.read(minimal_config());
        CHECK(lora.r == 3);
        CHECK(lora.alpha == 7);
        CHECK(lora.dropout == 0);
        CHECK_FALSE(lora.rslora);
        CHECK(lora.target_modules == std::vector<std::string>{"q_proj", "v_proj"});
        CHECK(lora.layers_to_transform.empty());

        json j = minimal_config();
        j.erase("r");
        j.erase("lora_alpha");
        lora = file.read(j);  // PEFT's defaults
        CHECK(lora.r == 8);
        CHECK(lora.alpha == 8);
        j = minimal_config();
        j["lora_alpha"] = 2.5;
        j["lora_dropout"] = 0.05;
        j["use_rslora"] = true;
        j["target_modules"] = "all-linear";
        j["layers_to_transform"] = {0, 4};
        lora = file.read(j);
        CHECK(lora.alpha == 2.5f);
        CHECK(lora.dropout == 0.05f);
        CHECK(lora.rslora);
        CHECK(lora.target_modules == std::vector<std::string>{"all-linear"});
        CHECK(lora.layers_to_transform == std::vector<int>{0, 4});
        j["layers_to_transform"] = 0;  // one layer, not "off"
        CHECK(file.read(j).layers_to_transform == std::vector<int>{0});
        j["layers_to_transform"] = json::array();
        CHECK(file.read(j).layers_to_transform.empty());
    }

    TEST_CASE("adapter config: options that are off, or say nothing of the result, are fine") {
        ConfigFile file;
        json j = minimal_config();
        j.update(json::parse(R"({
            "alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null, "auto_mapping": null,
            "base_model_name_or_path": "some/where", "bias": "none", "corda_config": null,
            "ensure_weight_tying": false, "eva_config": null, "exclude_modules": null, "fan_in_fan_out": false,
            "inference_mode": true, "init_lora_weights": true, "layer_replication": null, "layers_pattern": null,
            "layers_to_transform": null, "loftq_config": {}, "lora_bias": false, "lora_dropout": 0.0,
            "megatron_config": null, "megatron_core": "megatron.core", "modules_to_save": null,
            "peft_version": "0.21.0", "qalora_group_size": 16, "rank_pattern": {}, "revision": null,
            "target_parameters": null, "task_type": "CAUSAL_LM", "trainable_token_indices": null,
            "use_dora": false, "use_qalora": false, "use_rslora": false})"));
        CHECK(file.error(j) == "");
        CHECK(file.error_with("something_new", nullptr) == "");
        CHECK(file.error_with("something_new", "") == "");
        for (const json& start : {json(false), json("gaussian"), json("orthogonal"), json("eva"), json(nullptr)})
            CHECK(file.error_with("init_lora_weights", start) == "");
    }

    TEST_CASE("adapter config: active options that are not implemented are refused by name") {
        ConfigFile file;
        const std::vector<std::pair<std::string, json>> active = {
            {"use_dora", true},
            {"rank_pattern", {{"q_proj", 4}}},
            {"alpha_pattern", {{"q_proj", 4}}},
            {"modules_to_save", {"lm_head"}},
            {"bias", "all"},
            {"bias", "lora_only"},
            {"lora_bias", true},
            {"exclude_modules", {"k_proj"}},
            {"layer_replication", json::parse("[[0, 2], [1, 3]]")},
            {"loftq_config", {{"loftq_bits", 4}}},
            {"trainable_token_indices", {1, 2}},
            {"target_parameters", {"experts"}},
            {"use_qalora", true},
            {"init_lora_weights", "pissa"},
            {"init_lora_weights", "pissa_niter_16"},
            {"init_lora_weights", "olora"},
            {"init_lora_weights", "loftq"},
            {"init_lora_weights", "corda"},
            {"something_new", 1},
            {"peft_type", "IA3"},
            {"peft_type", nullptr},
            {"target_modules", ".*_proj"},
            {"target_modules", json::array()},
            {"target_modules", nullptr},
            {"target_modules", {1, 2}},
            {"r", 0},
            {"r", 2.5},
            {"r", "8"},
            {"r", 5000},
            {"lora_alpha", 0},
            {"lora_alpha", -1},
            {"lora_alpha", 1e-7},
            {"lora_alpha", 2e6},
            {"lora_alpha", "big"},
            {"lora_dropout", 1},
            {"lora_dropout", -0.1},
            {"use_rslora", 1},
            {"layers_to_transform", {0, 5}},
            {"layers_to_transform", {-1}},
            {"layers_to_transform", "all"},
            {"layers_to_transform", ""},
            {"layers_to_transform", false},
            {"layers_to_transform", json::object()},
        };
        for (const auto& [key, value] : active) {
            CAPTURE(key);
            CAPTURE(value.dump());
            const std::string error = file.error_with(key, value);
            CHECK(has(error, "adapter_config.json"));
            CHECK(has(error, "\"" + key + "\""));
        }
        const std::string unknown = file.error_with("target_modules", {"c_attn"});
        CHECK(has(unknown, "adapter_config.json"));
        CHECK(has(unknown, "\"c_attn\""));
        CHECK(has(file.error(json::array({1})), "adapter_config.json"));
        CHECK(has(file.error(json::object()), "peft_type"));
        put(file.path, "{");
        CHECK(has(error_of([&] { read_adapter_config(file.path, file.model); }), "adapter_config.json"));
    }

    TEST_CASE("adapter config: numbers are written as a person would, and any path can stand in it") {
        ConfigFile file;
        LoraSettings lora = tiny_lora();
        lora.dropout = 0.1f;
        for (const auto& [alpha, text] : {std::pair{0.3f, "0.3"}, {16.0f, "16"}, {1e-6f, "1e-06"}, {1e6f, "1000000"}}) {
            lora.alpha = alpha;
            const std::string written = adapter_config_json(lora, file.model, "not \xff UTF-8");
            CHECK(has(written, "\"lora_dropout\": 0.1,"));
            CHECK(has(written, std::string("\"lora_alpha\": ") + text + ","));
            put(file.path, written);
            CHECK(read_adapter_config(file.path, file.model).alpha == alpha);
        }
    }

    TEST_CASE("adapter config: what is written reads back as the same settings") {
        ConfigFile file;
        for (const bool rslora : {false, true})
            for (const std::vector<int>& layers : {std::vector<int>{}, std::vector<int>{0, 2}}) {
                LoraSettings lora{.r = 5,
                                  .alpha = rslora ? 2.5f : 10.0f,
                                  .dropout = 0.1f,
                                  .rslora = rslora,
                                  .target_modules = {"k_proj", "mlp.gate_proj"},
                                  .layers_to_transform = layers};
                put(file.path, adapter_config_json(lora, file.model, "the/base"));
                const LoraSettings again = read_adapter_config(file.path, file.model);
                CHECK(again.r == lora.r);
                CHECK(again.alpha == lora.alpha);
                CHECK(again.dropout == lora.dropout);
                CHECK(again.rslora == lora.rslora);
                CHECK(again.target_modules == lora.target_modules);
                CHECK(again.layers_to_transform == lora.layers_to_transform);
            }
        for (const auto& family : tiny_families()) {
            const ModelConfig model = tiny_config(family);
            put(file.path, adapter_config_json(tiny_lora(), model, ""));
            const LoraSettings again = read_adapter_config(file.path, model);
            CHECK(again.target_modules.size() == (family == "gpt2" ? 3 : 7));  // the names that all-linear stands for
            CHECK(paths_of(adapted_modules(model, again, 1)) == paths_of(adapted_modules(model, tiny_lora(), 1)));
        }
    }
}
