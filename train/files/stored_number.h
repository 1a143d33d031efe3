// Numbers of model files on their way into memory: F16 to float, the check for finite values, and storing as T with a
// count of the values that T cannot hold exactly.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "kernels/runtime/real.h"

namespace slab::train {

// F16 to float without branches. Shifted into float's place, the exponent is 112 too small. A multiplication corrects
// it for normal and subnormal values alike; exponent 31 (infinity, NaN) becomes float's own.
inline float widen_f16(uint16_t half) {
    const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fffu) << 13;
    uint32_t bits = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
    bits |= (half & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u;
    return std::bit_cast<float>(bits | static_cast<uint32_t>(half & 0x8000u) << 16);
}

inline bool is_finite(float value) {
    return (std::bit_cast<uint32_t>(value) & 0x7f800000u) != 0x7f800000u;
}

// The largest exponent decides, without a branch in the loop: a model's weights pass through here at memory speed.
template <class T>  // float or bf16
bool all_finite(const T* values /* [count] */, size_t count) {
    using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
    constexpr Bits exponent = sizeof(T) == 2 ? Bits{0x7f80u} : static_cast<Bits>(0x7f800000u);
    Bits largest = 0;
    for (size_t i = 0; i < count; ++i) {
        const Bits bits = std::bit_cast<Bits>(values[i]) & exponent;
        largest = std::max(largest, bits);
    }
    return largest != exponent;
}

// Throws the UserError for a weight that is a NaN or an infinity. subject: file, tensor, type and shape.
[[noreturn]] void refuse_not_finite(const std::string& subject, float value, size_t elem, size_t offset_bytes);

struct NumberStore {
    size_t inexact_elems = 0;
    bool beyond_range = false;  // a finite value became infinite

    void put(float value, float* to) { *to = value; }
    void put(float value, bf16* to) {
        *to = to_bf16(value);
        inexact_elems += (std::bit_cast<uint32_t>(value) & 0xffffu) != 0;
        beyond_range |= !is_finite(to_float(*to));
    }
};

}  // namespace slab::train
