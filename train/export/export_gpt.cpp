// The command line of export_gpt, and its outputs in order: the merged model, then the GGUF adapter.
#include "train/export/export_gpt.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <ostream>
#include <string>

#include "data/base/byte_size.h"
#include "data/base/command_line.h"
#include "data/base/error.h"
#include "data/base/output_paths.h"
#include "data/base/stop_signals.h"
#include "data/gguf/gguf.h"
#include "data/hub_cache.h"
#include "train/export/adapter.h"
#include "train/export/gguf_adapter.h"
#include "train/export/merge_adapter.h"
#include "train/files/adapter_record.h"
#include "train/files/base_config.h"
#include "train/files/base_weights.h"
#include "train/run/run_setup.h"
#include "train/spec/text.h"

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

// Both outputs are checked before either is begun. They replace nothing.
void check_outputs(const ExportOptions& o) {
    if (!o.merge.empty()) data::require_new_directory("--merge", o.merge);
    if (o.gguf_adapter.empty()) return;
    data::require_new_file("--gguf-adapter", o.gguf_adapter);
    if (!o.merge.empty() && (data::lies_in(o.gguf_adapter, o.merge) || data::lies_in(o.merge, o.gguf_adapter)))
        throw data::UserError({.subject = "--gguf-adapter " + o.gguf_adapter,
                               .given = "lies in --merge " + o.merge + ", or around it",
                               .wanted = "a file outside the merged model's directory"});
}

// An adapter that was trained on other numbers than those that it is merged into.
void note_other_numbers(const fs::path& adapter, const fs::path& base, const ModelConfig& config, std::ostream& out) {
    const auto record = read_adapter_record(adapter);
    if (!record) return;
    const std::string fingerprint = BaseWeights::from_files(base, config).fingerprint(config);
    if (const std::string other = other_numbers(*record, SlabFormat::bf16, fingerprint); !other.empty())
        out << "note: it is merged into the file's weights; the adapter " << other << "\n";
}

void export_all(const ExportOptions& o, std::ostream& out, data::StopToken stop) {
    if (o.merge.empty() && o.gguf_adapter.empty())
        throw data::UserError({.given = "nothing to write", .wanted = "--merge OUT, --gguf-adapter OUT.gguf, or both"});
    MergeSettings settings;
    settings.stop = stop;
    settings.dtype = o.dtype;
    settings.max_shard_bytes = data::parse_size(o.max_shard_size, "--max-shard-size");
    if (o.merge.empty() && !o.dtype.empty())
        throw data::UserError({.subject = "--dtype " + o.dtype,
                               .given = "is the type of merged weights, and a GGUF adapter is float32",
                               .wanted = "--merge with it"});
    settings.adapter_directory = o.adapter;
    check_outputs(o);

    const fs::path base = data::find_model("--base-model", o.base_model);
    const ModelConfig config = read_base_config(base);
    out << describe(config) << "\n";
    for (const std::string& notice : config.weight_notices) out << "note: " << notice << "\n";
    const Adapter adapter(o.adapter, config);
    out << "adapter of rank " << adapter.lora.r << ", scale " << format_text("%g", adapter.lora.scale()) << ", on "
        << adapter.modules.size() << " modules\n";
    if (!o.merge.empty()) {
        if (stores_blocks(base, config) && o.dtype.empty())
            out << "note: the merged weights are bf16, since the base's blocks cannot be kept; --dtype f32 keeps all "
                   "that they hold\n";
        note_other_numbers(o.adapter, base, config, out);
        ThreadPool pool(o.threads);
        const MergeReport report = merge_adapter(base, config, adapter, o.merge, settings, pool);
        out << "wrote " << o.merge << ": " << memory_text(report.bytes) << " of weights in " << report.shards
            << (report.shards == 1 ? " file" : " files") << ", " << report.merged << " of " << report.tensors
            << " tensors merged";
        for (const std::string& name : report.beside.copied)
            out << (&name == &report.beside.copied.front() ? "; with " : ", ") << name;
        out << "\n";
        if (!report.ends.empty()) {
            out << "note: generation_config.json stops at";
            for (const int64_t id : report.ends) out << " " << id;
            out << " too, where the adapter ends its replies (its eos_token_id)\n";
        }
        for (const std::string& why : report.beside.left_out) out << "note: " << why << "\n";
    }
    if (!o.gguf_adapter.empty()) {
        write_gguf_adapter(o.gguf_adapter, config, adapter, stop);
        out << "wrote " << o.gguf_adapter << ": " << memory_text(fs::file_size(o.gguf_adapter)) << ", "
            << 2 * adapter.modules.size() << " tensors\n";
    }
}

}  // namespace

int run_export(int argc, const char* const* argv, std::ostream& out, std::ostream& err, data::StopToken stop) {
    ExportOptions options;
    CLI::App app("Makes an adapter into what other tools load. Needs no GPU.", "export_gpt");
    add_flags(app, options);
    if (const auto code = data::parse_command_line(app, argc, argv, out, err)) return *code;
    try {
        export_all(options, out, stop);
        if (!out.flush()) throw data::IoError("the files are written, but this report could not be printed");
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
