// A run's identity: what decides its bits beside its files. A checkpoint keeps it (trainer_state.json), and a resumed
// run must agree in all of it. Which flags belong to it is in their rows of flag_table.cpp.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "train/model/model_layout.h"
#include "train/run/data_loader.h"
#include "train/run/options.h"

namespace slab::train {

// The micro-batches of a step, over all ranks, however many these are.
inline constexpr char kMicroBatchesName[] = "--gradient-accumulation-steps";

// By name: a flag with its dashes, or another cause. options: with the micro-batches of all ranks as
// gradient_accumulation_steps, as RunPlan has them. steps: optimizer steps of the whole run.
std::map<std::string, std::string> identity_of(const TrainOptions& options, const ModelLayout& layout, int64_t steps,
                                               const DataLoader& train_data);

// The differences between a checkpoint's identity (then) and this run's (now), as the beginning of an error; "" if
// there are none.
std::string identity_differences(const std::map<std::string, std::string>& then,
                                 const std::map<std::string, std::string>& now);

}  // namespace slab::train
