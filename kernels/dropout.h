// Inverted dropout whose mask is a pure function of (seed, global sample, token, layer, site, channel). Nothing is
// stored: backward, recomputation and any split into micro-batches draw the same mask.
//
// One Philox call gives the four channels c = 4 j .. 4 j + 3 of one token. Its key is the seed, its counter (j, token,
// sample's low 32 bits, layer * 32 + site). The sample's high bits are xored into the key's upper half. The sample
// index counts on across epochs, so every epoch draws anew.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/runtime/real.h"
#include "kernels/runtime/runtime.h"

namespace slab {

struct DropoutKey {
    uint64_t seed = 0;
    uint64_t first_sample = 0;  // global sample index of the micro-batch's row b = 0; row b is first_sample + b
    int layer = 0;
    int site = 0;  // which module within the layer, < 32
};

template <class Number>
struct Dropout {
    Number* y;        // [B, T, C]
    const Number* x;  // [B, T, C]; may be y
    size_t rows;      // B * T
    int T_len, C;
    float p;                  // in [0, 1): the share dropped
    bool accumulate = false;  // y += mask * x / (1 - p) instead of =
    DropoutKey key;
};

namespace ref {
template <class Number>
void dropout(const Dropout<Number>& a, ThreadPool& pool);
}  // namespace ref

void dropout(const Dropout<real>& a, Stream& stream);

}  // namespace slab
