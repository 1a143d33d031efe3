#include "train/run/identity.h"

#include <algorithm>
#include <cinttypes>
#include <vector>

#include "data/chat_template.h"
#include "kernels/attention/generic_kernels.h"
#include "train/run/flag_table.h"
#include "train/run/run_setup.h"
#include "train/spec/lora.h"
#include "train/spec/text.h"

namespace slab::train {

namespace {

// Names in a run's identity that are no flags.
constexpr const char* kTokensName = "tokens of --train-data (a hash)";
constexpr const char* kRowsName = "rows of --train-data";
constexpr const char* kStepsName = "--max-steps (or --num-epochs)";

// What follows from other parts of the identity. Its difference is named only if those parts are equal: a user would be
// told of a flag that nobody gave.
const std::map<std::string, std::vector<std::string>>& derived_names() {
    static const std::map<std::string, std::vector<std::string>> names = {
        {kTokensName, {"--sequence-len", "--sample-packing", "--train-on-inputs", "--chat-template"}},
        {kRowsName, {kTokensName, "--sequence-len", "--sample-packing", "--train-on-inputs", "--chat-template"}},
        {kStepsName, {kRowsName, kTokensName, "--micro-batch-size", kMicroBatchesName}},
    };
    return names;
}

// Checkpoints have numbers in this form, so it must not change.
std::string identity_text(const Flag& flag, const TrainOptions& options) {
    return with_value(flag, options, [&](const auto& value) -> std::string {
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, double>)
            return format_text("%.9g", value);
        else
            return flag_text(flag, options);
    });
}

}  // namespace

std::map<std::string, std::string> identity_of(const TrainOptions& options, const ModelLayout& layout, int64_t steps,
                                               const DataLoader& train_data) {
    const auto& lora = layout.settings.lora;
    TrainOptions decided = options;
    decided.adapter = lora ? "lora" : "none";
    decided.freeze_layers = layout.settings.freeze_layers;
    if (lora) set_lora_flags(decided, *lora);  // of --adapter-in
    std::map<std::string, std::string> id;
    for (const Flag& flag : flag_table())
        if (flag.rules.identity == Identity::flag || (flag.rules.identity == Identity::adapter && lora))
            id[std::string("--") + flag.name] = identity_text(flag, decided);

    if (options.exchange_every == 1) id.erase("--exchange-every");                // checkpoints without it were made so
    id["--chat-template"] = data::chat_template_identity(options.chat_template);  // a file counts by its text

    id[kStepsName] = std::to_string(steps);
    id[kRowsName] = std::to_string(train_data.rows());
    id[kTokensName] = format_text("%016" PRIx64, train_data.file().content_hash());
    id["precision of the build"] = kPrecision;
    if (kBackend == Backend::cuda && generic_kernels_forced()) id["SLABSTREAM_GENERIC_KERNELS"] = "1";
    // Other formats are the base's own numbers, and older checkpoints know no format.
    const SlabFormat format = layout.settings.slab_format;
    if (layout.is_encoded() && format != SlabFormat::as_is) id["--slab-format"] = slab_format_name(format);
    if (lora) {
        std::string& layers = id["layers_to_transform"];
        for (const int layer : lora->layers_to_transform) layers += (layers.empty() ? "" : ",") + std::to_string(layer);
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
    const auto told = [&](const std::string& words, const std::string& name) {
        return words + value_in(then, name) + ", this one has " + value_in(now, name);
    };
    std::map<std::string, std::string> all = then;
    all.insert(now.begin(), now.end());
    std::string flags, data;
    for (const auto& [name, value] : all) {
        const auto derived = derived_names().find(name);
        if (!differs(name)) continue;
        if (derived != derived_names().end() && std::any_of(derived->second.begin(), derived->second.end(), differs))
            continue;
        if (name == kTokensName)
            data += told(
                "the data of --train-data has changed (or what --val-set-size holds out of it): the hash of its tokens "
                "was ",
                name);
        else if (name == kRowsName)
            data += told("the rows of --train-data were ", name);
        else
            flags += (flags.empty() ? "the run was made with " : "; with ") +
                     told(name + (name == kMicroBatchesName ? " (times GPUs) " : " "), name);
    }
    return flags + (flags.empty() || data.empty() ? "" : "; ") + data;
}

}  // namespace slab::train
