// The rows of one forward and backward pass.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cross_entropy.h"

namespace slab::train {

// Rows of the data set, on the host. B and T may be smaller than the layout's.
struct MicroBatch {
    int B = 0, T = 0;
    std::vector<int32_t> tokens;   // [B, T]
    std::vector<int32_t> targets;  // [B, T] the token to predict at each position, or kIgnoreTarget
    // [B, T] index of the first token of its document; empty: every row is one document
    std::vector<int32_t> doc_start;
    uint64_t first_sample = 0;  // global index of row 0, which goes on across epochs; row b has first_sample + b

    size_t target_count() const {
        return targets.size() - static_cast<size_t>(std::count(targets.begin(), targets.end(), kIgnoreTarget));
    }
};

}  // namespace slab::train
