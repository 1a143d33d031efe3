// What export_gpt owes to one family or one kind of base: a Mistral's rows in llama.cpp's order, and a head that is
// stored although it is tied.
#include <vector>

#include "data/gguf/gguf.h"
#include "tests/training_bench.h"
#include "train/export/adapter.h"
#include "train/export/export_gpt.h"
#include "train/export/gguf_adapter.h"
#include "train/export/merge_adapter.h"
#include "train/files/adapter_files.h"
#include "train/files/model_files.h"

using namespace slab;
using namespace slab::train;
using namespace slab::test;
namespace fs = std::filesystem;

namespace {

// The bench's base and the adapter of its run "run".
int export_run(const Bench& bench, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"export_gpt", "--base-model", bench.base.files.path, "--adapter",
                                          bench.run_dir("run")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    std::vector<const char*> argv;
    for (const auto& argument : arguments) argv.push_back(argument.c_str());
    std::ostringstream out, err;
    const int code = run_export(static_cast<int>(argv.size()), argv.data(), out, err);
    CHECK(err.str() == "");
    return code;
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("export: the GGUF adapter of a Mistral is that of the same model called Llama") {
        ModelConfig llama = tiny_config("llama", 2), mistral = llama;
        llama.qkv_bias = llama.o_bias = llama.mlp_bias = false;
        llama.rope_scaling = {};
        mistral = llama;
        mistral.family = Family::mistral;
        std::vector<std::string> files;
        for (const ModelConfig& config : {llama, mistral}) {
            const Bench bench(config);
            bench.run_well("run", {{"--max-steps", "2"}});
            const fs::path file = bench.dir.path / "adapter.gguf";
            REQUIRE(export_run(bench, {"--gguf-adapter", file.string()}) == 0);
            const data::GgufFile adapter(file);
            CHECK(adapter.text("general.architecture") == "llama");
            std::string all;
            for (const data::GgufTensor& tensor : adapter.tensors()) {
                std::string bytes(tensor.bytes, '\0');
                adapter.read(tensor, 0, bytes.data(), bytes.size());
                all += tensor.name + bytes;
            }
            files.push_back(all);
        }
        CHECK(files[0] == files[1]);
        CHECK(files[0].size() > 1000);
    }

    TEST_CASE("export: a head that is stored beside the embeddings it is tied to takes --dtype too") {
        const Bench bench("qwen2");
        const fs::path path = bench.base.files.path / "model.safetensors";
        SafetensorsWriter writer;
        std::vector<std::vector<float>> kept;
        {
            const SafetensorsFile file(path);
            for (const SafetensorsEntry& entry : file.entries()) {
                auto& values = kept.emplace_back(entry.elems);
                file.read_as(entry.name, values.data());
                writer.add(entry.name, DType::f32, entry.shape, kept.back().data());
                if (entry.name == "model.embed_tokens.weight")
                    writer.add("lm_head.weight", DType::f32, entry.shape, kept.back().data());
            }
        }
        writer.write(path);
        bench.run_well("run", {{"--max-steps", "1"}});
        const fs::path merged = bench.dir.path / "merged";
        REQUIRE(export_run(bench, {"--merge", merged.string(), "--dtype", "bf16"}) == 0);
        const ModelFiles files(merged);
        for (const char* name : {"lm_head.weight", "model.embed_tokens.weight"})
            CHECK(files.info(name).dtype == DType::bf16);
        const auto raw = [&](const std::string& name) {
            std::string bytes(files.info(name).bytes, '\0');
            files.file_of(name).read_raw(name, DType::bf16, bytes.data());
            return bytes;
        };
        CHECK(raw("lm_head.weight") == raw("model.embed_tokens.weight"));
    }
}
