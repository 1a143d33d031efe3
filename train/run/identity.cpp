// A difference that follows from another one is not named: a user would be told of a flag that nobody gave.
#include "train/run/identity.h"

#include <algorithm>
#include <cinttypes>
#include <vector>

#include "kernels/attention/attention.h"
#include "train/spec/lora.h"
#include "train/spec/text.h"

namespace slab::train {

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

}  // namespace

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

}  // namespace slab::train
