// The number types of a build.
//
// `real` is what weights and activations are stored in: float on the CPU and in PRECISION=fp32 builds, bf16 otherwise.
// Sums, statistics, gradients of trained tensors and optimizer state are float32 always. The references in slab::ref
// are templates over the stored type T and accumulate in Acc<T>, so tests run the same source in double precision.
#pragma once

#include <bit>
#include <cstdint>

namespace slab {

// The upper half of an IEEE float32. Host arithmetic happens in float; only storage is 16 bits wide.
struct bf16 {
    uint16_t bits;
};

inline float to_float(float v) {
    return v;
}
inline double to_float(double v) {
    return v;
}
inline float to_float(bf16 v) {
    return std::bit_cast<float>(static_cast<uint32_t>(v.bits) << 16);
}

// Round to nearest even; NaN stays NaN (a plain rounding carry could turn it into infinity).
inline bf16 to_bf16(float v) {
    const uint32_t bits = std::bit_cast<uint32_t>(v);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return bf16{static_cast<uint16_t>((bits >> 16) | 0x40u)};
    return bf16{static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

template <class T>
struct AccOf {
    using type = float;
};
template <>
struct AccOf<double> {
    using type = double;
};
// What a kernel over T sums in, and keeps statistics and gradients of trained tensors in.
template <class T>
using Acc = typename AccOf<T>::type;

#if defined(SLABSTREAM_BF16)
using real = bf16;
inline real to_real(float v) {
    return to_bf16(v);
}
inline constexpr const char* kPrecision = "bf16";
#else
using real = float;
inline real to_real(float v) {
    return v;
}
inline constexpr const char* kPrecision = "fp32";
#endif
inline constexpr bool kRealIsFloat32 = sizeof(real) == 4;

}  // namespace slab
