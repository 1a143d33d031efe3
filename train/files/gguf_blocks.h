// GGUF's number types: which are block formats of kernels/, and rows of all of them as floats.
#pragma once

#include <cstddef>
#include <optional>

#include "data/gguf/gguf.h"
#include "kernels/block_formats.h"

namespace slab::train {

// Nothing for F32, F16 and BF16, which are no blocks.
std::optional<BlockFormat> block_format(data::GgmlType type);

// src [elems / block_elems * block_bytes] -> dst [elems]; elems is a multiple of the type's block_elems. Any bytes
// decode; the caller refuses values that are not finite. Safe from several threads.
void decode_blocks(data::GgmlType type, const std::byte* src, float* dst, size_t elems);

}  // namespace slab::train
