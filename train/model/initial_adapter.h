// Where a new adapter starts.
#pragma once

#include <cstdint>
#include <vector>

#include "train/spec/trained_table.h"

namespace slab::train {

// LoRA's start, in table order without gaps: A from kaiming-uniform(a = sqrt 5), that is uniform in ±1/sqrt(in); B
// zero.
std::vector<float> initial_adapter(const TrainedTable& table, uint64_t seed);

}  // namespace slab::train
