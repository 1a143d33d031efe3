// One function for each format, which decodes one block; two that encode one.
#include "kernels/block_formats.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "kernels/half.h"

namespace slab {
namespace {

constexpr size_t kMostValues = 256;  // of a block

// Byte i of a block.
uint8_t byte_at(const std::byte* block, size_t i) {
    return static_cast<uint8_t>(block[i]);
}

// The two bytes at i as F16.
float half_at(const std::byte* block, size_t i) {
    uint16_t half;
    std::memcpy(&half, block + i, sizeof half);
    return widen_f16(half);
}

// 4-bit quanta of 32 values: byte i holds value i in its lower half and value i + 16 in its upper half.
constexpr int kHalfBlock = 16;

// d, 16 bytes of quanta: d (q - 8)
void decode_q4_0(const std::byte* block, float* dst) {
    const float d = half_at(block, 0);
    for (int i = 0; i < kHalfBlock; ++i) {
        const int both = byte_at(block, 2 + i);
        dst[i] = d * static_cast<float>((both & 15) - 8);
        dst[i + kHalfBlock] = d * static_cast<float>((both >> 4) - 8);
    }
}

// d, m, 16 bytes of quanta: d q + m
void decode_q4_1(const std::byte* block, float* dst) {
    const float d = half_at(block, 0), m = half_at(block, 2);
    for (int i = 0; i < kHalfBlock; ++i) {
        const int both = byte_at(block, 4 + i);
        dst[i] = d * static_cast<float>(both & 15) + m;
        dst[i + kHalfBlock] = d * static_cast<float>(both >> 4) + m;
    }
}

// Quanta of 5 bits: four bytes at `fifths` with bit i for value i, then 16 bytes as in Q4. low, high: values i, i + 16
struct FiveBits {
    int low, high;
};
FiveBits five_bits_at(const std::byte* fifths, int i) {
    uint32_t bits;
    std::memcpy(&bits, fifths, sizeof bits);
    const int both = byte_at(fifths, 4 + i);
    return {(both & 15) | static_cast<int>(bits >> i & 1) << 4,
            both >> 4 | static_cast<int>(bits >> (i + kHalfBlock) & 1) << 4};
}

// d, fifth bits, quanta: d (q - 16)
void decode_q5_0(const std::byte* block, float* dst) {
    const float d = half_at(block, 0);
    for (int i = 0; i < kHalfBlock; ++i) {
        const FiveBits q = five_bits_at(block + 2, i);
        dst[i] = d * static_cast<float>(q.low - 16);
        dst[i + kHalfBlock] = d * static_cast<float>(q.high - 16);
    }
}

// d, m, fifth bits, quanta: d q + m
void decode_q5_1(const std::byte* block, float* dst) {
    const float d = half_at(block, 0), m = half_at(block, 2);
    for (int i = 0; i < kHalfBlock; ++i) {
        const FiveBits q = five_bits_at(block + 4, i);
        dst[i] = d * static_cast<float>(q.low) + m;
        dst[i + kHalfBlock] = d * static_cast<float>(q.high) + m;
    }
}

// d, 32 signed bytes: d q
void decode_q8_0(const std::byte* block, float* dst) {
    const float d = half_at(block, 0);
    for (int i = 0; i < 32; ++i) dst[i] = d * static_cast<float>(static_cast<int8_t>(byte_at(block, 2 + i)));
}

// Q4_K and Q5_K have eight groups of 32 values, each with a scale and a minimum of 6 bits, packed into 12 bytes. Groups
// 0 to 3 have their scales in bytes 0-3 and their minima in bytes 4-7. Groups 4 to 7 have the lower four bits in bytes
// 8-11, the scale's in the lower half. Their upper two bits are the free top bits of bytes 0-3 (scales) and 4-7
// (minima).
struct GroupScale {
    int scale, minimum;
};
GroupScale group_scale(const std::byte* packed, int group) {
    if (group < 4) return {byte_at(packed, group) & 63, byte_at(packed, group + 4) & 63};
    const int low = byte_at(packed, group + 4);
    return {(low & 15) | byte_at(packed, group - 4) >> 6 << 4, low >> 4 | byte_at(packed, group) >> 6 << 4};
}

constexpr int kGroup = 32;

// d, dmin, 12 bytes of scales, 128 of quanta: d scale q - dmin minimum. 32 bytes hold groups 2 k (lower halves) and 2 k
// + 1.
void decode_q4_k(const std::byte* block, float* dst) {
    const float d = half_at(block, 0), d_min = half_at(block, 2);
    for (int group = 0; group < 8; ++group) {
        const GroupScale s = group_scale(block + 4, group);
        const float scale = d * static_cast<float>(s.scale), minimum = d_min * static_cast<float>(s.minimum);
        const std::byte* quanta = block + 16 + group / 2 * kGroup;
        const int shift = group % 2 * 4;
        for (int i = 0; i < kGroup; ++i)
            dst[group * kGroup + i] = scale * static_cast<float>(byte_at(quanta, i) >> shift & 15) - minimum;
    }
}

// As Q4_K, with 32 bytes before the quanta: bit g of byte i is the fifth bit of value i of group g.
void decode_q5_k(const std::byte* block, float* dst) {
    const float d = half_at(block, 0), d_min = half_at(block, 2);
    const std::byte* fifths = block + 16;
    for (int group = 0; group < 8; ++group) {
        const GroupScale s = group_scale(block + 4, group);
        const float scale = d * static_cast<float>(s.scale), minimum = d_min * static_cast<float>(s.minimum);
        const std::byte* quanta = block + 48 + group / 2 * kGroup;
        const int shift = group % 2 * 4;
        for (int i = 0; i < kGroup; ++i) {
            const int q = (byte_at(quanta, i) >> shift & 15) | (byte_at(fifths, i) >> group & 1) << 4;
            dst[group * kGroup + i] = scale * static_cast<float>(q) - minimum;
        }
    }
}

// 128 bytes of lower four bits, 64 of upper two, 16 signed scales (one for 16 values), d: d scale (q - 32). Each half
// of 128 values has 64 bytes of lower bits (values 0-63 in the lower halves) and 32 of upper bits (four values a byte).
void decode_q6_k(const std::byte* block, float* dst) {
    const float d = half_at(block, 208);
    for (int half = 0; half < 2; ++half) {
        const std::byte* lower = block + half * 64;
        const std::byte* upper = block + 128 + half * 32;
        const std::byte* scales = block + 192 + half * 8;
        for (int quarter = 0; quarter < 4; ++quarter)
            for (int i = 0; i < kGroup; ++i) {
                const int low = byte_at(lower, quarter % 2 * kGroup + i) >> (quarter / 2 * 4) & 15;
                const int q = low | (byte_at(upper, i) >> (2 * quarter) & 3) << 4;
                const auto scale = static_cast<int8_t>(byte_at(scales, quarter * 2 + i / 16));
                dst[half * 128 + quarter * kGroup + i] = d * static_cast<float>(scale) * static_cast<float>(q - 32);
            }
    }
}

// absmax in float32, then two codes a byte, the first value's in the upper half: absmax times the code's value
void decode_nf4(const std::byte* block, float* dst) {
    float absmax;
    std::memcpy(&absmax, block, sizeof absmax);
    for (int i = 0; i < 32; ++i) {
        const int both = byte_at(block, 4 + i);
        dst[2 * i] = kNf4Values[both >> 4] * absmax;
        dst[2 * i + 1] = kNf4Values[both & 15] * absmax;
    }
}

template <void (*decode)(const std::byte*, float*), class T>
void decode_all(const BlockInfo& info, const std::byte* src, T* dst, size_t elems) {
    for (size_t block = 0; block < elems / info.values; ++block, src += info.bytes, dst += info.values) {
        if constexpr (std::is_same_v<T, float>) {
            decode(src, dst);
        } else {
            float wide[kMostValues] = {};
            decode(src, wide);
            for (size_t i = 0; i < info.values; ++i) dst[i] = to_bf16(wide[i]);
        }
    }
}

// To the nearest whole number, halves away from zero. No sum touches x itself: a product that comes in here stays a
// rounded product, whatever the compiler fuses.
float round_half_away(float x) {
    const float magnitude = std::abs(x), whole = std::floor(magnitude);
    return std::copysign(whole + (magnitude - whole >= 0.5f ? 1.0f : 0.0f), x);
}

// 1 / x, and 0 where that is no finite number: values that small are stored as zeros.
float inverse(float x) {
    const float y = 1.0f / x;
    return std::isfinite(y) ? y : 0.0f;
}

// Of finite numbers: without their sign, bits are in the order of the values, and a loop over whole numbers is fast.
float largest_magnitude(const float* src, size_t count) {
    uint32_t largest = 0;
    for (size_t i = 0; i < count; ++i) largest = std::max(largest, std::bit_cast<uint32_t>(src[i]) & 0x7fffffffu);
    return std::bit_cast<float>(largest);
}

bool encode_q8_0(const float* src, std::byte* block) {
    const float d = largest_magnitude(src, 32) / 127.0f, scale = inverse(d);
    const uint16_t half = narrow_f16(d);
    std::memcpy(block, &half, sizeof half);
    for (int i = 0; i < 32; ++i)
        block[2 + i] = static_cast<std::byte>(static_cast<int8_t>(round_half_away(src[i] * scale)));
    return (half & 0x7c00u) != 0x7c00u;
}

bool encode_nf4(const float* src, std::byte* block) {
    constexpr int kValues = 64;
    float absmax = largest_magnitude(src, kValues);
    const float scale = inverse(absmax);
    if (scale == 0.0f) absmax = 0;
    std::memcpy(block, &absmax, sizeof absmax);
    float scaled[kValues];
    for (int i = 0; i < kValues; ++i) scaled[i] = src[i] * scale;
    // A code is the number of midpoints below the value.
    int32_t codes[kValues] = {};
    for (int code = 0; code < 15; ++code) {
        const float midpoint = (kNf4Values[code] + kNf4Values[code + 1]) * 0.5f;
        for (int i = 0; i < kValues; ++i) codes[i] += scaled[i] > midpoint ? 1 : 0;
    }
    for (int i = 0; i < kValues / 2; ++i) block[4 + i] = static_cast<std::byte>(codes[2 * i] << 4 | codes[2 * i + 1]);
    return std::isfinite(to_float(to_bf16(absmax)));
}

bool finite_half(const std::byte* at) {
    return (static_cast<unsigned>(at[1]) & 0x7cu) != 0x7cu;
}

// Whether every scale of the block is a number that its values can be computed from.
bool finite_block(BlockFormat format, const std::byte* block) {
    switch (format) {
        case BlockFormat::plain: {
            real value;
            std::memcpy(&value, block, sizeof value);
            return std::isfinite(to_float(value));
        }
        case BlockFormat::q8_0:
        case BlockFormat::q4_0:
        case BlockFormat::q5_0:
            return finite_half(block);
        case BlockFormat::q4_1:
        case BlockFormat::q5_1:
        case BlockFormat::q4_k:
        case BlockFormat::q5_k:
            return finite_half(block) && finite_half(block + 2);
        case BlockFormat::q6_k:
            return finite_half(block + 208);
        case BlockFormat::nf4: {
            float absmax;
            std::memcpy(&absmax, block, sizeof absmax);
            return std::isfinite(to_float(to_bf16(absmax)));
        }
    }
    throw std::logic_error("block format without a check");
}

}  // namespace

size_t encoded_bytes(BlockFormat format, size_t elems) {
    const BlockInfo& info = block_info(format);
    if (elems % info.values != 0)
        throw std::logic_error(std::string(info.name) + ": " + std::to_string(elems) +
                               " values; wanted whole blocks of " + std::to_string(info.values));
    return elems / info.values * info.bytes;
}

std::optional<size_t> first_block_not_finite(BlockFormat format, const std::byte* src, size_t elems) {
    const BlockInfo& info = block_info(format);
    for (size_t block = 0; block < elems / info.values; ++block)
        if (!finite_block(format, src + block * info.bytes)) return block;
    return {};
}

std::optional<size_t> encode_blocks(BlockFormat format, const float* src, std::byte* dst, size_t elems) {
    if (format != BlockFormat::q8_0 && format != BlockFormat::nf4)
        throw std::logic_error(std::string(block_info(format).name) + ": no encoder");
    const BlockInfo& info = block_info(format);
    assert(elems % info.values == 0);
    std::optional<size_t> first;
    for (size_t block = 0; block < elems / info.values; ++block, src += info.values, dst += info.bytes) {
        const bool fits = format == BlockFormat::q8_0 ? encode_q8_0(src, dst) : encode_nf4(src, dst);
        if (!fits && !first) first = block;
    }
    return first;
}

namespace ref {

template <class T>
void decode_blocks(BlockFormat format, const std::byte* src, T* dst, size_t elems) {
    const BlockInfo& info = block_info(format);
    assert(elems % info.values == 0);
    switch (format) {
        case BlockFormat::plain:
            if constexpr (std::is_same_v<T, real>) {
                std::memcpy(dst, src, elems * sizeof(real));
                return;
            }
            throw std::logic_error("plain numbers decode to themselves alone");
        case BlockFormat::q8_0:
            return decode_all<decode_q8_0>(info, src, dst, elems);
        case BlockFormat::q4_0:
            return decode_all<decode_q4_0>(info, src, dst, elems);
        case BlockFormat::q4_1:
            return decode_all<decode_q4_1>(info, src, dst, elems);
        case BlockFormat::q5_0:
            return decode_all<decode_q5_0>(info, src, dst, elems);
        case BlockFormat::q5_1:
            return decode_all<decode_q5_1>(info, src, dst, elems);
        case BlockFormat::q4_k:
            return decode_all<decode_q4_k>(info, src, dst, elems);
        case BlockFormat::q5_k:
            return decode_all<decode_q5_k>(info, src, dst, elems);
        case BlockFormat::q6_k:
            return decode_all<decode_q6_k>(info, src, dst, elems);
        case BlockFormat::nf4:
            return decode_all<decode_nf4>(info, src, dst, elems);
    }
    throw std::logic_error("block format without a decoder");
}
template void decode_blocks(BlockFormat, const std::byte*, float*, size_t);
template void decode_blocks(BlockFormat, const std::byte*, bf16*, size_t);

}  // namespace ref

}  // namespace slab
