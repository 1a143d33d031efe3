// Each row: name, group in --help, member, help text, rules.
#include "train/run/flag_table.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "data/base/display.h"
#include "data/base/error.h"
#include "train/spec/lora.h"

namespace slab::train {

namespace {

using O = TrainOptions;

constexpr double kMostSteps = 0x1p40;

std::string number(double value) {
    return data::number_text(value);
}
// first_note and last_note follow their numbers: "0 (keep all) to 10 rows".
Range from_to(double first, double last, const std::string& first_note = "", const std::string& last_note = "") {
    return {[=](double x) { return x >= first && x <= last; },
            number(first) + first_note + " to " + number(last) + last_note};
}
Range from_below(double first, double end) {
    return {[=](double x) { return x >= first && x < end; }, number(first) + " or more, below " + number(end)};
}
Range above_to(double end, double last) {
    return {[=](double x) { return x > end && x <= last; }, "more than " + number(end) + ", at most " + number(last)};
}
Range from(double first, const std::string& note = "") {
    return {[=](double x) { return x >= first; }, number(first) + note + " or more"};
}
// The range holds for the float that is computed with: a double just inside may round to the end of its range.
Range of_float(const Range& range) {
    return {[holds = range.holds](double x) { return holds(static_cast<float>(x)); }, range.wanted};
}

bool is_warmup_steps(double x) {
    return x == -1 || from_to(0, kMostSteps).holds(x);
}
bool is_share_or_rows(double x) {
    // 1.5 would be either. A double holds every whole number below the end exactly.
    return x >= 0 && x < 1e15 && (x < 1 || x == std::floor(x));
}
bool is_float_above_0(double x) {
    return std::isfinite(static_cast<float>(x)) && static_cast<float>(x) > 0;
}
bool is_0_or_float_above_0(double x) {
    return x == 0 || is_float_above_0(x);
}
bool is_lora_alpha(double x) {
    return lora_alpha_makes_sense(static_cast<float>(x));
}

// What makes a flag idle.
const char* full_training(const TrainOptions& o) {
    if (o.adapter != "none") return nullptr;
    return o.freeze_layers >= 0 ? "freeze-layers" : "adapter";
}
const char* nothing_frozen(const TrainOptions& o) {
    return o.freeze_layers > 0 ? nullptr : full_training(o);
}
const char* max_steps(const TrainOptions& o) {
    return o.max_steps > 0 ? "max-steps" : nullptr;
}
const char* warmup_steps(const TrainOptions& o) {
    return o.warmup_steps >= 0 ? "warmup-steps" : nullptr;
}
const char* likeliest_token(const TrainOptions& o) {
    return o.sample_temperature == 0 ? "sample-temperature" : nullptr;
}

constexpr const char kData[] = "Model and data", kTrains[] = "What trains", kTraining[] = "Training",
                     kMemory[] = "Memory", kRanks[] = "Several GPUs", kRun[] = "The run",
                     kHidden[] = "";  // not in --help

// clang-format off
const Flag kFlags[] = {
    {"base-model", kData, &O::base_model, "Hugging Face directory (config.json, *.safetensors) or a GGUF file",
     {.path = Path::input}},
    {"from-scratch", kData, &O::from_scratch, "draw random weights: --base-model then only needs a config.json",
     {.identity = Identity::flag}},
    {"train-data", kData, &O::train_data,
     "to train on: records (*.jsonl), text, or a token file (*.bin, by build/tokenize)",
     {.path = Path::input}},
    {"val-data", kData, &O::val_data, "to evaluate on: the same kinds", {.path = Path::input}},
    {"val-set-size", kData, &O::val_set_size,
     "without --val-data: hold out this share (< 1) or number (>= 1) of the records, evenly spread, or of the last "
     "rows of text or tokens",
     {.range = {is_share_or_rows, "a share below 1 or a number of rows, below 1000000000000000"}}},
    {"sample-packing", kData, &O::sample_packing, "put several records into a row; none of them sees another",
     {.identity = Identity::flag}},
    {"train-on-inputs", kData, &O::train_on_inputs, "train on prompts and questions too, not only on replies",
     {.identity = Identity::flag}},
    {"chat-template", kData, &O::chat_template,
     "for records with messages and --sample-chat: a file with a template in Jinja's language, or a fixed form, chatml "
     "or llama3; default: the model's own template",
     {.identity = Identity::flag, .path = Path::input}},
    {"preview", kData, &O::preview, "print the first N rows as text, with what is trained on marked",
     {.range = from_to(0, kMostSteps, "", " rows")}},
    {"preview-ids", kData, &O::preview_ids, "with --preview: the token ids of each row, too"},
    {"output-dir", kData, &O::output_dir, "run directory: checkpoints, final adapter, log.jsonl, config.toml",
     {.path = Path::output}},

    {"adapter", kTrains, &O::adapter, "lora, or none: train all weights",
     {.choices = {"lora", "none"}, .identity = Identity::flag}},
    {"lora-r", kTrains, &O::lora_r, "rank",
     {.range = from_to(1, kMaxLoraRank), .identity = Identity::adapter, .idle_beside = full_training}},
    {"lora-alpha", kTrains, &O::lora_alpha, "scale is alpha / r (alpha / sqrt(r) with --use-rslora)",
     {.range = {is_lora_alpha, "1e-6 to 1e6"}, .identity = Identity::adapter, .idle_beside = full_training}},
    {"lora-dropout", kTrains, &O::lora_dropout, "dropout on the adapters' input",
     {.range = of_float(from_below(0, 1)), .identity = Identity::adapter, .idle_beside = full_training}},
    {"lora-target-modules", kTrains, &O::lora_target_modules, "all-linear, or PEFT's names: q_proj,v_proj",
     {.identity = Identity::adapter, .values = Values::repeated, .idle_beside = full_training}},
    {"use-rslora", kTrains, &O::use_rslora, "rank-stabilised scale",
     {.identity = Identity::adapter, .idle_beside = full_training, .default_may_idle = true}},
    {"adapter-in", kTrains, &O::adapter_in, "PEFT directory to go on from; its settings hold", {.path = Path::input}},
    {"freeze-layers", kTrains, &O::freeze_layers,
     "freeze embeddings and the first K layers, train the rest in full (implies --adapter none); 0: freeze nothing",
     {.range = from(0), .identity = Identity::flag}},

    {"sequence-len", kTraining, &O::sequence_len, "tokens a row",
     {.range = from_to(1, kMaxSequenceLen), .identity = Identity::flag}},
    {"micro-batch-size", kTraining, &O::micro_batch_size, "rows a micro-batch",
     {.range = from_to(1, kMaxMicroBatchSize), .identity = Identity::flag}},
    {"gradient-accumulation-steps", kTraining, &O::gradient_accumulation_steps, "micro-batches a step, of each GPU",
     {.range = from_to(1, 1 << 20), .identity = Identity::flag}},
    // The identity has the number of steps, whichever flag it follows from.
    {"max-steps", kTraining, &O::max_steps, "optimizer steps; 0: --num-epochs decides",
     {.range = from_to(0, kMostSteps)}},
    {"num-epochs", kTraining, &O::num_epochs, "passes over the training rows",
     {.range = above_to(0, 1e6), .idle_beside = max_steps}},
    {"learning-rate", kTraining, &O::learning_rate, "peak learning rate",
     {.range = from_below(0, 1000), .identity = Identity::flag}},
    {"lr-scheduler", kTraining, &O::lr_scheduler, "after warm-up: cosine or linear to 0, or constant",
     {.choices = {"cosine", "linear", "constant"}, .identity = Identity::flag}},
    {"warmup-ratio", kTraining, &O::warmup_ratio, "share of the steps with rising learning rate",
     {.range = from_to(0, 1), .identity = Identity::flag, .idle_beside = warmup_steps}},
    {"warmup-steps", kTraining, &O::warmup_steps, "steps with rising learning rate; -1: --warmup-ratio decides",
     {.range = {is_warmup_steps, from_to(0, kMostSteps).wanted + " (-1: --warmup-ratio decides)"},
      .identity = Identity::flag}},
    {"weight-decay", kTraining, &O::weight_decay, "AdamW's",
     {.range = from_below(0, 1000), .identity = Identity::flag}},
    {"max-grad-norm", kTraining, &O::max_grad_norm, "clip the global gradient norm; 0: do not",
     {.range = {is_0_or_float_above_0, "0 (no clipping) or a finite float32 above 0"}, .identity = Identity::flag}},
    {"adam-beta1", kTraining, &O::adam_beta1, "decay of the gradient average",
     {.range = of_float(from_below(0, 1)), .identity = Identity::flag}},
    {"adam-beta2", kTraining, &O::adam_beta2, "decay of the squared gradient average",
     {.range = of_float(from_below(0, 1)), .identity = Identity::flag}},
    {"adam-epsilon", kTraining, &O::adam_epsilon, "keeps AdamW's division finite",
     {.range = {is_float_above_0, "a finite float32 above 0"}, .identity = Identity::flag}},
    {"seed", kTraining, &O::seed, "of row order, adapter start, dropout and sampling", {.identity = Identity::flag}},
    {"threads", kTraining, &O::threads, "CPU threads; 0: all cores (the bits do not depend on it)",
     {.range = from_to(0, 1024)}},

    {"layer-offloading", kMemory, &OffloadFlags::layer_offloading, "keep frozen layers in host memory and stream them"},
    {"num-prefetch", kMemory, &OffloadFlags::num_prefetch, "layers fetched ahead", {.range = from_to(1, 1 << 20)}},
    {"num-slots", kMemory, &OffloadFlags::num_slots,
     "device slots for layers: a number, or auto (what the budget holds); default num-prefetch + 1"},
    {"resident-layers", kMemory, &OffloadFlags::resident_layers, "keep N layers, or these (0,3,5), on the device",
     {.values = Values::list}},
    {"vram-budget", kMemory, &OffloadFlags::vram_budget,
     "device memory to use at most, e.g. 12G; default: what is free less 5%"},
    {"recompute", kMemory, &OffloadFlags::recompute,
     "none, or block: keep block inputs only; default block when offloading", {.choices = {"none", "block"}}},
    // The identity has q8_0 and nf4, which change the numbers.
    {"slab-format", kMemory, &O::slab_format,
     "what frozen layers are kept as: bf16; q8_0 or nf4 (8.5 and 4.5 bits a weight, made while loading); as-is (the "
     "blocks of the file). Default as-is for 4-bit directories and for GGUF blocks that stream, else bf16",
     {.choices = {"bf16", "q8_0", "nf4", "as-is"}, .idle_beside = nothing_frozen, .default_may_idle = true}},
    {"load-in-4bit", kMemory, &O::load_in_4bit, "--slab-format nf4, or as-is for a directory in 4 bits",
     {.idle_beside = nothing_frozen, .default_may_idle = true}},
    {"load-in-8bit", kHidden, &O::load_in_8bit, "refused, with what to give instead", {.in_config_file = false}},

    {"gpus", kRanks, &O::gpus,
     "how many, all, or which: 0,1,3; one named twice (0,0) is shared. A step has gradient-accumulation-steps "
     "micro-batches for each, and the bits do not depend on how many share them (with --adapter lora)"},
    {"exchange-every", kRanks, &O::exchange_every,
     "micro-batches that a GPU adds up before gradients are exchanged; for slow networks, and changes the bits",
     {.range = from_to(1, 1024), .identity = Identity::flag}},
    {"comm-timeout", kRanks, &O::comm_timeout, "seconds without a sign of life after which a GPU is given up",
     {.range = from_to(1, 1e6)}},
    {"transport", kRanks, &O::transport,
     "what carries gradients: local (copies between GPUs of this process), or nccl; auto is local. The bits are the same",
     {.choices = {"auto", "local", "nccl"}}},

    {"eval-steps", kRun, &O::eval_steps, "evaluate every N steps, and at the start and end; 0: only at start and end",
     {.range = from_to(0, kMostSteps)}},
    {"save-steps", kRun, &O::save_steps, "checkpoint every N steps; 0: only when interrupted and at the end",
     {.range = from_to(0, kMostSteps)}},
    {"save-total-limit", kRun, &O::save_total_limit, "keep the newest N checkpoints, and the best evaluated; 0: all",
     {.range = from_to(0, kMostSteps, " (keep all)")}},
    {"logging-steps", kRun, &O::logging_steps, "a step line every N steps", {.range = from_to(1, kMostSteps)}},
    {"resume-from-checkpoint", kRun, &O::resume_from_checkpoint, "a checkpoint directory, or last",
     {.in_config_file = false}},
    {"log", kRun, &O::log, "JSONL log; default output-dir/log.jsonl", {.path = Path::beside}},
    {"trace", kRun, &O::trace, "write a Chrome trace of compute and transfer (opens in Perfetto)",
     {.path = Path::beside}},
    {"trace-steps", kRun, &O::trace_steps, "FIRST:LAST step to trace", {.needs = "trace"}},
    {"plan", kRun, &O::plan, "look at the data, print the memory plan and stop, loading nothing",
     {.in_config_file = false}},
    {"sample", kRun, &O::sample, "generate from this prompt before and after training"},
    {"sample-chat", kRun, &O::sample_chat, "the prompt is a user's message: wrap it as the model's chat template does",
     {.needs = "sample"}},
    {"sample-tokens", kRun, &O::sample_tokens, "tokens to generate", {.range = from_to(1, 1 << 20), .needs = "sample"}},
    {"sample-temperature", kRun, &O::sample_temperature, "0: the likeliest token always",
     {.range = from_to(0, 100), .needs = "sample"}},
    {"top-k", kRun, &O::top_k, "sample of the K likeliest tokens only; 0: of all",
     {.range = from(0, " (all)"), .needs = "sample", .idle_beside = likeliest_token, .default_may_idle = true}},
    {"top-p", kRun, &O::top_p, "sample of the fewest likeliest tokens with this probability together; 1: of all",
     {.range = above_to(0, 1), .needs = "sample", .idle_beside = likeliest_token, .default_may_idle = true}},
};
// clang-format on

}  // namespace

std::span<const Flag> flag_table() {
    return kFlags;
}

const Flag& flag_named(const std::string& name) {
    const auto found =
        std::find_if(std::begin(kFlags), std::end(kFlags), [&](const Flag& f) { return f.name == name; });
    if (found == std::end(kFlags)) throw std::logic_error("no flag --" + name);
    return *found;
}

std::string flag_text(const Flag& flag, const TrainOptions& options) {
    return with_value(flag, options, [&](const auto& value) -> std::string {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::string>)
            return value;
        else if constexpr (std::is_same_v<T, bool>)
            return value ? "true" : "false";
        else if constexpr (std::is_same_v<T, double>)
            return flag.rules.identity == Identity::adapter ? data::number_text(static_cast<float>(value))
                                                            : data::number_text(value);
        else
            return std::to_string(value);
    });
}

void refuse_flag(const std::string& subject, const std::string& given, const std::string& wanted,
                 const std::string& hint) {
    throw data::UserError({.subject = subject, .given = given, .wanted = wanted, .hint = hint});
}

void check_range(const Flag& flag, double value, const std::string& subject) {
    const Range& range = flag.rules.range;
    if (range.holds && !range.holds(value)) refuse_flag(subject, "is out of range", range.wanted);
}

bool is_given(const TrainOptions& options, const std::string& flag) {
    return options.given.count(flag) != 0;
}

std::string as_given(const TrainOptions& options, const std::string& flag) {
    const GivenFlag& given = options.given.at(flag);
    return "--" + flag + (given.value == "true" ? "" : " " + data::printable_text(given.value)) +
           (given.in_config_file ? " (config file)" : "");
}

}  // namespace slab::train
