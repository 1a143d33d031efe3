// From flags to what a run is made of: model settings, number of steps, and what a resumed run must agree
// in.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>

#include "train/model/model_layout.h"
#include "train/run/data_loader.h"
#include "train/run/options.h"

namespace slab::train {

// Where config.json is: --base-model may also name a file of weights in its directory.
std::filesystem::path config_path(const std::filesystem::path& base_model);

// The config of --base-model: from a GGUF file's metadata, else from config.json.
ModelConfig read_base_config(const std::filesystem::path& base_model);

// The adapter that --lora-* and --use-rslora describe.
LoraSettings lora_of_flags(const TrainOptions& options);

ModelSettings settings_from(const TrainOptions& options, const ModelConfig& config);

// Throws std::runtime_error when no token of the validation rows is a target, so that they have no loss.
void check_has_targets(DataLoader& validation);

// Optimizer steps of the run, for a training set of so many rows.
int64_t total_steps(const TrainOptions& options, uint64_t rows);

// What decides the bits of a run beside the files, by flag: a resumed run must agree in all of it.
std::map<std::string, std::string> identity_of(const TrainOptions& options, const ModelLayout& layout, int64_t steps,
                                               const DataLoader& train_data);

// In what the run gone on with (then) and this one (now) differ, as the beginning of an error; "" when in nothing.
std::string identity_differences(const std::map<std::string, std::string>& then,
                                 const std::map<std::string, std::string>& now);

// "FIRST:LAST", inclusive, counted from 1 as the step line does, at most kMostTracedSteps. Throws std::runtime_error.
inline constexpr int64_t kMostTracedSteps = 1000;
std::pair<int64_t, int64_t> parse_trace_steps(const std::string& text);

// The learning rate of step (0-based) of total: warm-up rises linearly to the peak, which it reaches at its last step,
// so that no step has rate 0.
double learning_rate_at(const TrainOptions& options, int64_t step, int64_t total);

}  // namespace slab::train
