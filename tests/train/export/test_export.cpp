// export_gpt: the merged model computes the same as base and adapter, untouched tensors keep their bits, and a GGUF
// adapter holds the same numbers in llama.cpp's order.
#include <nlohmann/json.hpp>
#include <sstream>

#include "data/base/json_file.h"
#include "data/gguf/gguf.h"
#include "tests/tiny_model.h"
#include "train/export/adapter.h"
#include "train/export/export_gpt.h"
#include "train/export/gguf_adapter.h"
#include "train/export/merge_adapter.h"
#include "train/files/adapter_files.h"
#include "train/files/model_config_reader.h"
#include "train/files/model_files.h"
#include "train/spec/lora.h"

using namespace slab;
using namespace slab::train;
using namespace slab::test;
namespace fs = std::filesystem;

namespace {

// A PEFT directory of random numbers for the model.
void write_adapter(const fs::path& directory, const ModelConfig& config, const LoraSettings& lora) {
    fs::create_directories(directory);
    ModelSettings settings = tiny_settings();
    settings.lora = lora;
    const ModelLayout layout = make_layout(config, settings);
    put(directory / "adapter_config.json", adapter_config_json(lora, config, "some/base"));
    write_trained(directory / "adapter_model.safetensors", layout.trained,
                  {{"", [&](size_t index, float* dst) {
                        const auto values =
                            random_vector<float>(layout.trained.at(index).elems(), 100 + index, -0.3, 0.3);
                        std::copy(values.begin(), values.end(), dst);
                    }}});
}

struct TinyExport {
    TinyBase base;
    FreshDirectory dir;
    fs::path adapter = dir.path / "adapter", out = dir.path / "out" / "merged";
    ThreadPool pool{2};
    explicit TinyExport(const std::string& family, LoraSettings lora = tiny_lora()) : base(family, 2) {
        write_adapter(adapter, base.config, lora);
    }
    MergeReport merge(const MergeSettings& settings = {}) {
        return merge_adapter(base.files.path, base.config, Adapter(adapter, base.config), out, settings, pool);
    }
};

std::vector<float> logits_of(const fs::path& model, const ModelConfig& config, const ModelSettings& settings,
                             const fs::path& adapter = {}) {
    BaseWeights weights = BaseWeights::from_files(model, config);
    Device device({.threads = 1});
    const ModelLayout layout = make_layout(config, settings);
    Model run(device, layout, weights, {});
    if (!adapter.empty())
        run.trained().write_weights(read_trained(adapter_weights_file(adapter), layout.trained), run.compute());
    return run.logits(tiny_batch(config, {}, 3), 0, 18);
}

std::string raw_bytes(const ModelFiles& files, const std::string& name) {
    const SafetensorsEntry& entry = files.info(name);
    std::string bytes(entry.bytes, '\0');
    files.file_of(name).read_raw(name, entry.dtype, bytes.data());
    return bytes;
}

// Writes the base's file in another type, with renamed tensors and the buffers of old files.
void rewrite(const fs::path& directory, DType dtype, const std::function<std::string(const std::string&)>& rename) {
    const fs::path path = directory / "model.safetensors";
    SafetensorsWriter writer;
    std::vector<std::vector<std::byte>> kept;
    {
        const SafetensorsFile file(path);
        for (const SafetensorsEntry& entry : file.entries()) {
            std::vector<float> values(entry.elems);
            file.read_as(entry.name, values.data());
            auto& bytes = kept.emplace_back(entry.elems * dtype_bytes(dtype));
            REQUIRE(store_as(dtype, values.data(), values.size(), bytes.data()));
            writer.add(rename(entry.name), dtype, entry.shape, bytes.data());
        }
    }
    static const unsigned char mask[9] = {1, 0, 0, 1, 1, 0, 1, 1, 1};
    static const float masked = -1e4f;
    writer.add("h.0.attn.bias", DType::boolean, {1, 1, 3, 3}, mask);
    writer.add("h.0.attn.masked_bias", DType::f32, {}, &masked);
    writer.write(path);
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("export: a merged model computes what base and adapter compute, in every family") {
        for (const auto& family : tiny_families()) {
            CAPTURE(family);
            LoraSettings lora = tiny_lora(4);
            lora.rslora = family == "qwen2";
            if (family == "qwen3") lora.target_modules = {"q_proj", "down_proj"};
            TinyExport tiny(family, lora);
            const MergeReport report = tiny.merge();
            CHECK(report.shards == 1);
            CHECK(report.merged == (family == "gpt2" ? 8 : family == "qwen3" ? 4 : 14));
            CHECK(names_in(tiny.out) == std::vector<std::string>{"config.json", "model.safetensors"});
            CHECK(content(tiny.out / "config.json") == content(tiny.base.files.path / "config.json"));
            ModelSettings with_adapter = tiny_settings();
            with_adapter.lora = lora;
            const ModelConfig config = read_model_config(tiny.out / "config.json");
            const auto want = logits_of(tiny.base.files.path, config, with_adapter, tiny.adapter);
            const auto bare = logits_of(tiny.base.files.path, config, tiny_full_settings());
            const auto got = logits_of(tiny.out, config, tiny_full_settings());
            CHECK(max_error(got, want) < 5e-6);
            CHECK(max_error(bare, want) > 1e-2);
        }
    }

    TEST_CASE("export: what carries no adapter keeps its bits, what carries one is W + scale B A rounded once") {
        for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
            CAPTURE(dtype_name(dtype));
            LoraSettings lora = tiny_lora(3);
            lora.target_modules = {"c_attn"};
            TinyExport tiny("gpt2", lora);
            rewrite(tiny.base.files.path, dtype,
                    [](const std::string& name) { return name.starts_with("transformer.") ? name.substr(12) : name; });
            const MergeReport report = tiny.merge();
            CHECK(report.merged == 2);
            const ModelFiles before(tiny.base.files.path), after(tiny.out);
            CHECK(before.names() == after.names());
            const SafetensorsFile adapter(tiny.adapter / "adapter_model.safetensors");
            for (const std::string& name : before.names()) {
                CAPTURE(name);
                CHECK(after.info(name).dtype == before.info(name).dtype);
                CHECK(after.info(name).shape == before.info(name).shape);
                if (!name.ends_with("attn.c_attn.weight")) {
                    CHECK(raw_bytes(after, name) == raw_bytes(before, name));
                    continue;
                }
                const std::string key =
                    "base_model.model.transformer." + name.substr(0, name.size() - std::string(".weight").size());
                std::vector<float> A(3 * 20), B(60 * 3), W(20 * 60), got(W.size());
                adapter.read_as(key + ".lora_A.weight", A.data());
                adapter.read_as(key + ".lora_B.weight", B.data());
                before.read_as(name, W.data());
                after.read_as(name, got.data());
                const double step = dtype == DType::f32 ? 0x1p-22 : dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
                bool near = true;
                for (size_t in = 0; in < 20; ++in)
                    for (size_t out = 0; out < 60; ++out) {
                        double want = W[in * 60 + out];
                        for (size_t k = 0; k < 3; ++k) want += 7.0 / 3 * B[out * 3 + k] * A[k * 20 + in];
                        near &= std::abs(got[in * 60 + out] - want) <= step * std::abs(want) + 1e-7;
                    }
                CHECK(near);
            }
        }
    }

    TEST_CASE("export: shards, an index, and the files beside the weights") {
        TinyExport tiny("llama");
        const fs::path from = tiny.base.files.path;
        put(from / "tokenizer.json", "{}");
        put(from / "tokenizer_config.json", R"({"x": 1})");
        put(from / "generation_config.json", R"({"eos_token_id": 2})");
        put(from / "optimizer.bin", "not to be copied");
        const MergeReport whole = tiny.merge();
        CHECK(whole.beside.copied ==
              std::vector<std::string>{"tokenizer.json", "tokenizer_config.json", "generation_config.json"});
        CHECK(whole.beside.left_out.empty());
        CHECK(content(tiny.out / "tokenizer_config.json") == R"({"x": 1})");
        const FreshDirectory beside;  // for files that cannot be read by now
        fs::create_directory(from / "merges.txt");
        std::vector<Companion> files;
        for (const char* name : {"merges.txt", "tokenizer.json", "vocab.json", "optimizer.bin"})
            files.push_back({.name = name, .from = from / name});
        const CopyReport some = copy_into(beside.path, files);
        CHECK(some.copied == std::vector<std::string>{"tokenizer.json", "optimizer.bin"});
        CHECK(names_in(beside.path) == std::vector<std::string>{"optimizer.bin", "tokenizer.json"});
        REQUIRE(some.left_out.size() == 2);
        CHECK(has(some.left_out[0], "merges.txt is not copied beside the weights: "));
        CHECK(has(some.left_out[1], (from / "vocab.json").string()));
        const ModelFiles one(tiny.out);
        const fs::path sharded = tiny.dir.path / "sharded";
        const MergeReport report = merge_adapter(from, tiny.base.config, Adapter(tiny.adapter, tiny.base.config),
                                                 sharded, {.dtype = "", .max_shard_bytes = 5000}, tiny.pool);
        CHECK(report.shards > 3);
        CHECK(report.bytes == whole.bytes);
        const ModelFiles many(sharded);
        CHECK(many.files().size() == report.shards);
        CHECK(many.names() == one.names());
        for (const std::string& name : one.names()) CHECK(raw_bytes(many, name) == raw_bytes(one, name));
        for (const SafetensorsFile& file : many.files()) {
            size_t bytes = 0;
            for (const auto& entry : file.entries()) bytes += entry.bytes;
            CHECK((bytes <= 5000 || file.entries().size() == 1));
        }
        const auto index = data::read_json_file(sharded / "model.safetensors.index.json");
        CHECK(index["metadata"]["total_size"] == report.bytes);
        CHECK(index["weight_map"].size() == one.names().size());
    }

    TEST_CASE("export: another dtype is written into config.json as well, and must hold every value") {
        TinyExport tiny("qwen2");
        size_t elems = 0;
        for (const auto& spec : all_tensors(tiny.base.config)) elems += spec.elems();
        CHECK(tiny.merge({.dtype = "bf16"}).bytes == 2 * elems);
        auto before = data::read_json_file(tiny.base.files.path / "config.json");
        const auto after = data::read_json_file(tiny.out / "config.json");
        CHECK(after["torch_dtype"] == "bfloat16");
        before["torch_dtype"] = "bfloat16";
        CHECK(after == before);

        TinyBase large(tiny_config("qwen2", 2));
        write_tiny_model(large.files.path, large.config, [](const TensorSpec& spec, std::vector<float>& values) {
            if (spec.role == Role::final_norm_weight) values[3] = 1e6f;
        });
        const fs::path out = tiny.dir.path / "f16";
        const std::string error = error_of([&] {
            merge_adapter(large.files.path, large.config, Adapter(tiny.adapter, large.config), out, {.dtype = "f16"},
                          tiny.pool);
        });
        CHECK(has(error, "\"model.norm.weight\" has a value beyond the range of F16"));
        CHECK_FALSE(fs::exists(out));
        CHECK(names_in(tiny.dir.path) == std::vector<std::string>{"adapter", "out"});  // and no temporary
    }

    TEST_CASE("export: sums beyond float32 are refused by name in every type, and nothing is written") {
        TinyExport tiny("llama");
        ModelSettings settings = tiny_settings();
        settings.lora = tiny_lora();
        const ModelLayout layout = make_layout(tiny.base.config, settings);
        // 1e25 x 1e25 is infinite; with both signs the sum, infinity less infinity, is NaN.
        for (const float other : {1e25f, -1e25f}) {
            write_trained(tiny.adapter / "adapter_model.safetensors", layout.trained,
                          {{"", [&](size_t index, float* dst) {
                                for (size_t i = 0; i < layout.trained.at(index).elems(); ++i)
                                    dst[i] = i % 2 == 0 ? 1e25f : other;
                            }}});
            for (const char* dtype : {"", "f32", "bf16", "f16"}) {
                CAPTURE(dtype);
                const std::string error = error_of([&] { tiny.merge({.dtype = dtype}); });
                CHECK(has(error, ".weight\" with the adapter has values beyond the range of float32"));
                CHECK(names_in(tiny.out.parent_path()).empty());  // no temporary either
            }
        }
    }

    TEST_CASE("export: what is in the way or does not belong is refused, and nothing is written") {
        TinyExport tiny("qwen3");
        fs::create_directories(tiny.out);
        CHECK(tiny.merge().shards == 1);  // an empty directory is as good as none
        CHECK(has(error_of([&] { tiny.merge(); }), "exists and is not empty"));
        put(tiny.dir.path / "file", "x");
        tiny.out = tiny.dir.path / "file";
        CHECK(has(error_of([&] { tiny.merge(); }), "exists and is no directory"));
        tiny.out = tiny.dir.path / "new";
        CHECK(has(error_of([&] { Adapter(tiny.adapter, tiny_config("qwen3", 3)); }), "layers.2."));
        CHECK(has(error_of([&] { Adapter(tiny.adapter, tiny_config("gpt2", 2)); }), "names nothing"));
        fs::remove(tiny.base.files.path / "model.safetensors");
        CHECK(has(error_of([&] { tiny.merge(); }), "has no weights"));
        CHECK_FALSE(fs::exists(tiny.out));
        fs::rename(tiny.adapter / "adapter_model.safetensors", tiny.adapter / "adapter_model.bin");
        CHECK(has(error_of([&] { Adapter(tiny.adapter, tiny.base.config); }), "a PyTorch pickle"));
        fs::rename(tiny.adapter / "adapter_model.bin", tiny.adapter / "model.safetensors");
        CHECK(has(error_of([&] { Adapter(tiny.adapter, tiny.base.config); }), "a whole model"));
    }

    TEST_CASE("export: a GGUF adapter has llama.cpp's names, scale and order of rows") {
        for (const auto& family : tiny_families()) {
            CAPTURE(family);
            LoraSettings lora = tiny_lora(4);
            lora.rslora = family == "qwen2";
            TinyExport tiny(family, lora);
            const Adapter adapter(tiny.adapter, tiny.base.config);
            const fs::path path = tiny.dir.path / "adapter.gguf";
            write_gguf_adapter(path, tiny.base.config, adapter);
            const data::GgufFile file(path);
            CHECK(file.text("general.type") == "adapter");
            CHECK(file.text("general.architecture") == family);
            CHECK(file.text("adapter.type") == "lora");
            CHECK(file.number("adapter.lora.alpha") == doctest::Approx(lora.rslora ? 14 : 7));
            CHECK(file.tensors().size() == 2 * adapter.modules.size());
            const auto values = [&](const std::string& name, size_t rows, size_t cols) {
                const data::GgufTensor* tensor = file.find(name);
                REQUIRE_MESSAGE(tensor, name);
                CHECK(tensor->type == data::GgmlType::f32);
                CHECK(tensor->shape == std::vector<size_t>{rows, cols});
                CHECK(tensor->offset_bytes % 32 == 0);
                std::vector<float> v(rows * cols);
                file.read(*tensor, 0, v.data(), v.size() * sizeof(float));
                return v;
            };
            const bool gpt2 = family == "gpt2";
            const std::vector<std::string> names =
                gpt2 ? std::vector<std::string>{"attn_qkv", "attn_output", "ffn_up", "ffn_down"}
                     : std::vector<std::string>{"attn_q",   "attn_k", "attn_v",  "attn_output",
                                                "ffn_gate", "ffn_up", "ffn_down"};
            for (size_t i = 0; i < adapter.modules.size(); ++i) {
                const AdapterModule& m = adapter.modules[i];
                const std::string name =
                    "blk." + std::to_string(i / names.size()) + "." + names[i % names.size()] + ".weight";
                CAPTURE(name);
                const auto A = values(name + ".lora_a", 4, m.module.in), B = values(name + ".lora_b", m.module.out, 4);
                CHECK(std::equal(A.begin(), A.end(), m.A));
                const bool turned = family == "llama" && i % names.size() < 2;
                bool same = true;
                for (size_t row = 0; row < m.module.out; ++row) {
                    // reshape(heads, 2, HD / 2).swapaxes(1, 2), as the conversion has it
                    const size_t HD = static_cast<size_t>(tiny.base.config.HD);
                    const size_t from = turned ? row / HD * HD + row % HD % 2 * (HD / 2) + row % HD / 2 : row;
                    same &= std::equal(B.begin() + row * 4, B.begin() + row * 4 + 4, m.B + from * 4);
                }
                CHECK(same);
            }
        }
        TinyExport mistral("llama");
        ModelConfig config = mistral.base.config;
        config.family = Family::mistral;
        write_gguf_adapter(mistral.dir.path / "m.gguf", config, Adapter(mistral.adapter, config));
        CHECK(data::GgufFile(mistral.dir.path / "m.gguf").text("general.architecture") == "llama");
    }

    TEST_CASE("export: a GGUF base gives the Hugging Face model that it was made from, with the adapter") {
        for (const char* family : {"llama", "qwen3", "gpt2"}) {
            CAPTURE(family);
            const fs::path folder = fs::path("tests/gguf") / family;
            const ModelConfig config = read_model_config(folder / "config.json");
            const FreshDirectory dir;
            write_adapter(dir.path / "adapter", config, tiny_lora());
            const Adapter adapter(dir.path / "adapter", config);
            ThreadPool pool(1);
            const MergeSettings f32{.dtype = "f32"};
            merge_adapter(folder, config, adapter, dir.path / "files", f32, pool);
            const auto report = merge_adapter(folder / "model.gguf", config, adapter, dir.path / "decoded", f32, pool);
            const ModelFiles files(dir.path / "files"), decoded(dir.path / "decoded");
            CHECK(report.merged == adapter.modules.size());
            CHECK(decoded.names() == files.names());
            for (const std::string& name : files.names()) {
                CAPTURE(name);
                CHECK(decoded.info(name).shape == files.info(name).shape);
                CHECK(raw_bytes(decoded, name) == raw_bytes(files, name));
            }
            const ModelConfig again = read_model_config(dir.path / "decoded" / "config.json");
            CHECK(describe(again) == describe(config));
            merge_adapter(folder / "model.gguf", config, adapter, dir.path / "narrow", {}, pool);
            const ModelFiles narrow(dir.path / "narrow");
            for (const std::string& name : narrow.names()) CHECK(narrow.info(name).dtype == DType::bf16);
        }
    }

    TEST_CASE("export: the command line") {
        TinyExport tiny("llama");
        std::ostringstream out, err;
        const auto run = [&](std::vector<std::string> arguments) {
            std::vector<const char*> argv = {"export_gpt"};
            for (const auto& a : arguments) argv.push_back(a.c_str());
            out.str("");
            err.str("");
            return run_export(static_cast<int>(argv.size()), argv.data(), out, err);
        };
        const std::string base = tiny.base.files.path, adapter = tiny.adapter;
        CHECK(run({"--base-model", base, "--adapter", adapter}) == 1);
        CHECK(has(err.str(), "nothing to write"));
        const std::string merged = tiny.dir.path / "merged", gguf = tiny.dir.path / "a.gguf";
        CHECK(run({"--base_model", base, "--adapter", adapter, "--merge", merged, "--gguf-adapter", gguf,
                   "--max-shard-size", "4K", "--dtype", "bf16"}) == 0);
        CHECK(err.str() == "");
        CHECK(has(out.str(), "adapter of rank 3, scale 2.33333, on 14 modules"));
        CHECK(has(out.str(), "14 of "));
        CHECK(fs::exists(gguf));
        CHECK(run({"--base-model", base, "--adapter", adapter, "--merge", merged}) == 1);
        CHECK(has(err.str(), "not empty"));
        CHECK(run({"--base-model", base, "--adapter", adapter, "--gguf-adapter", gguf, "--dtype", "bf16"}) == 1);
        CHECK(has(err.str(), "--dtype"));
        CHECK(run({"--base-model", base, "--adapter", adapter, "--merge", merged, "--dtype", "int8"}) == 1);
        fs::remove(gguf);
        CHECK(run({"--base-model", base, "--adapter", base, "--gguf-adapter", gguf}) == 1);
        CHECK(has(err.str(), "adapter_config.json"));
    }

    TEST_CASE("export: outputs replace nothing, inputs least of all, and neither is begun when one is refused") {
        TinyExport tiny("llama");
        const std::string base = tiny.base.files.path, adapter = tiny.adapter, merged = tiny.dir.path / "merged";
        const auto error_for = [&](const std::string& gguf) {
            std::ostringstream out, err;
            std::vector<const char*> argv = {"export_gpt",   "--base-model",   base.c_str(),
                                             "--adapter",    adapter.c_str(),  "--merge",
                                             merged.c_str(), "--gguf-adapter", gguf.c_str()};
            CHECK(run_export(static_cast<int>(argv.size()), argv.data(), out, err) == 1);
            CHECK_FALSE(fs::exists(merged));
            return err.str();
        };
        fs::create_symlink("nowhere", tiny.dir.path / "link.gguf");
        for (const fs::path& there : {tiny.adapter / "adapter_model.safetensors", tiny.base.files.path / "config.json",
                                      tiny.base.files.path / "model.safetensors", tiny.dir.path / "link.gguf"}) {
            CAPTURE(there.string());
            const std::string before = fs::exists(there) ? content(there) : "";
            CHECK(has(error_for(there), there.string() + ": exists, and would be replaced; wanted a new file"));
            CHECK((fs::exists(there) ? content(there) : "") == before);
        }
        for (const fs::path& inside : {tiny.dir.path / "merged", tiny.dir.path / "new" / ".." / "merged"})
            CHECK(has(error_for(inside), "wanted a file outside the merged model's directory"));
        CHECK(has(error_for(tiny.dir.path / "merged" / "a.gguf"), "the directory it shall lie in does not exist"));
        CHECK(has(error_for(tiny.dir.path / "none" / "a.gguf"), "the directory it shall lie in does not exist"));
        fs::create_directory(merged);  // as --merge takes it, and then this is a place in it
        std::ostringstream out, err;
        const std::string inside = merged + "/a.gguf";
        const std::vector<const char*> argv = {"export_gpt",   "--base-model",   base.c_str(),
                                               "--adapter",    adapter.c_str(),  "--merge",
                                               merged.c_str(), "--gguf-adapter", inside.c_str()};
        CHECK(run_export(static_cast<int>(argv.size()), argv.data(), out, err) == 1);
        CHECK(has(err.str(), "wanted a file outside the merged model's directory"));
        CHECK(fs::is_empty(merged));
    }
}
