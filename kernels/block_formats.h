// Weights in few bits: formats whose blocks hold 32 to 256 values, with scales, in a fixed number of bytes.
//
// The layouts of Q4_0 to Q6_K are those of ggml's block_q4_0, block_q4_K and so on (github.com/ggml-org/ggml,
// src/ggml-common.h). NF4 has bitsandbytes' code values and blocks of 64, the float32 absmax before the codes. Except
// in NF4 a product of scale and quantum has at most 24 significant bits, so it is exact in float, and at most one
// addition rounds. In NF4 one product rounds. So the bits do not depend on what the compiler fuses. They equal those
// of the `gguf` Python package; kernels on the GPU give the same ones.
#pragma once

#include <cstddef>
#include <optional>

#include "kernels/runtime/real.h"

namespace slab {

enum class BlockFormat {
    plain,  // `real` numbers as they are: what is not encoded in a slab
    q8_0,
    q4_0,
    q4_1,
    q5_0,
    q5_1,
    q4_k,
    q5_k,
    q6_k,
    nf4,
};
inline constexpr int kBlockFormats = 10;

struct BlockInfo {
    const char* name;  // as ggml writes it, "Q4_K"; "NF4"; the build's precision for plain
    size_t values;     // of a block: neighbours in a row
    size_t bytes;
    BlockFormat format;
};
inline constexpr BlockInfo kBlockInfo[kBlockFormats] = {
    // In the order of the enum.
    {kPrecision, 1, sizeof(real), BlockFormat::plain},
    {"Q8_0", 32, 34, BlockFormat::q8_0},
    {"Q4_0", 32, 18, BlockFormat::q4_0},
    {"Q4_1", 32, 20, BlockFormat::q4_1},
    {"Q5_0", 32, 22, BlockFormat::q5_0},
    {"Q5_1", 32, 24, BlockFormat::q5_1},
    {"Q4_K", 256, 144, BlockFormat::q4_k},
    {"Q5_K", 256, 176, BlockFormat::q5_k},
    {"Q6_K", 256, 210, BlockFormat::q6_k},
    {"NF4", 64, 36, BlockFormat::nf4},
};
constexpr const BlockInfo& block_info(BlockFormat format) {
    return kBlockInfo[static_cast<size_t>(format)];
}

// Bytes of `elems` values. Throws std::logic_error when they are no whole number of blocks.
size_t encoded_bytes(BlockFormat format, size_t elems);

// The first block [of elems / values] with a scale from which no finite `real` numbers come: NaN, an infinity, or an
// NF4 absmax that bf16 would round to infinity. In all other blocks every value is finite.
std::optional<size_t> first_block_not_finite(BlockFormat format, const std::byte* src, size_t elems);

// src [elems], finite -> dst [encoded_bytes]. The formats are q8_0 and nf4; std::logic_error otherwise. Returns the
// first block whose scale is beyond its type's range, where dst is of no use. Safe from several threads.
//   q8_0: d = absmax / 127, q = x (1 / d) rounded to nearest, halves away from zero; then d is stored as F16
//   nf4:  x (1 / absmax) against the midpoints of neighbouring code values, greater goes up; a block of zeros: code 7
std::optional<size_t> encode_blocks(BlockFormat format, const float* src, std::byte* dst, size_t elems);

// NF4's code values, in the order of their codes.
inline constexpr float kNf4Values[16] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

namespace ref {
// src [encoded_bytes] -> dst [elems], each value in float32 and then rounded once to T (float or bf16; plain numbers to
// `real` alone). elems is a whole number of blocks. Any bytes decode. Safe from several threads.
template <class T>
void decode_blocks(BlockFormat format, const std::byte* src, T* dst, size_t elems);
}  // namespace ref

}  // namespace slab
