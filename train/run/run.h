// A training run from its flags to its result: plan, open, restore, steps, finish.
#pragma once

#include <iosfwd>

#include "data/base/stop_token.h"
#include "train/run/options.h"

namespace slab::train {

// Runs train_gpt. Returns the exit code: 0 done; 1 a plan that does not fit; 130 stopped. A stop is noticed between
// pieces that are loaded, micro-batches and tokens of a sample. While loading it leaves nothing, after that a
// checkpoint. Throws data::UserError, data::IoError or DeviceError with a message for the user.
int train(const TrainOptions& options, data::StopToken stop, std::ostream& out);

}  // namespace slab::train
