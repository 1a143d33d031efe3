// From flags to what a run is made of: model settings, number of steps, the steps to trace.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "train/model/model_layout.h"
#include "train/run/data_loader.h"
#include "train/run/options.h"
#include "train/spec/lora.h"

namespace slab::train {

// The adapter that --lora-* and --use-rslora describe, and the way back: the flags that describe an adapter, its
// targets sorted, as their order means nothing.
LoraSettings lora_of_flags(const TrainOptions& options);
void set_lora_flags(TrainOptions& options, const LoraSettings& adapter);

ModelSettings settings_from(const TrainOptions& options, const ModelConfig& config);

// Optimizer steps of the run, for a training set of so many rows.
int64_t total_steps(const TrainOptions& options, uint64_t rows);

// "FIRST:LAST", inclusive, counted from 1 as the step line does, at most kMostTracedSteps. Throws
// data::UserError.
inline constexpr int64_t kMostTracedSteps = 1000;
std::pair<int64_t, int64_t> parse_trace_steps(const std::string& text);

}  // namespace slab::train
