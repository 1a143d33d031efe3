// A training run from flags to the final adapter: plan, load, step, evaluate, sample, save, stop.
#pragma once

#include <atomic>
#include <iosfwd>

#include "train/run/options.h"

namespace slab::train {

// Runs train_gpt. Returns the exit code: 0 done, 130 stopped by `interrupt`, which leaves a checkpoint once all is
// loaded and nothing before. Throws std::runtime_error with a message for the user otherwise. `interrupt` is looked at
// between pieces of what is loaded, between micro-batches and between tokens of a sample.
int train(const TrainOptions& options, const std::atomic<bool>& interrupt, std::ostream& out);

}  // namespace slab::train
