// From flags to what a run is made of: model settings, number of steps, learning rates.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "train/model/model_layout.h"
#include "train/run/data_loader.h"
#include "train/run/options.h"
#include "train/spec/lora.h"

namespace slab::train {

// The adapter that --lora-* and --use-rslora describe.
LoraSettings lora_of_flags(const TrainOptions& options);

ModelSettings settings_from(const TrainOptions& options, const ModelConfig& config);

// Throws std::runtime_error when no token of the validation rows is a target, so that they have no loss.
void check_has_targets(DataLoader& validation);

// Optimizer steps of the run, for a training set of so many rows.
int64_t total_steps(const TrainOptions& options, uint64_t rows);

// "FIRST:LAST", inclusive, counted from 1 as the step line does, at most kMostTracedSteps. Throws std::runtime_error.
inline constexpr int64_t kMostTracedSteps = 1000;
std::pair<int64_t, int64_t> parse_trace_steps(const std::string& text);

// The learning rate of step (0-based) of total: warm-up rises linearly to the peak, which it reaches at its last step,
// so that no step has rate 0.
double learning_rate_at(const TrainOptions& options, int64_t step, int64_t total);

}  // namespace slab::train
