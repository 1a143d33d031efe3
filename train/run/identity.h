// What decides a run's bits beside its files, by flag: a resumed run must agree in all of it.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "train/model/model_layout.h"
#include "train/run/data_loader.h"
#include "train/run/options.h"

namespace slab::train {

// What decides the bits of a run beside the files, by flag: a resumed run must agree in all of it.
std::map<std::string, std::string> identity_of(const TrainOptions& options, const ModelLayout& layout, int64_t steps,
                                               const DataLoader& train_data);

// In what the run gone on with (then) and this one (now) differ, as the beginning of an error; "" when in nothing.
std::string identity_differences(const std::map<std::string, std::string>& then,
                                 const std::map<std::string, std::string>& now);

}  // namespace slab::train
