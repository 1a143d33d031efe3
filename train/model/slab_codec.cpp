// One launch a layer.
#include "train/model/slab_codec.h"

#include "kernels/decode_slab.h"

namespace slab::train {

void SlabCodec::enqueue(int layer, const std::byte* encoded, std::byte* work, Stream& compute) {
    std::vector<DecodePiece> pieces;
    for (const EncodedPiece& piece : encoded_.at(static_cast<size_t>(layer)).pieces)
        pieces.push_back({.format = piece.format,
                          .src = encoded + piece.moved_offset_bytes,
                          .dst = reinterpret_cast<real*>(work + piece.decoded_offset_bytes),
                          .elems = piece.elems});
    decode_slab(pieces, compute);
}

}  // namespace slab::train
