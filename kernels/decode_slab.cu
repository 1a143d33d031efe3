// The tile that won; dev/decode_bench.cu times it beside others.
#include "kernels/decode_slab.cuh"

namespace slab {

void decode_slab(std::span<const DecodePiece> pieces, Stream& stream) {
    const OpScope scope(stream, "decode_slab");
    check_decode_pieces(pieces);
    CUDA_CHECK(decode::launch<decode::DefaultTile>(pieces, native(stream)));
}

}  // namespace slab
