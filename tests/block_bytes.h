// Random blocks of any format: every bit pattern of the quanta, scales that are finite.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/block_formats.h"
#include "kernels/half.h"

namespace slab::test {

inline std::vector<std::byte> random_blocks(BlockFormat format, size_t elems, unsigned seed) {
    std::mt19937_64 random(seed);
    std::vector<std::byte> bytes(encoded_bytes(format, elems));
    const auto number = [&] { return static_cast<float>(random() % 20001) * 1e-4f - 1.0f; };
    if (format == BlockFormat::plain) {
        for (size_t i = 0; i < elems; ++i) {
            const real value = to_real(number());
            std::memcpy(bytes.data() + i * sizeof value, &value, sizeof value);
        }
        return bytes;
    }
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    const auto put_half = [&](size_t at) {
        // One in eight is F16's smallest number or its largest.
        const uint64_t kind = random() % 16;
        const uint16_t half = kind == 0 ? 1 : kind == 1 ? 0x7bff : narrow_f16(number());
        std::memcpy(bytes.data() + at, &half, sizeof half);
    };
    const BlockInfo& info = block_info(format);
    for (size_t at = 0; at < bytes.size(); at += info.bytes) {
        if (format == BlockFormat::nf4) {
            const float absmax = random() % 16 == 0 ? 1e-40f : number();
            std::memcpy(bytes.data() + at, &absmax, sizeof absmax);
            continue;
        }
        put_half(format == BlockFormat::q6_k ? at + 208 : at);
        if (format == BlockFormat::q4_1 || format == BlockFormat::q5_1 || format == BlockFormat::q4_k ||
            format == BlockFormat::q5_k)
            put_half(at + 2);
    }
    return bytes;
}

}  // namespace slab::test
