// Logits of a base model, or of one with an adapter, for comparing with other programs' (dev/reference/check_gguf.py,
// check_adapter.py).
//
// TOKENS is a safetensors file with input_ids (int32 [B, T]); OUT gets input_ids and logits [B, T, V] in float32. Rows
// are computed one at a time; attention is causal, so rows may be filled up at their ends with anything.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "data/base/command_line.h"
#include "data/base/error.h"
#include "data/base/output_paths.h"
#include "kernels/cross_entropy.h"
#include "train/files/adapter_files.h"
#include "train/files/base_config.h"
#include "train/files/model_directory.h"
#include "train/files/safetensors.h"
#include "train/files/safetensors_writer.h"
#include "train/model/memory_plan.h"
#include "train/model/model.h"
#include "train/model/step_loop.h"
#include "train/run/session.h"
#include "train/spec/micro_batch.h"

namespace fs = std::filesystem;
using namespace slab;
using namespace slab::train;

namespace {

struct Arguments {
    std::string base, tokens, out, adapter_in;
    OffloadFlags offload;
    int threads = 0;
};

struct Tokens {
    size_t B, T;
    std::vector<int32_t> ids;  // [B, T]
};

Tokens read_tokens(const fs::path& path, int V) {
    const SafetensorsFile file(path);
    const SafetensorsEntry& entry = file.at("input_ids");
    if (entry.shape.size() != 2 || entry.elems == 0)
        throw data::UserError(path.string() + ": input_ids has shape " + shape_text(entry.shape) +
                              ", wanted [B, T], neither 0");
    Tokens tokens{entry.shape[0], entry.shape[1], std::vector<int32_t>(entry.elems)};
    file.read_raw("input_ids", DType::i32, tokens.ids.data());
    for (const int32_t id : tokens.ids)
        if (id < 0 || id >= V)
            throw data::UserError(path.string() + ": token " + std::to_string(id) + ", wanted one from 0 to " +
                                  std::to_string(V - 1));
    return tokens;
}

void run(const Arguments& a) {
    data::require_new_file("out", a.out);
    const ModelConfig config = read_base_config(a.base);
    const Tokens tokens = read_tokens(a.tokens, config.V);
    ModelSettings settings;
    settings.B = 1;
    settings.T = static_cast<int>(tokens.T);
    settings.freeze_layers = config.L;
    if (!a.adapter_in.empty()) {
        settings.lora = read_adapter_config(fs::path(a.adapter_in) / kAdapterConfigFile, config);
        settings.freeze_layers = 0;
    }
    apply_offload_flags(settings, a.offload, config.L);
    std::unique_ptr<Device> device = open_device(a.threads, a.offload);
    const ModelLayout layout = plan_layout(*device, config, settings, a.offload);
    check_memory(*device, layout);
    BaseWeights weights = BaseWeights::from_files(a.base, config);
    const Session session = open_session(std::move(device), layout, weights, {}, a.adapter_in);
    Model& model = *session.model;

    std::vector<float> logits;  // [B, T, V]
    for (size_t b = 0; b < tokens.B; ++b) {
        MicroBatch batch;
        batch.B = 1;
        batch.T = settings.T;
        batch.tokens.assign(tokens.ids.begin() + b * tokens.T, tokens.ids.begin() + (b + 1) * tokens.T);
        batch.targets.assign(tokens.T, kIgnoreTarget);
        StreamingScope scope(model.offload(), layout.evaluation_visits());
        const std::vector<float> row = model.logits(batch, 0, tokens.T);
        scope.finish();
        logits.insert(logits.end(), row.begin(), row.end());
    }
    SafetensorsWriter writer;
    writer.add("input_ids", DType::i32, {tokens.B, tokens.T}, tokens.ids.data());
    writer.add("logits", {tokens.B, tokens.T, static_cast<size_t>(config.V)}, logits.data());
    writer.write(a.out);
    std::cout << describe(config) << "\nlogits [" << tokens.B << ", " << tokens.T << ", " << config.V << "] -> "
              << a.out << "\n";
}

}  // namespace

int main(int argc, char** argv) {
    data::prepare_standard_streams();
    CLI::App app("Writes the logits of a model for given tokens.", "logits_gpt");
    Arguments a;
    app.add_option("base", a.base, "Hugging Face directory or GGUF file")->required();
    app.add_option("tokens", a.tokens, "safetensors file with input_ids, int32 [B, T]")->required();
    app.add_option("out", a.out, "new safetensors file: input_ids and logits [B, T, V]")->required();
    app.add_option("--adapter-in", a.adapter_in, "PEFT directory of an adapter to apply");
    app.add_option("--threads", a.threads, "CPU threads; 0: all cores");
    add_offload_flags(app, a.offload);
    if (const auto code = data::parse_command_line(app, argc, argv, std::cout, std::cerr)) return *code;
    try {
        run(a);
        return 0;
    } catch (const std::exception& error) {
        std::cerr << "logits_gpt: " << error.what() << "\n";
        return 1;
    }
}
