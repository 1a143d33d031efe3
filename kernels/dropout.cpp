// Dropout on the CPU. It defines the mask for every backend: an element is kept where uniform01(draw) >= p. The scale
// 1 / (1 - p) is computed in the accumulation type.
//
// Invariant: an element's draw depends on the element's identity (dropout.h), never on its place in a batch or tile.
#include "kernels/dropout.h"

#include <algorithm>
#include <cassert>

#include "kernels/philox.h"

namespace slab {
namespace {

constexpr int kLanes = 8;  // Philox calls side by side, so that the compiler turns them into SIMD code

// keep[c] for the channels [4 first_call, 4 (first_call + kLanes)) of one token: 1 / (1 - p) or 0
template <class A>
void draw_mask(A* keep /*[4 kLanes]*/, uint64_t key, uint32_t first_call, uint32_t token, uint32_t sample,
               uint32_t where, float p, A scale) {
    uint32_t draws[4][kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
        const PhiloxOut out = philox(key, first_call + lane, token, sample, where);
        for (int i = 0; i < 4; ++i) draws[i][lane] = out.v[i];
    }
    for (int lane = 0; lane < kLanes; ++lane) {
        for (int i = 0; i < 4; ++i) keep[lane * 4 + i] = uniform01(draws[i][lane]) >= p ? scale : A(0);
    }
}

template <class Number>
void dropout_row(const Dropout<Number>& a, size_t row) {
    const uint64_t sample = a.key.first_sample + row / a.T_len;
    const uint32_t token = static_cast<uint32_t>(row % a.T_len);
    const uint64_t key = a.key.seed ^ (sample >> 32 << 32);
    const uint32_t where = static_cast<uint32_t>(a.key.layer) * 32u + a.key.site;
    const Acc<Number> scale = 1 / (1 - static_cast<Acc<Number>>(a.p));
    const size_t C = a.C;
    Number* y = a.y + row * C;
    const Number* x = a.x + row * C;
    for (size_t c0 = 0; c0 < C; c0 += 4 * kLanes) {
        Acc<Number> keep[4 * kLanes];
        draw_mask(keep, key, static_cast<uint32_t>(c0 / 4), token, static_cast<uint32_t>(sample), where, a.p, scale);
        const size_t n = std::min<size_t>(4 * kLanes, C - c0);
        // A dropped element is 0 even where x is not finite: a select, not a product.
        if (a.accumulate) {
            for (size_t i = 0; i < n; ++i) y[c0 + i] += keep[i] != 0 ? x[c0 + i] * keep[i] : Number(0);
        } else {
            for (size_t i = 0; i < n; ++i) y[c0 + i] = keep[i] != 0 ? x[c0 + i] * keep[i] : Number(0);
        }
    }
}

}  // namespace

namespace ref {

template <class Number>
void dropout(const Dropout<Number>& a, ThreadPool& pool) {
    assert(a.p >= 0 && a.p < 1 && a.T_len > 0 && a.key.site >= 0 && a.key.site < 32);
    constexpr size_t kTileRows = 16;
    pool.parallel_ranges(a.rows, kTileRows, [&](size_t begin, size_t end) {
        for (size_t row = begin; row < end; ++row) dropout_row(a, row);
    });
}

template void dropout(const Dropout<float>&, ThreadPool&);
template void dropout(const Dropout<double>&, ThreadPool&);

}  // namespace ref

#if !defined(SLABSTREAM_CUDA)
void dropout(const Dropout<real>& a, Stream& stream) {
    stream.enqueue("dropout", [a](ThreadPool& pool) { ref::dropout(a, pool); });
}
#endif

}  // namespace slab
