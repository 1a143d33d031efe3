// The numbers that a new adapter starts with.
#pragma once

#include <cstdint>
#include <vector>

#include "train/spec/trained_table.h"

namespace slab::train {

// LoRA's start, in table order without gaps. A is uniform in ±1/sqrt(in), which is PyTorch's kaiming_uniform with
// a = sqrt(5). B is zero.
std::vector<float> initial_adapter(const TrainedTable& table, uint64_t seed);

}  // namespace slab::train
