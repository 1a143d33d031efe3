#include "train/run/run_setup.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <sstream>
#include <stdexcept>

#include "data/base/display.h"
#include "train/files/adapter_config.h"
#include "train/files/model_directory.h"
#include "train/run/flag_table.h"
#include "train/spec/lora.h"
#include "train/spec/text.h"

namespace slab::train {

namespace fs = std::filesystem;

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

void set_lora_flags(TrainOptions& o, const LoraSettings& lora) {
    o.lora_r = lora.r;
    o.lora_alpha = lora.alpha;
    o.lora_dropout = lora.dropout;
    o.use_rslora = lora.rslora;
    std::vector<std::string> names = lora.target_modules;
    std::sort(names.begin(), names.end());
    o.lora_target_modules.clear();
    for (const std::string& name : names) o.lora_target_modules += (o.lora_target_modules.empty() ? "" : ",") + name;
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

int64_t total_steps(const TrainOptions& o, uint64_t rows) {
    if (o.max_steps > 0) return o.max_steps;
    const double samples = o.num_epochs * static_cast<double>(rows);
    const double per_step = static_cast<double>(o.micro_batch_size) * o.gradient_accumulation_steps;
    return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(samples / per_step)));
}

std::pair<int64_t, int64_t> parse_trace_steps(const std::string& text) {
    int64_t first = 0, last = 0;
    int used = 0;
    if (std::sscanf(text.c_str(), "%" SCNd64 ":%" SCNd64 "%n", &first, &last, &used) != 2 ||
        static_cast<size_t>(used) != text.size() || first < 1 || last < first || last - first >= kMostTracedSteps)
        refuse_flag("--trace-steps " + data::quote(text), "",
                    "FIRST:LAST, counted from 1, at most " + std::to_string(kMostTracedSteps) + " steps");
    return {first, last};
}

}  // namespace slab::train
