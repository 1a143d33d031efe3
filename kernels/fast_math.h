// Arithmetic that vectorises, for the CPU kernels' inner loops.
//
// fast_exp is branch-free, so gcc turns a loop over it into SIMD code (-O3 -fno-math-errno -fno-trapping-math). libm's
// expf would be a call per element. The order of operations is fixed, fused multiply-adds included. So an element gets
// the same bits in the vector body of a loop and in its scalar remainder.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace slab {

// a * b + c, fused where the machine has such an instruction (without one, std::fma would be a slow library call).
inline float mul_add(float a, float b, float c) {
#if defined(__FP_FAST_FMAF)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}
inline double mul_add(double a, double b, double c) {
#if defined(__FP_FAST_FMA)
    return __builtin_fma(a, b, c);
#else
    return a * b + c;
#endif
}

// e^x within 1 ulp, measured over all floats (tests/kernels/test_cross_entropy.cpp samples them). exp(0) is exactly 1.
// -inf and anything under -104 give 0, overflow gives inf, NaN stays NaN.
//
// x = n ln 2 + r with |r| <= ln 2 / 2, and e^r = 1 + r + r² P(r). P is a minimax polynomial: Lawson's iteration over
// the relative error, rounded to float: 1.3e-9. 2^n is multiplied in two halves, so that subnormal results are right
// too.
inline float fast_exp_float(float x) {
    constexpr float kLog2e = 0x1.715476p+0f, kRound = 0x1.8p+23f;    // adding kRound leaves the nearest integer
    constexpr float kLn2Hi = 0x1.63p-1f, kLn2Lo = -0x1.bd0106p-13f;  // n * kLn2Hi is exact for |n| < 2^15
    x = x > 89.0f ? 89.0f : x;                                       // both comparisons are false for NaN, which stays
    x = x < -104.0f ? -104.0f : x;
    const float shifted = mul_add(x, kLog2e, kRound);
    const float n = shifted - kRound;
    const float r = mul_add(-n, kLn2Lo, mul_add(-n, kLn2Hi, x));
    float p = 0x1.9f02dp-13f;
    p = mul_add(p, r, 0x1.6d945cp-10f);
    p = mul_add(p, r, 0x1.11128p-7f);
    p = mul_add(p, r, 0x1.555486p-5f);
    p = mul_add(p, r, 0x1.555554p-3f);
    p = mul_add(p, r, 0.5f);
    p = mul_add(p, r * r, r) + 1.0f;
    const int32_t exponent = static_cast<int32_t>(std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRound));
    const int32_t half = exponent >> 1;
    const float scale1 = std::bit_cast<float>(static_cast<uint32_t>(half + 127) << 23);
    const float scale2 = std::bit_cast<float>(static_cast<uint32_t>(exponent - half + 127) << 23);
    return p * scale1 * scale2;
}

// float: the polynomial above. double: libm, since doubles only run in tests.
template <class Number>
inline Number fast_exp(Number x);
template <>
inline float fast_exp<float>(float x) {
    return fast_exp_float(x);
}
template <>
inline double fast_exp<double>(double x) {
    return std::exp(x);
}

}  // namespace slab
