// Encoded weights of a layer to `real`: one launch for all of its tensors.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/block_formats.h"
#include "kernels/runtime/runtime.h"

namespace slab {

// One tensor, or some rows of one. Both addresses are multiples of 16 bytes; those of a plain piece, of sizeof(real).
struct DecodePiece {
    BlockFormat format;
    const std::byte* src;  // [encoded_bytes(format, elems)]
    real* dst;             // [elems], apart from all src and all other dst
    size_t elems;          // a whole number of blocks; 0 is allowed
};
inline constexpr size_t kMostDecodePieces = 24;

// dst = the bits of ref::decode_blocks, for each piece. The span may go once this returns. Throws std::logic_error on
// more than kMostDecodePieces, on broken blocks and on addresses that are not aligned.
void decode_slab(std::span<const DecodePiece> pieces, Stream& stream);

namespace ref {
void decode_slab(std::span<const DecodePiece> pieces, ThreadPool& pool);
}  // namespace ref

// Throws as decode_slab does.
void check_decode_pieces(std::span<const DecodePiece> pieces);

}  // namespace slab
