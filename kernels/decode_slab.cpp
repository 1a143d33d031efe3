// The pieces are cut into tiles of whole blocks, and the tiles shared out.
#include "kernels/decode_slab.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace slab {
namespace {

constexpr size_t kTileElems = 16384;  // whole blocks of every format

}  // namespace

void check_decode_pieces(std::span<const DecodePiece> pieces) {
    if (pieces.size() > kMostDecodePieces)
        throw std::logic_error("decode_slab: " + std::to_string(pieces.size()) + " pieces; wanted at most " +
                               std::to_string(kMostDecodePieces));
    for (const DecodePiece& piece : pieces) {
        encoded_bytes(piece.format, piece.elems);
        const size_t alignment = piece.format == BlockFormat::plain ? sizeof(real) : 16;
        if (reinterpret_cast<uintptr_t>(piece.src) % alignment != 0 ||
            reinterpret_cast<uintptr_t>(piece.dst) % alignment != 0)
            throw std::logic_error(std::string("decode_slab: a piece in ") + block_info(piece.format).name +
                                   " at an address that is no multiple of " + std::to_string(alignment));
    }
}

namespace ref {

void decode_slab(std::span<const DecodePiece> pieces, ThreadPool& pool) {
    check_decode_pieces(pieces);
    std::vector<DecodePiece> tiles;
    for (const DecodePiece& piece : pieces) {
        const BlockInfo& info = block_info(piece.format);
        for (size_t first = 0; first < piece.elems; first += kTileElems)
            tiles.push_back({piece.format, piece.src + first / info.values * info.bytes, piece.dst + first,
                             std::min(kTileElems, piece.elems - first)});
    }
    pool.parallel_for(tiles.size(), [&](size_t i) {
        const DecodePiece& tile = tiles[i];
        decode_blocks(tile.format, tile.src, tile.dst, tile.elems);
    });
}

}  // namespace ref

#if !defined(SLABSTREAM_CUDA)
void decode_slab(std::span<const DecodePiece> pieces, Stream& stream) {
    check_decode_pieces(pieces);
    stream.enqueue("decode_slab", [copy = std::vector<DecodePiece>(pieces.begin(), pieces.end())](ThreadPool& pool) {
        ref::decode_slab(copy, pool);
    });
}
#endif

}  // namespace slab
