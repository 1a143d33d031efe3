// F16, the IEEE half of scales and of some model files: to float and back, with integer arithmetic alone.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace slab {

// Without branches. Shifted into float's place, the exponent is 112 too small. A multiplication corrects it for normal
// and subnormal values alike; exponent 31 (infinity, NaN) becomes float's own.
inline float widen_f16(uint16_t half) {
    const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fffu) << 13;
    uint32_t bits = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
    bits |= (half & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u;
    return std::bit_cast<float>(bits | static_cast<uint32_t>(half & 0x8000u) << 16);
}

// To nearest even. Beyond the range it becomes an infinity; NaN stays NaN.
inline uint16_t narrow_f16(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude >= 0x7f800000u) return sign | (magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u);
    if (magnitude < 0x38800000u) {  // below 2^-14: in steps of 2^-24, to which adding 0.5 rounds (its steps are 2^-24)
        const float rounded = std::bit_cast<float>(magnitude) + 0.5f;
        return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(rounded) - 0x3f000000u);
    }
    const uint32_t even = magnitude >> 13 & 1u;  // a carry goes on into the exponent, as it should
    const uint32_t half = (magnitude - 0x38000000u + 0xfffu + even) >> 13;
    return sign | static_cast<uint16_t>(std::min(half, 0x7c00u));
}

}  // namespace slab
