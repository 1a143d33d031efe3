// The command line, the adapter read, and the GGUF adapter written. Merging is in merge_adapter.cpp. See export.h.
#include "train/export/export.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ostream>
#include <stdexcept>

#include "data/base/byte_size.h"
#include "data/base/command_line.h"
#include "data/base/output_paths.h"
#include "data/base/stop_signals.h"
#include "data/gguf/gguf.h"
#include "data/gguf/gguf_writer.h"
#include "data/hub_cache.h"
#include "train/files/adapter_files.h"
#include "train/files/base_config.h"
#include "train/files/gguf_weights.h"
#include "train/run/run_setup.h"
#include "train/spec/lora.h"
#include "train/spec/text.h"
#include "train/spec/trained_table.h"

namespace slab::train {

namespace fs = std::filesystem;

namespace {

struct ExportOptions {
    std::string base_model, adapter, merge, gguf_adapter, dtype, max_shard_size = "5G";
    int threads = 0;
};

void add_flags(CLI::App& app, ExportOptions& o) {
    app.add_option("--base-model", o.base_model, "the model the adapter was trained on: directory, file, or org/name")
        ->required();
    app.add_option("--adapter", o.adapter, "PEFT directory: adapter_config.json, adapter_model.safetensors")
        ->required();
    app.add_option("--merge", o.merge, "write base and adapter as one Hugging Face model into this directory");
    app.add_option("--gguf-adapter", o.gguf_adapter, "write the adapter alone as a GGUF LoRA, which llama.cpp loads");
    app.add_option("--dtype", o.dtype, "of the merged weights: f32, bf16 or f16; default: as the base has each")
        ->check(CLI::IsMember({"f32", "bf16", "f16"}));
    app.add_option("--max-shard-size", o.max_shard_size, "largest file of weights")->capture_default_str();
    app.add_option("--threads", o.threads, "CPU threads; 0: all cores (the bits do not depend on it)")
        ->check(CLI::Range(0, 1024));
}

// Rows of B [out, r] of q or k from our order into GGUF's.
void reorder_rows(const float* src, size_t out, size_t r, int HD, float* dst) {
    for (size_t row = 0; row < out; ++row) std::copy_n(src + row * r, r, dst + gguf_row(row, HD) * r);
}

// Both outputs, before either is begun: the adapter's files and the base's are never in the way of what is new.
void check_outputs(const ExportOptions& o) {
    if (!o.merge.empty()) data::require_new_directory("--merge", o.merge);
    if (o.gguf_adapter.empty()) return;
    data::require_new_file("--gguf-adapter", o.gguf_adapter);
    if (!o.merge.empty() && (data::lies_in(o.gguf_adapter, o.merge) || data::lies_in(o.merge, o.gguf_adapter)))
        throw std::runtime_error("--gguf-adapter " + o.gguf_adapter + ": and --merge " + o.merge +
                                 " are one in the other; wanted a file outside the merged model's directory");
}

void export_all(const ExportOptions& o, std::ostream& out, data::StopToken stop) {
    if (o.merge.empty() && o.gguf_adapter.empty())
        throw std::runtime_error("nothing to write: give --merge OUT, --gguf-adapter OUT.gguf, or both");
    MergeSettings settings;
    settings.stop = stop;
    settings.dtype = o.dtype;
    settings.max_shard_bytes = data::parse_size(o.max_shard_size, "--max-shard-size");
    if (o.merge.empty() && !o.dtype.empty())
        throw std::runtime_error("--dtype is of merged weights and needs --merge; a GGUF adapter is float32");
    check_outputs(o);

    const fs::path base = data::find_model("--base-model", o.base_model);
    const ModelConfig config = read_base_config(base);
    out << describe(config) << "\n";
    const Adapter adapter(o.adapter, config);
    out << "adapter of rank " << adapter.lora.r << ", scale " << format_text("%g", adapter.lora.scale()) << ", on "
        << adapter.modules.size() << " modules\n";
    if (!o.merge.empty()) {
        if (data::is_gguf_file(base) && o.dtype.empty())
            out << "note: the merged weights are bf16, since a GGUF file's blocks cannot be kept; --dtype f32 keeps "
                   "all "
                   "that they hold\n";
        ThreadPool pool(o.threads);
        const MergeReport report = merge_adapter(base, config, adapter, o.merge, settings, pool);
        out << "wrote " << o.merge << ": " << memory_text(report.bytes) << " of weights in " << report.shards
            << (report.shards == 1 ? " file" : " files") << ", " << report.merged << " of " << report.tensors
            << " tensors merged";
        for (const std::string& name : report.beside.copied)
            out << (&name == &report.beside.copied.front() ? "; with " : ", ") << name;
        out << "\n";
        for (const std::string& why : report.beside.left_out) out << "note: " << why << "\n";
    }
    if (!o.gguf_adapter.empty()) {
        write_gguf_adapter(o.gguf_adapter, config, adapter, stop);
        out << "wrote " << o.gguf_adapter << ": " << memory_text(fs::file_size(o.gguf_adapter)) << ", "
            << 2 * adapter.modules.size() << " tensors\n";
    }
}

}  // namespace

Adapter::Adapter(const fs::path& directory, const ModelConfig& config)
    : lora(read_adapter_config(directory / kAdapterConfigFile, config)) {
    TrainedTable table;
    const auto add = [&](const LinearModule& module, char which, size_t rows, size_t cols) {
        table.add({.key = peft_key(module.path, which),
                   .kind = which == 'A' ? TrainedKind::lora_A : TrainedKind::lora_B,
                   .rows = rows,
                   .cols = cols,
                   .matrix = true,
                   .decay = true,
                   .transposed = false,
                   .joined = false,
                   .layer = -1});
    };
    const size_t r = static_cast<size_t>(lora.r);
    for (int l = 0; l < config.L; ++l)
        for (const LinearModule& module : adapted_modules(config, lora, l)) {
            add(module, 'A', r, module.in);
            add(module, 'B', module.out, r);
            modules.push_back({module, nullptr, nullptr});
        }
    packed = read_trained(adapter_weights_file(directory), table);
    const float* next = packed.data();
    for (AdapterModule& m : modules) {
        m.A = next;
        m.B = next + r * m.module.in;
        next = m.B + m.module.out * r;
    }
}

void write_gguf_adapter(const fs::path& file, const ModelConfig& config, const Adapter& adapter, data::StopToken stop) {
    const LoraSettings& lora = adapter.lora;
    const size_t r = static_cast<size_t>(lora.r);
    // llama.cpp converts Mistral as llama.
    const bool llama = config.family == Family::llama || config.family == Family::mistral;
    data::GgufWriter writer;
    writer.put("general.architecture", llama ? "llama" : family_name(config.family));
    writer.put("general.type", "adapter");
    writer.put("adapter.type", "lora");
    // Its scale is alpha / r; for rsLoRA alpha is what makes that ours.
    writer.put("adapter.lora.alpha", lora.rslora ? lora.scale() * static_cast<float>(lora.r) : lora.alpha);
    for (const AdapterModule& m : adapter.modules) {
        const LinearModule& module = m.module;
        const std::string key = module.path + ".weight", name = gguf_name(key) + ".lora_";
        const bool reorders = gguf_reorders_rows(config.family, key);
        writer.add(name + "a", {r, module.in}, [&m, r, stop](float* dst) {
            stop.throw_if_requested();
            std::copy_n(m.A, r * m.module.in, dst);
        });
        writer.add(name + "b", {module.out, r}, [&m, r, stop, reorders, HD = config.HD](float* dst) {
            stop.throw_if_requested();
            if (reorders)
                reorder_rows(m.B, m.module.out, r, HD, dst);
            else
                std::copy_n(m.B, m.module.out * r, dst);
        });
    }
    writer.write(file);
}

int run_export(int argc, const char* const* argv, std::ostream& out, std::ostream& err, data::StopToken stop) {
    ExportOptions options;
    CLI::App app("Makes an adapter into what other tools load. Needs no GPU.", "export_gpt");
    add_flags(app, options);
    if (const auto code = data::parse_command_line(app, argc, argv, out, err)) return *code;
    try {
        export_all(options, out, stop);
        if (!out.flush()) throw std::runtime_error("the files are written, but this report could not be printed");
    } catch (const data::Interrupted&) {
        out.flush();
        err << "export_gpt: interrupted; what was being written is removed\n";
        return data::kExitInterrupted;
    } catch (const std::exception& error) {
        out.flush();
        err << "export_gpt: " << error.what() << "\n";
        return 1;
    }
    return 0;
}

}  // namespace slab::train
