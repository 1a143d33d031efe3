// Between our orientation of a matrix and the other one, in which GPT-2's Conv1D weights are stored.
#pragma once

#include <cstddef>

namespace slab::train {

// src [rows, cols] to dst [cols, rows].
void transpose(const float* src, size_t rows, size_t cols, float* dst);

}  // namespace slab::train
