// A training run from flags to the final adapter: plan, load, step, evaluate, sample, save, stop.
#pragma once

#include <atomic>
#include <iosfwd>

#include "train/options.h"

namespace slab::train {

// Runs train_gpt. Returns the exit code: 0 done, 130 stopped by `interrupt` after saving a checkpoint. Throws
// std::runtime_error with a message for the user otherwise. `interrupt` is looked at between steps.
int train(const TrainOptions& options, const std::atomic<bool>& interrupt, std::ostream& out);

// The learning rate of step (0-based) of total: warm-up rises linearly to the peak, which it reaches at its last step,
// so that no step has rate 0.
double learning_rate_at(const TrainOptions& options, int64_t step, int64_t total);

}  // namespace slab::train
