// Blocks are decoded by kernels/block_formats.h; the plain types here.
#include "train/files/gguf_blocks.h"

#include <cstdint>
#include <cstring>

#include "kernels/half.h"

namespace slab::train {

std::optional<BlockFormat> block_format(data::GgmlType type) {
    switch (type) {
        case data::GgmlType::f32:
        case data::GgmlType::f16:
        case data::GgmlType::bf16:
            return {};
        case data::GgmlType::q8_0:
            return BlockFormat::q8_0;
        case data::GgmlType::q4_0:
            return BlockFormat::q4_0;
        case data::GgmlType::q4_1:
            return BlockFormat::q4_1;
        case data::GgmlType::q5_0:
            return BlockFormat::q5_0;
        case data::GgmlType::q5_1:
            return BlockFormat::q5_1;
        case data::GgmlType::q4_k:
            return BlockFormat::q4_k;
        case data::GgmlType::q5_k:
            return BlockFormat::q5_k;
        case data::GgmlType::q6_k:
            return BlockFormat::q6_k;
    }
    return {};
}

void decode_blocks(data::GgmlType type, const std::byte* src, float* dst, size_t elems) {
    if (const auto format = block_format(type)) return ref::decode_blocks(*format, src, dst, elems);
    if (type == data::GgmlType::f32) {
        std::memcpy(dst, src, elems * sizeof(float));
        return;
    }
    for (size_t i = 0; i < elems; ++i) {
        uint16_t bits;
        std::memcpy(&bits, src + i * sizeof bits, sizeof bits);
        dst[i] = type == data::GgmlType::f16 ? widen_f16(bits) : to_float(bf16{bits});
    }
}

}  // namespace slab::train
