// One function for each type, which decodes one block.
#include "train/files/gguf_blocks.h"

#include <cassert>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "train/files/stored_number.h"

namespace slab::train {
namespace {

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

void decode_f16(const std::byte* block, float* dst) {
    *dst = half_at(block, 0);
}

void decode_bf16(const std::byte* block, float* dst) {
    bf16 value;
    std::memcpy(&value, block, sizeof value);
    *dst = to_float(value);
}

template <void (*decode)(const std::byte*, float*)>
void decode_all(const data::GgmlTypeInfo& info, const std::byte* src, float* dst, size_t elems) {
    for (size_t block = 0; block < elems / info.block_elems; ++block)
        decode(src + block * info.block_bytes, dst + block * info.block_elems);
}

}  // namespace

void decode_blocks(data::GgmlType type, const std::byte* src, float* dst, size_t elems) {
    const data::GgmlTypeInfo& info = data::info_of(type);
    assert(elems % info.block_elems == 0);
    switch (type) {
        case data::GgmlType::f32:
            std::memcpy(dst, src, elems * sizeof(float));
            return;
        case data::GgmlType::f16:
            return decode_all<decode_f16>(info, src, dst, elems);
        case data::GgmlType::bf16:
            return decode_all<decode_bf16>(info, src, dst, elems);
        case data::GgmlType::q8_0:
            return decode_all<decode_q8_0>(info, src, dst, elems);
        case data::GgmlType::q4_0:
            return decode_all<decode_q4_0>(info, src, dst, elems);
        case data::GgmlType::q4_1:
            return decode_all<decode_q4_1>(info, src, dst, elems);
        case data::GgmlType::q5_0:
            return decode_all<decode_q5_0>(info, src, dst, elems);
        case data::GgmlType::q5_1:
            return decode_all<decode_q5_1>(info, src, dst, elems);
        case data::GgmlType::q4_k:
            return decode_all<decode_q4_k>(info, src, dst, elems);
        case data::GgmlType::q5_k:
            return decode_all<decode_q5_k>(info, src, dst, elems);
        case data::GgmlType::q6_k:
            return decode_all<decode_q6_k>(info, src, dst, elems);
    }
    throw std::logic_error("ggml type without a decoder");
}

}  // namespace slab::train
