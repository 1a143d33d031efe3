// Rotary position embedding on the CPU, and its table for both backends.
//
// A row's cosines and sines are split into two arrays once and serve all its heads. Every element is computed on its
// own, so nothing here depends on tiles or threads.
#include "kernels/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace slab {
// The order of operations is that of transformers' _compute_llama3_parameters, so that angles at far positions agree
// to the last bits.
float inverse_frequency(int i, int HD, float theta, const RotaryScalingParams& s) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(HD);
    const float base = 1.0f / static_cast<float>(std::pow(static_cast<double>(theta), static_cast<double>(exponent)));
    if (!s.llama3) return base;
    const float original = static_cast<float>(s.original_max_position_embeddings);
    const float wavelength = 1.0f / base * static_cast<float>(2 * std::numbers::pi);
    if (wavelength > original / s.low_freq_factor) return base / s.factor;
    if (wavelength < original / s.high_freq_factor) return base;
    const float kept = (1.0f / wavelength * original - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
    return (1.0f - kept) * base / s.factor + kept * base;
}

std::vector<float> rotary_table(int positions, int HD, float theta, const RotaryScalingParams& scaling) {
    const size_t half = static_cast<size_t>(HD) / 2;
    std::vector<float> table(static_cast<size_t>(positions) * half * 2);
    for (size_t i = 0; i < half; ++i) {
        const float frequency = inverse_frequency(static_cast<int>(i), HD, theta, scaling);
        for (size_t position = 0; position < static_cast<size_t>(positions); ++position) {
            const double angle = static_cast<float>(position) * frequency;  // rounded to float32 before the cosine
            table[(position * half + i) * 2] = static_cast<float>(std::cos(angle));
            table[(position * half + i) * 2 + 1] = static_cast<float>(std::sin(angle));
        }
    }
    return table;
}

namespace ref {

template <class Number>
void rotary(const Rotary<Number>& a, ThreadPool& pool) {
    constexpr size_t kTileElems = 16384;
    const size_t half = static_cast<size_t>(a.HD) / 2, heads = static_cast<size_t>(a.heads);
    const size_t T_len = static_cast<size_t>(a.T_len);
    const size_t tile_rows = std::max<size_t>(1, kTileElems / std::max<size_t>(1, heads * 2 * half));
    pool.parallel_ranges(a.rows, tile_rows, [&](size_t begin, size_t end) {
        std::vector<Number> cosines(half), sines(half);
        for (size_t row = begin; row < end; ++row) {
            const size_t document = a.doc_start ? static_cast<size_t>(a.doc_start[row]) : 0;
            const size_t position = row % T_len + static_cast<size_t>(a.first_position) - document;
            const float* angles = a.table + position * half * 2;
            for (size_t i = 0; i < half; ++i) {
                cosines[i] = angles[2 * i];
                sines[i] = a.backward ? -angles[2 * i + 1] : angles[2 * i + 1];
            }
            for (size_t h = 0; h < heads; ++h) {
                Number* x1 = a.x + row * a.ld_x + h * 2 * half;
                Number* x2 = x1 + half;
                for (size_t i = 0; i < half; ++i) {
                    const Number first = x1[i], second = x2[i];
                    x1[i] = first * cosines[i] - second * sines[i];
                    x2[i] = second * cosines[i] + first * sines[i];
                }
            }
        }
    });
}

template void rotary(const Rotary<float>&, ThreadPool&);
template void rotary(const Rotary<double>&, ThreadPool&);

}  // namespace ref

#if !defined(SLABSTREAM_CUDA)
void rotary(const Rotary<real>& a, Stream& stream) {
    stream.enqueue("rotary", [a](ThreadPool& pool) { ref::rotary(a, pool); });
}
#endif

}  // namespace slab
