// From flags to what a run is made of. See run_setup.h.
#include "train/run/run_setup.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <numbers>
#include <sstream>
#include <stdexcept>

#include "data/gguf/gguf.h"
#include "kernels/attention/attention.h"
#include "train/files/gguf_config.h"
#include "train/files/model_directory.h"
#include "train/files/model_files.h"
#include "train/spec/text.h"

namespace slab::train {

namespace fs = std::filesystem;

namespace {

// Names in a run's identity that are no flags.
constexpr const char* kTokensName = "tokens of --train-data (a hash)";
constexpr const char* kRowsName = "rows of --train-data";
constexpr const char* kStepsName = "--max-steps (or --num-epochs)";

// What of a run's identity follows from other parts of it. A difference there is named only when these are the same, or
// a user would be told of a flag that nobody gave.
struct Derived {
    const char* name;
    std::vector<const char*> from;
};
const std::vector<Derived>& derived_names() {
    static const std::vector<Derived> names = {
        {kTokensName, {"--sequence-len", "--sample-packing", "--train-on-inputs", "--chat-template"}},
        {kRowsName, {kTokensName, "--sequence-len", "--sample-packing", "--train-on-inputs", "--chat-template"}},
        {kStepsName, {kRowsName, kTokensName, "--micro-batch-size", "--gradient-accumulation-steps"}},
    };
    return names;
}

// Why a directory may have no config.json, as advice.
std::string hint_without_config(const fs::path& config) {
    std::error_code error;
    if (fs::is_symlink(config, error)) return "; it" + dangling_link_text(config);
    for (const auto& item : fs::directory_iterator(config.parent_path(), error))
        if (item.path().extension() == ".gguf")
            return "; there is a GGUF file, which is a model by itself: --base-model " + item.path().string();
    return "";
}

}  // namespace

// Path to config.json's directory: --base-model may also name a file of weights or config.json itself.
fs::path config_path(const fs::path& given) {
    std::error_code error;
    const fs::file_status status = fs::status(given, error);
    if (!fs::exists(status))
        throw std::runtime_error("--base-model " + given.string() + ": " +
                                 (error ? error.message() : "no such file or directory") +
                                 "; wanted a Hugging Face directory (config.json, *.safetensors)");
    const fs::path config = fs::is_directory(status)               ? given / kModelConfigFile
                            : given.filename() == kModelConfigFile ? given
                                                                   : given.parent_path() / kModelConfigFile;
    if (!fs::exists(config, error) && error)
        throw std::runtime_error("--base-model " + given.string() + ": " + config.string() + " cannot be looked at: " +
                                 error.message() + "; wanted a Hugging Face directory that may be read");
    if (!fs::exists(config, error))
        throw std::runtime_error("--base-model " + given.string() + ": there is no " + config.string() +
                                 "; wanted a Hugging Face directory (config.json, *.safetensors)" +
                                 hint_without_config(config));
    return config;
}

ModelConfig read_base_config(const fs::path& base_model) {
    if (data::is_gguf_file(base_model)) return read_gguf_config(data::GgufFile(base_model));
    return read_model_config(config_path(base_model));
}

LoraSettings lora_of_flags(const TrainOptions& o) {
    LoraSettings lora{.r = o.lora_r,
                      .alpha = static_cast<float>(o.lora_alpha),
                      .dropout = static_cast<float>(o.lora_dropout),
                      .rslora = o.use_rslora,
                      .target_modules = {},
                      .layers_to_transform = {}};
    std::stringstream targets(o.lora_target_modules);
    for (std::string name; std::getline(targets, name, ',');)
        if (!name.empty()) lora.target_modules.push_back(name);
    return lora;
}

ModelSettings settings_from(const TrainOptions& o, const ModelConfig& config) {
    ModelSettings s;
    s.B = o.micro_batch_size;
    s.T = o.sequence_len;
    s.freeze_layers = std::max(o.freeze_layers, 0);
    apply_offload_flags(s, o.offload, config.L);
    if (o.adapter == "none") return s;
    s.lora = o.adapter_in.empty() ? lora_of_flags(o)
                                  : read_adapter_config(fs::path(o.adapter_in) / kAdapterConfigFile, config);
    return s;
}

void check_has_targets(DataLoader& validation) {
    for (uint64_t row = 0; row < validation.rows(); ++row)
        if (validation.batch(row, 1).target_count() != 0) return;
    throw std::runtime_error(validation.file().path().string() + ": none of the " + count_text(validation.rows()) +
                             " rows to evaluate on has a target, a token that counts for the loss; look at its mask "
                             "file, or leave out --val-data or --val-set-size");
}

int64_t total_steps(const TrainOptions& o, uint64_t rows) {
    if (o.max_steps > 0) return o.max_steps;
    const double samples = o.num_epochs * static_cast<double>(rows);
    const double per_step = static_cast<double>(o.micro_batch_size) * o.gradient_accumulation_steps;
    return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(samples / per_step)));
}

// What decides the bits of a run beside the files: a resumed run must agree in all of it.
std::map<std::string, std::string> identity_of(const TrainOptions& o, const ModelLayout& layout, int64_t steps,
                                               const DataLoader& train_data) {
    std::map<std::string, std::string> id = {
        {"--sequence-len", std::to_string(o.sequence_len)},
        {"--micro-batch-size", std::to_string(o.micro_batch_size)},
        {"--gradient-accumulation-steps", std::to_string(o.gradient_accumulation_steps)},
        {"--seed", std::to_string(o.seed)},
        {"--learning-rate", format_text("%.9g", o.learning_rate)},
        {"--lr-scheduler", o.lr_scheduler},
        {"--warmup-ratio", format_text("%.9g", o.warmup_ratio)},
        {"--warmup-steps", std::to_string(o.warmup_steps)},
        {"--weight-decay", format_text("%.9g", o.weight_decay)},
        {"--max-grad-norm", format_text("%.9g", o.max_grad_norm)},
        {"--adam-beta1", format_text("%.9g", o.adam_beta1)},
        {"--adam-beta2", format_text("%.9g", o.adam_beta2)},
        {"--adam-epsilon", format_text("%.9g", o.adam_epsilon)},
        {"--freeze-layers", std::to_string(layout.settings.freeze_layers)},
        {"--from-scratch", o.from_scratch ? "true" : "false"},
        {kStepsName, std::to_string(steps)},
        {"--sample-packing", o.sample_packing ? "true" : "false"},
        {"--train-on-inputs", o.train_on_inputs ? "true" : "false"},
        {"--chat-template", o.chat_template},
        {kRowsName, std::to_string(train_data.rows())},
        {kTokensName, format_text("%016" PRIx64, train_data.file().content_hash())},
    };
    id["--adapter"] = layout.settings.lora ? "lora" : "none";
    id["precision of the build"] = kPrecision;
    if (kBackend == Backend::cuda && generic_kernels_forced()) id["SLABSTREAM_GENERIC_KERNELS"] = "1";
    if (layout.settings.lora) {
        const LoraSettings& lora = *layout.settings.lora;
        std::string targets;
        std::vector<std::string> names = lora.target_modules;  // their order means nothing
        std::sort(names.begin(), names.end());
        for (const auto& name : names) targets += (targets.empty() ? "" : ",") + name;
        id["--lora-r"] = std::to_string(lora.r);
        id["--lora-alpha"] = format_text("%.9g", lora.alpha);
        id["--lora-dropout"] = format_text("%.9g", lora.dropout);
        id["--lora-target-modules"] = targets;
        std::string layers;
        for (const int layer : lora.layers_to_transform) layers += (layers.empty() ? "" : ",") + std::to_string(layer);
        id["layers_to_transform"] = layers;
        id["--use-rslora"] = lora.rslora ? "true" : "false";
    }
    return id;
}

std::string identity_differences(const std::map<std::string, std::string>& then,
                                 const std::map<std::string, std::string>& now) {
    const auto value_in = [](const auto& identity, const std::string& name) {
        const auto found = identity.find(name);
        return found == identity.end() || found->second.empty() ? "unset" : found->second;
    };
    const auto differs = [&](const std::string& name) { return value_in(then, name) != value_in(now, name); };
    const auto said = [&](const std::string& words, const std::string& name) {
        return words + value_in(then, name) + ", this one has " + value_in(now, name);
    };
    std::map<std::string, std::string> all = then;
    all.insert(now.begin(), now.end());
    std::string flags, data;
    for (const auto& [name, value] : all) {
        const auto& names = derived_names();
        const auto from =
            std::find_if(names.begin(), names.end(), [&name = name](const Derived& d) { return d.name == name; });
        if (!differs(name)) continue;
        if (from != names.end() && std::any_of(from->from.begin(), from->from.end(), differs)) continue;
        if (name == kTokensName)
            data += said(
                "the data of --train-data has changed (or what --val-set-size holds out of it): the hash of its tokens "
                "was ",
                name);
        else if (name == kRowsName)
            data += said("the rows of --train-data were ", name);
        else
            flags += (flags.empty() ? "the run was made with " : "; with ") + said(name + " ", name);
    }
    return flags + (flags.empty() || data.empty() ? "" : "; ") + data;
}

std::pair<int64_t, int64_t> parse_trace_steps(const std::string& text) {
    int64_t first = 0, last = 0;
    int used = 0;
    if (std::sscanf(text.c_str(), "%" SCNd64 ":%" SCNd64 "%n", &first, &last, &used) != 2 ||
        static_cast<size_t>(used) != text.size() || first < 1 || last < first || last - first >= kMostTracedSteps)
        throw std::runtime_error("--trace-steps \"" + text + "\": wanted FIRST:LAST, counted from 1, at most " +
                                 std::to_string(kMostTracedSteps) + " steps");
    return {first, last};
}

double learning_rate_at(const TrainOptions& o, int64_t step, int64_t total) {
    const int64_t warmup = o.warmup_steps >= 0
                               ? o.warmup_steps
                               : static_cast<int64_t>(std::ceil(o.warmup_ratio * static_cast<double>(total)));
    if (step < warmup) return o.learning_rate * static_cast<double>(step + 1) / static_cast<double>(warmup);
    if (o.lr_scheduler == "constant") return o.learning_rate;
    const double progress =
        static_cast<double>(step - warmup) / static_cast<double>(std::max<int64_t>(1, total - warmup));
    if (o.lr_scheduler == "linear") return o.learning_rate * std::max(0.0, 1 - progress);
    return o.learning_rate * 0.5 * (1 + std::cos(std::numbers::pi * std::min(1.0, progress)));
}

}  // namespace slab::train
