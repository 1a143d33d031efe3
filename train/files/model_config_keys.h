// The keys of a config that do not shape the model, and those that may say "not in use".
//
// docs/data.md lists how every other key is taken.
#pragma once

#include <string>
#include <vector>

#include "data/base/json_section.h"
#include "train/spec/model_config.h"

namespace slab::train {

// Keys that change nothing in training, whatever their value: bookkeeping, generation defaults, heads of other tasks,
// orders of evaluation that are mathematically equal (pretraining_tp, reorder_and_upcast_attn).
const data::KeySet& harmless_config_keys();

// Keys that published files have, and that mean when they say nothing (false, 0, empty) what their absence means. Any
// other value is refused.
const data::KeySet& config_keys_that_may_be_off();

// Adds a notice to config that names the keys, each "name" or "name" value, that are not among the known ones.
void note_unknown_keys(const std::vector<std::string>& unknown, const std::string& file, const data::KeySet& known,
                       ModelConfig& config);

}  // namespace slab::train
