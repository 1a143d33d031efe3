// Decodes GGUF's number types: rows of blocks to floats.
//
// A block holds 32 or 256 values of few bits each, with their scales. The layouts are those of ggml's block_q4_0,
// block_q4_K and so on (github.com/ggml-org/ggml, src/ggml-common.h). A product of scale and quantum has at most 24
// significant bits, so it is exact in float and at most one addition rounds. So the bits do not depend on what the
// compiler fuses, and they equal those of the `gguf` Python package.
#pragma once

#include <cstddef>

#include "data/gguf/gguf.h"

namespace slab::train {

// src [elems / block_elems * block_bytes] -> dst [elems]; elems is a multiple of the type's block_elems. Any bytes
// decode; the caller refuses values that are not finite. Safe from several threads.
void decode_blocks(data::GgmlType type, const std::byte* src, float* dst, size_t elems);

}  // namespace slab::train
