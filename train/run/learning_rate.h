// The learning rate of each step: linear warm-up to the peak, then --lr-scheduler.
#pragma once

#include <cstdint>

#include "train/run/options.h"

namespace slab::train {

// Of step (0-based) of total. Warm-up reaches the peak at its last step, so that no step has rate 0.
double learning_rate_at(const TrainOptions& options, int64_t step, int64_t total);

}  // namespace slab::train
