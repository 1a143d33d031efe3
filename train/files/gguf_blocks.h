// GGUF's number types decoded: rows of blocks to floats.
//
// A block holds 32 or 256 values in few bits each, and the scales that make numbers of them. The layouts are those of
// ggml's block_q4_0, block_q4_K and so on (github.com/ggml-org/ggml, src/ggml-common.h). Every product of scale and
// quantum below has at most 24 significant bits, so it is exact in float and at most one addition rounds: the bits are
// the same whatever the compiler fuses, and the same as those of the `gguf` Python package.
#pragma once

#include <cstddef>

#include "data/gguf/gguf.h"

namespace slab::train {

// src [elems / block_elems * block_bytes] -> dst [elems]; elems is a multiple of the type's block_elems. Any bytes
// decode to something; what is not finite is left to the caller to refuse. Safe from several threads.
void decode_blocks(data::GgmlType type, const std::byte* src, float* dst, size_t elems);

}  // namespace slab::train
