// A training run from flags to the final adapter: plan, load, step, evaluate, sample, save, stop.
#pragma once

#include <iosfwd>

#include "data/base/stop_token.h"
#include "train/run/options.h"

namespace slab::train {

// Runs train_gpt. Returns the exit code: 0 done, 130 stopped by `stop`, which leaves a checkpoint once all is
// loaded and nothing before. Throws std::runtime_error with a message for the user otherwise. `stop` is asked between
// pieces of what is loaded, between micro-batches and between tokens of a sample.
int train(const TrainOptions& options, data::StopToken stop, std::ostream& out);

}  // namespace slab::train
