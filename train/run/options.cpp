// Flags, config files, and what they mean for a model. See options.h.
#include "train/run/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>
#include <set>
#include <sstream>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "data/base/command_line.h"
#include "data/base/display.h"
#include "data/base/nearest_name.h"
#include "train/run/config_file.h"
#include "train/run/idle_flags.h"
#include "train/spec/lora.h"

namespace slab::train {

namespace {

// Config files whose keys may be spelled with '_' and whose unknown keys are named with their nearest known neighbour.
class RunConfig : public CLI::ConfigTOML {
  public:
    // in_file: gets the keys whose flag the command line does not give.
    RunConfig(const CLI::App& app, std::set<std::string>& in_file) : app_(app), in_file_(in_file) {}

    std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
        std::vector<std::string> known;
        for (const auto* option : app_.get_options())
            if (option->get_configurable())
                for (const auto& name : option->get_lnames()) known.push_back(name);
        const std::string where = "config file " + app_.get_config_ptr()->as<std::string>();
        std::vector<CLI::ConfigItem> items;
        for (const ConfigEntry& entry : parse_config(input, where)) {
            CLI::ConfigItem item;
            item.name = entry.key;
            item.inputs = {entry.value};
            if (std::find(known.begin(), known.end(), item.name) == known.end())
                throw CLI::ConfigError(where + ", line " + std::to_string(entry.line) + ": unknown key " + item.name +
                                       "; did you mean " + data::nearest_name(item.name, known) + "?");
            if (app_.get_option("--" + item.name)->count() == 0) in_file_.insert(item.name);
            items.push_back(std::move(item));
        }
        return items;
    }

  private:
    const CLI::App& app_;
    std::set<std::string>& in_file_;
};

// A flag's file or directory with its whole path: a config file is read from wherever the next run begins. What is no
// file here stays as it is: a hub's org/name.
std::string found_from_anywhere(const std::string& flag, const std::string& value) {
    constexpr const char* inputs[] = {"base-model", "train-data", "val-data", "adapter-in"};
    const bool input = std::find(std::begin(inputs), std::end(inputs), flag) != std::end(inputs);
    std::error_code error;
    if (value.empty() || (input && !std::filesystem::exists(value, error))) return value;
    if (!input && flag != "output-dir") return value;
    const std::filesystem::path whole = std::filesystem::absolute(value, error);
    return error ? value : whole.string();
}

// Every flag that a config file may have and that decides something, with the value it has now; but for the files
// beside a run, which would be this run's files again when another one begins with its config.toml, and for --lora-*
// beside
// --adapter-in, which run_config_text() adds as the adapter has them.
std::string config_toml_of(const CLI::App& app, const TrainOptions& o) {
    std::string text;
    const auto is_beside = [](const CLI::Option* option) {
        return option->get_lnames().front() == "log" || option->get_lnames().front() == "trace";
    };
    for (const auto* option : app.get_options()) {
        if (!option->get_configurable() || option->get_lnames().empty()) continue;
        const std::string& name = option->get_lnames().front();
        const bool given = option->count() > 0;
        const bool of_adapter = name.starts_with("lora-") || name == "use-rslora";
        if (is_beside(option) || is_idle(name, o) || (of_adapter && !o.adapter_in.empty())) continue;
        const auto absent = [&](const CLI::Option* other) { return other->count() == 0 || is_beside(other); };
        const auto needs = option->get_needs();
        if (std::any_of(needs.begin(), needs.end(), absent)) continue;  // alone it would be refused
        std::string value = given ? option->results().back() : option->get_default_str();
        if (option->get_expected_min() == 0) value = given && option->as<bool>() ? "true" : "false";
        if (name == "adapter") value = o.adapter;              // --freeze-layers may have decided it
        if (name == "freeze-layers" && !given) value.clear();  // "not given" has no number
        if (!value.empty()) text += name + " = " + config_value(found_from_anywhere(name, value)) + "\n";
    }
    return text;
}

constexpr int64_t kMostSteps = int64_t{1} << 40;
constexpr int kMostMicroBatches = 1 << 20, kMostSampleTokens = 1 << 20, kMostPrefetch = 1 << 20, kMostThreads = 1024;
constexpr int64_t kMostEpochs = 1'000'000, kLearningRatesEnd = 1000, kWeightDecaysEnd = 1000;
constexpr int64_t kHeldOutRowsEnd = 1'000'000'000'000'000;  // a double holds every number below exactly

// Ranges as refusals name them.
std::string up_to(const std::string& first, int64_t last) {
    return first + " to " + std::to_string(last);
}
std::string below(const std::string& first, int64_t end) {
    return first + ", below " + std::to_string(end);
}

// CLI11 takes a number too large for its type as the largest one, and a negative one as its complement.
std::string check_seed(const std::string& text) {
    errno = 0;
    std::strtoull(text.c_str(), nullptr, 10);
    return errno == ERANGE || text.find('-') != std::string::npos ? "wanted a number from 0, below 2^64" : "";
}

void add_model_flags(CLI::App& app, TrainOptions& o) {
    app.add_option("--base-model", o.base_model, "Hugging Face directory (config.json, *.safetensors) or a GGUF file")
        ->group("Model and data");
    app.add_flag("--from-scratch", o.from_scratch, "draw random weights: --base-model then only needs a config.json")
        ->group("Model and data");
    app.add_option("--train-data", o.train_data,
                   "to train on: records (*.jsonl), text, or a token file (*.bin, by build/tokenize)")
        ->group("Model and data");
    app.add_option("--val-data", o.val_data, "to evaluate on: the same kinds")->group("Model and data");
    app.add_option(
           "--val-set-size", o.val_set_size,
           "without --val-data: hold out this share (< 1) or number (>= 1) of the records, evenly spread, or of "
           "the last rows of text or tokens")
        ->group("Model and data");
    app.add_flag("--sample-packing", o.sample_packing, "put several records into a row; none of them sees another")
        ->group("Model and data");
    app.add_flag("--train-on-inputs", o.train_on_inputs, "train on prompts and questions too, not only on replies")
        ->group("Model and data");
    app.add_option("--chat-template", o.chat_template,
                   "chatml or llama3, for records with messages and --sample-chat; default: what the tokenizer shows")
        ->check(CLI::IsMember({"chatml", "llama3"}))
        ->group("Model and data");
    app.add_option("--preview", o.preview, "print the first N rows as text, with what is trained on marked")
        ->group("Model and data");
    app.add_option("--output-dir", o.output_dir, "run directory: checkpoints, final adapter, log.jsonl, config.toml")
        ->group("Model and data");

    app.add_option("--adapter", o.adapter, "lora, or none: train all weights")
        ->check(CLI::IsMember({"lora", "none"}))
        ->group("What trains");
    app.add_option("--lora-r", o.lora_r, "rank")->group("What trains");
    app.add_option("--lora-alpha", o.lora_alpha, "scale is alpha / r (alpha / sqrt(r) with --use-rslora)")
        ->group("What trains");
    app.add_option("--lora-dropout", o.lora_dropout, "dropout on the adapters' input")->group("What trains");
    app.add_option("--lora-target-modules", o.lora_target_modules, "all-linear, or PEFT's names: q_proj,v_proj")
        ->group("What trains");
    app.add_flag("--use-rslora", o.use_rslora, "rank-stabilised scale")->group("What trains");
    app.add_option("--adapter-in", o.adapter_in, "PEFT directory to go on from; its settings hold")
        ->group("What trains");
    app.add_option(
           "--freeze-layers", o.freeze_layers,
           "freeze embeddings and the first K layers, train the rest in full (implies --adapter none); 0: freeze "
           "nothing")
        ->group("What trains");
}

void add_training_flags(CLI::App& app, TrainOptions& o) {
    const char* const group = "Training";
    app.add_option("--sequence-len", o.sequence_len, "tokens a row")->group(group);
    app.add_option("--micro-batch-size", o.micro_batch_size, "rows a micro-batch")->group(group);
    app.add_option("--gradient-accumulation-steps", o.gradient_accumulation_steps, "micro-batches a step")
        ->group(group);
    app.add_option("--max-steps", o.max_steps, "optimizer steps; 0: --num-epochs decides")->group(group);
    app.add_option("--num-epochs", o.num_epochs, "passes over the training rows")->group(group);
    app.add_option("--learning-rate", o.learning_rate, "peak learning rate")->group(group);
    app.add_option("--lr-scheduler", o.lr_scheduler, "after warm-up: cosine or linear to 0, or constant")
        ->check(CLI::IsMember({"cosine", "linear", "constant"}))
        ->group(group);
    app.add_option("--warmup-ratio", o.warmup_ratio, "share of the steps with rising learning rate")->group(group);
    app.add_option("--warmup-steps", o.warmup_steps, "the same as a number; -1: --warmup-ratio decides")->group(group);
    app.add_option("--weight-decay", o.weight_decay, "AdamW's")->group(group);
    app.add_option("--max-grad-norm", o.max_grad_norm, "clip the global gradient norm; 0: do not")->group(group);
    app.add_option("--adam-beta1", o.adam_beta1, "decay of the gradient average")->group(group);
    app.add_option("--adam-beta2", o.adam_beta2, "decay of the squared gradient average")->group(group);
    app.add_option("--adam-epsilon", o.adam_epsilon, "keeps AdamW's division finite")->group(group);
    app.add_option("--seed", o.seed, "of row order, adapter start, dropout and sampling")
        ->check(check_seed)
        ->group(group);
    app.add_option("--threads", o.threads, "CPU threads; 0: all cores (the bits do not depend on it)")->group(group);
}

void add_run_flags(CLI::App& app, TrainOptions& o) {
    const char* const group = "The run";
    app.add_option("--eval-steps", o.eval_steps,
                   "evaluate every N steps, and at the start and end; 0: only at start and end")
        ->group(group);
    app.add_option("--save-steps", o.save_steps, "checkpoint every N steps; 0: only when interrupted and at the end")
        ->group(group);
    app.add_option("--save-total-limit", o.save_total_limit,
                   "keep the newest N checkpoints, and the best evaluated; 0: all")
        ->group(group);
    app.add_option("--logging-steps", o.logging_steps, "a step line every N steps")->group(group);
    app.add_option("--resume-from-checkpoint", o.resume_from_checkpoint, "a checkpoint directory, or last")
        ->group(group)
        ->configurable(false);
    app.add_option("--log", o.log, "JSONL log; default output-dir/log.jsonl")->group(group);
    auto* const trace =
        app.add_option("--trace", o.trace, "write a Chrome trace of compute and transfer (opens in Perfetto)")
            ->group(group);
    app.add_option("--trace-steps", o.trace_steps, "FIRST:LAST step to trace")->needs(trace)->group(group);
    app.add_flag("--plan", o.plan, "look at the data, print the memory plan and stop, loading nothing")
        ->group(group)
        ->configurable(false);
    auto* const sample =
        app.add_option("--sample", o.sample, "generate from this prompt before and after training")->group(group);
    app.add_flag("--sample-chat", o.sample_chat,
                 "the prompt is a user's message: wrap it as the model's chat template does")
        ->needs(sample)
        ->group(group);
    app.add_option("--sample-tokens", o.sample_tokens, "tokens to generate")->needs(sample)->group(group);
    app.add_option("--sample-temperature", o.sample_temperature, "0: the likeliest token always")
        ->needs(sample)
        ->group(group);
    app.add_option("--top-k", o.top_k, "sample of the K likeliest tokens only; 0: of all")->needs(sample)->group(group);
    app.add_option("--top-p", o.top_p,
                   "sample of the fewest likeliest tokens with this probability together; 1: of all")
        ->needs(sample)
        ->group(group);
}

// Numbers that parse but make no sense.
void check_options(const TrainOptions& o) {
    const auto want = [](bool ok, const char* flag, const auto& value, const std::string& wanted) {
        if (ok) return;
        std::ostringstream text;
        text << flag << ' ';
        if constexpr (std::is_floating_point_v<std::decay_t<decltype(value)>>)
            text << data::number_text(value);
        else
            text << value;
        text << " makes no sense; wanted " << wanted;
        throw std::runtime_error(text.str());
    };
    if (o.base_model.empty())
        throw std::runtime_error("--base-model is missing: give a Hugging Face directory or a GGUF file");
    if (o.train_data.empty() && !o.plan)
        throw std::runtime_error("--train-data is missing: give records (chat.jsonl), text, or a token file");
    if (o.train_data.empty() && (o.preview > 0 || !o.val_data.empty()))
        throw std::runtime_error("--preview and --val-data are looked at with --train-data; --plan needs none of them");
    if (o.output_dir.empty() && !o.plan)
        throw std::runtime_error("--output-dir is missing: say where the adapter and checkpoints shall go");
    if (!o.adapter_in.empty() && o.adapter != "lora")
        throw std::runtime_error("--adapter-in goes on training a LoRA adapter and needs --adapter lora");
    // Ranges hold for the floats that are computed with: a double just inside may round to the end of its range.
    const auto alpha = static_cast<float>(o.lora_alpha), dropout = static_cast<float>(o.lora_dropout);
    const auto beta1 = static_cast<float>(o.adam_beta1), beta2 = static_cast<float>(o.adam_beta2);
    const auto epsilon = static_cast<float>(o.adam_epsilon);
    want(o.lora_r >= 1 && o.lora_r <= kMaxLoraRank, "--lora-r", o.lora_r, up_to("1", kMaxLoraRank));
    want(lora_alpha_makes_sense(alpha), "--lora-alpha", o.lora_alpha, "1e-6 to 1e6");
    want(lora_dropout_makes_sense(dropout), "--lora-dropout", o.lora_dropout, "0 <= p < 1");
    want(o.gradient_accumulation_steps >= 1 && o.gradient_accumulation_steps <= kMostMicroBatches,
         "--gradient-accumulation-steps", o.gradient_accumulation_steps, up_to("1", kMostMicroBatches));
    want(o.max_steps >= 0 && o.max_steps <= kMostSteps, "--max-steps", o.max_steps, up_to("0", kMostSteps));
    want(o.num_epochs > 0 && o.num_epochs <= kMostEpochs, "--num-epochs", o.num_epochs,
         "more than 0, at most " + std::to_string(kMostEpochs));
    want(o.learning_rate >= 0 && o.learning_rate < kLearningRatesEnd, "--learning-rate", o.learning_rate,
         below("0 or more", kLearningRatesEnd));
    want(o.warmup_ratio >= 0 && o.warmup_ratio <= 1, "--warmup-ratio", o.warmup_ratio, "0 to 1");
    want(o.warmup_steps >= -1 && o.warmup_steps <= kMostSteps, "--warmup-steps", o.warmup_steps,
         up_to("0", kMostSteps) + " (-1: --warmup-ratio decides)");
    want(o.weight_decay >= 0 && o.weight_decay < kWeightDecaysEnd, "--weight-decay", o.weight_decay,
         below("0 or more", kWeightDecaysEnd));
    want(std::isfinite(static_cast<float>(o.max_grad_norm)) && o.max_grad_norm >= 0 &&
             (o.max_grad_norm == 0 || static_cast<float>(o.max_grad_norm) > 0),
         "--max-grad-norm", o.max_grad_norm, "0 (no clipping) or a finite float32 above 0");
    want(beta1 >= 0 && beta1 < 1, "--adam-beta1", o.adam_beta1, "0 <= beta < 1");
    want(beta2 >= 0 && beta2 < 1, "--adam-beta2", o.adam_beta2, "0 <= beta < 1");
    want(std::isfinite(epsilon) && epsilon > 0, "--adam-epsilon", o.adam_epsilon, "a finite float32 above 0");
    const bool whole_rows = o.val_set_size == std::floor(o.val_set_size);  // 1.5 would be either
    want(o.val_set_size >= 0 && o.val_set_size < kHeldOutRowsEnd && (o.val_set_size < 1 || whole_rows),
         "--val-set-size", o.val_set_size, below("a share below 1 or a number of rows", kHeldOutRowsEnd));
    want(o.eval_steps >= 0 && o.eval_steps <= kMostSteps, "--eval-steps", o.eval_steps, up_to("0", kMostSteps));
    want(o.save_steps >= 0 && o.save_steps <= kMostSteps, "--save-steps", o.save_steps, up_to("0", kMostSteps));
    want(o.save_total_limit >= 0 && o.save_total_limit <= kMostSteps, "--save-total-limit", o.save_total_limit,
         up_to("0 (keep all)", kMostSteps));
    want(o.logging_steps >= 1 && o.logging_steps <= kMostSteps, "--logging-steps", o.logging_steps,
         up_to("1", kMostSteps));
    want(o.sample_tokens >= 1 && o.sample_tokens <= kMostSampleTokens, "--sample-tokens", o.sample_tokens,
         up_to("1", kMostSampleTokens));
    want(o.sample_temperature >= 0 && o.sample_temperature <= 100, "--sample-temperature", o.sample_temperature,
         "0 to 100");
    want(o.top_k >= 0, "--top-k", o.top_k, "0 (all) or more");
    want(o.top_p > 0 && o.top_p <= 1, "--top-p", o.top_p, "more than 0, at most 1");
    want(o.threads >= 0 && o.threads <= kMostThreads, "--threads", o.threads, up_to("0", kMostThreads));
    want(o.preview >= 0 && o.preview <= kMostSteps, "--preview", o.preview, up_to("0", kMostSteps) + " rows");
    if (o.eval_steps > 0 && o.val_set_size == 0 && o.val_data.empty())
        throw std::runtime_error("--eval-steps " + std::to_string(o.eval_steps) +
                                 " has nothing to evaluate on; wanted --val-data or --val-set-size beside it");
    if (o.val_set_size > 0 && !o.val_data.empty())
        throw std::runtime_error("--val-set-size and --val-data exclude each other: give one");
}

// A list as it stands, or N layers spread over the `frozen` first ones.
std::vector<int> parse_layer_list(const std::string& text, int frozen) {
    const auto refuse = [&] {
        throw std::runtime_error("--resident-layers \"" + text +
                                 "\": wanted a number of layers (N) or a list of layer numbers (0,3,5)");
    };
    std::vector<int> numbers;
    std::stringstream in(text);
    for (std::string item; std::getline(in, item, ',');) {
        size_t used = 0;
        int value = -1;
        try {
            value = std::stoi(item, &used);
        } catch (const std::exception&) {
            refuse();
        }
        if (used != item.size() || value < 0) refuse();
        numbers.push_back(value);
    }
    if (numbers.empty()) refuse();
    if (text.find(',') != std::string::npos) return numbers;
    const int count = numbers[0];
    if (count > frozen)
        throw std::runtime_error("--resident-layers " + text + ": only " + std::to_string(frozen) +
                                 " layers are frozen and could be streamed");
    // Spread evenly: while compute works on a resident layer, the link gets ahead.
    std::vector<int> spread;
    for (int i = 0; i < count; ++i)
        spread.push_back(static_cast<int>(((2 * int64_t{i} + 1) * frozen) / (2 * int64_t{count})));
    return spread;
}

}  // namespace

size_t OffloadFlags::budget_bytes() const {
    return vram_budget.empty() ? 0 : parse_size(vram_budget, "--vram-budget");
}

size_t parse_size(const std::string& text, const std::string& flag) {
    const auto refuse = [&] {
        throw std::runtime_error(flag + " \"" + text +
                                 "\": wanted a size such as 12G, 800M or 123456 (bytes), below 2^60 bytes");
    };
    size_t used = 0;
    double value = 0;
    try {
        value = std::stod(text, &used);
    } catch (const std::exception&) {
        refuse();
    }
    std::string unit = text.substr(used);
    std::transform(unit.begin(), unit.end(), unit.begin(), [](unsigned char c) { return std::toupper(c); });
    if (unit.ends_with("IB")) unit.resize(unit.size() - 2);
    if (unit.size() == 2 && unit[1] == 'B') unit.resize(1);
    const std::string units = "KMGT";
    const size_t power = unit.empty() || unit == "B" ? 0 : units.find(unit) + 1;
    if (unit.size() > 1 || (power == 0 && !unit.empty() && unit != "B")) refuse();
    const double bytes = value * std::pow(1024.0, static_cast<double>(power));
    if (!(bytes >= 1 && bytes < 0x1p60)) refuse();
    if (unit.empty() && bytes < 1024)  // nobody means it
        throw std::runtime_error(flag + " " + text + ": that is " + text + " bytes; did you mean " + text + "G?");
    return static_cast<size_t>(bytes);
}

void add_offload_flags(CLI::App& app, OffloadFlags& f) {
    const char* const group = "Memory";
    app.add_flag("--layer-offloading", f.layer_offloading, "keep frozen layers in host memory and stream them")
        ->group(group);
    app.add_option("--num-prefetch", f.num_prefetch, "layers fetched ahead")->group(group);
    app.add_option("--num-slots", f.num_slots,
                   "device slots for layers: a number, or auto (what the budget holds); default num-prefetch + 1")
        ->group(group);
    app.add_option("--resident-layers", f.resident_layers, "keep N layers, or these (0,3,5), on the device")
        ->group(group);
    app.add_option("--vram-budget", f.vram_budget,
                   "device memory to use at most, e.g. 12G; default: what is free less 5%")
        ->group(group);
    app.add_option("--recompute", f.recompute, "none, or block: keep block inputs only; default block when offloading")
        ->check(CLI::IsMember({"none", "block"}))
        ->group(group);
}

void apply_offload_flags(ModelSettings& s, const OffloadFlags& f, int L) {
    s.layer_offloading = f.layer_offloading;
    s.recompute =
        f.recompute == "block" || (f.recompute.empty() && f.layer_offloading) ? Recompute::block : Recompute::none;
    if (f.num_prefetch < 1 || f.num_prefetch > kMostPrefetch)
        throw std::runtime_error("--num-prefetch " + std::to_string(f.num_prefetch) + " is out of range; wanted " +
                                 up_to("1", kMostPrefetch));
    s.num_prefetch = f.num_prefetch;
    s.num_slots = f.num_prefetch + 1;
    if (!f.num_slots.empty() && f.num_slots != "auto") {
        size_t used = 0;
        try {
            s.num_slots = std::stoi(f.num_slots, &used);
        } catch (const std::exception&) {
            used = 0;
        }
        if (used != f.num_slots.size())
            throw std::runtime_error("--num-slots \"" + f.num_slots + "\": wanted a number up to " +
                                     std::to_string(std::numeric_limits<int>::max()) + ", or auto");
    }
    const int frozen = s.freeze_layers > 0 ? s.freeze_layers : L;
    if (!f.resident_layers.empty()) s.resident_layers = parse_layer_list(f.resident_layers, frozen);
    if (!f.layer_offloading && (!f.resident_layers.empty() || !f.num_slots.empty() || f.num_prefetch != 1))
        throw std::runtime_error(
            "--num-prefetch, --num-slots and --resident-layers belong to --layer-offloading, which is not on");
}

ModelLayout make_layout(const ModelConfig& config, ModelSettings settings, const OffloadFlags& flags,
                        size_t reserved_bytes, size_t budget_bytes) {
    ModelLayout layout = make_layout(config, settings);
    if (!flags.layer_offloading || flags.num_slots != "auto" || layout.streamed.empty()) return layout;
    const size_t without_ring = reserved_bytes + layout.device_bytes() - layout.slots * layout.slot_bytes;
    size_t slots = layout.streamed.size();
    if (budget_bytes != 0)
        slots = budget_bytes <= without_ring ? 0 : std::min(slots, (budget_bytes - without_ring) / layout.slot_bytes);
    settings.num_slots = std::max(settings.num_slots, static_cast<int>(slots));
    return make_layout(config, settings);
}

std::optional<int> parse_train_options(TrainOptions& o, int argc, const char* const* argv, std::ostream& out,
                                       std::ostream& err) {
    CLI::App app("Fine-tunes a GPT, its frozen layers streamed from host memory.", "train_gpt");
    app.option_defaults()->always_capture_default();  // for --help and for config.toml
    app.set_config("--config", "", "run.toml with any of these flags; the command line wins")
        ->check([](const std::string& path) {  // a pipe or device may have no end to read to
            std::error_code error;
            if (!std::filesystem::is_regular_file(path, error)) return path + ": is not a file that can be read";
            constexpr std::uintmax_t most_bytes = 1 << 20;  // far more than all flags
            const std::uintmax_t bytes = std::filesystem::file_size(path, error);
            return error || bytes <= most_bytes
                       ? std::string()
                       : path + ": has " + std::to_string(bytes) + " bytes, wanted a config file of at most " +
                             std::to_string(most_bytes) + "; is it another file?";
        })
        ->configurable(false)
        ->group("The run");
    std::set<std::string> in_file;
    app.config_formatter(std::make_shared<RunConfig>(app, in_file));
    add_model_flags(app, o);
    add_training_flags(app, o);
    add_offload_flags(app, o.offload);
    add_run_flags(app, o);
    if (const auto code = data::parse_command_line(app, argc, argv, out, err)) return code;
    if (app.get_option("--freeze-layers")->count() > 0 && o.freeze_layers < 0) {
        err << "train_gpt: --freeze-layers " << o.freeze_layers << " makes no sense; wanted 0 or more\n";
        return 1;
    }
    if (o.freeze_layers >= 0) {
        if (app.get_option("--adapter")->count() > 0 && o.adapter == "lora") {
            err << "train_gpt: --freeze-layers trains layers in full and excludes --adapter lora\n";
            return 1;
        }
        o.adapter = "none";
    }
    for (const CLI::Option* option : std::as_const(app).get_options())
        if (option->count() > 0 && !option->get_lnames().empty())
            o.given[option->get_lnames().front()] = {option->results().back(),
                                                     in_file.count(option->get_lnames().front()) != 0};
    check_options(o);
    o.notes = check_idle_flags(o);
    o.config_toml = config_toml_of(app, o);
    return std::nullopt;
}

}  // namespace slab::train
