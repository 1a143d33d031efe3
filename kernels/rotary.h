// Rotary position embedding in Hugging Face's half-split form. With x1 the first and x2 the second half of a head:
// y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin. The angle is position * inv_freq[i]. Backward rotates by the negative
// angle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/runtime/real.h"
#include "kernels/runtime/runtime.h"

namespace slab {

// Llama 3.1's scaling of inv_freq. Wavelengths beyond original / low_freq_factor are slowed by `factor`, those under
// original / high_freq_factor are kept, those in between interpolated. Without `llama3` rotary is plain.
struct RotaryScalingParams {
    bool llama3 = false;
    float factor = 1, low_freq_factor = 1, high_freq_factor = 4;
    int original_max_position_embeddings = 0;
};

// inv_freq[i] for i below HD / 2, in float32.
float inverse_frequency(int i, int HD, float theta, const RotaryScalingParams& scaling);

// [positions, HD / 2, 2]: cos and sin of position * inv_freq, computed in float32 as transformers does.
std::vector<float> rotary_table(int positions, int HD, float theta, const RotaryScalingParams& scaling);

template <class Number>
struct Rotary {
    Number* x;                 // [rows, heads, HD] within rows of stride ld_x; rotated in place
    const float* table;        // [positions, HD / 2, 2], first_position + T of them used
    const int32_t* doc_start;  // [rows] or null: positions count from the document's start
    size_t rows;               // B * T
    int T_len, heads, HD;
    size_t ld_x;
    bool backward = false;   // rotate by the negative angle
    int first_position = 0;  // added to all positions; above 0 where the rows follow others whose keys are cached
};

namespace ref {
template <class Number>
void rotary(const Rotary<Number>& a, ThreadPool& pool);
}  // namespace ref

void rotary(const Rotary<real>& a, Stream& stream);

}  // namespace slab
