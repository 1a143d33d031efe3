// Where the frozen tensors of one layer lie in a slab that is moved encoded, and what decodes to what.
//
// q, k and v, and gate and up, are one tensor each to the kernels, and may have block types of their own. So each part
// of a tensor with blocks has its own place in the moved slab and decodes to its rows of the fused tensor. A tensor
// without blocks is one piece, which is copied.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "kernels/block_formats.h"
#include "offload/slab_layout.h"
#include "train/spec/slab_format.h"

namespace slab::train {

struct ModelLayout;
struct TensorGroup;

struct EncodedPiece {
    BlockFormat format;           // plain: copied
    size_t tensor;                // index in the group's tensors
    size_t first_part, parts;     // of that tensor; one part where there are blocks
    size_t moved_offset_bytes;    // in the moved slab
    size_t decoded_offset_bytes;  // in the decoded one
    size_t elems;
};

struct EncodedSlab {
    offload::SlabLayout moved;         // as it lies in host memory and in a slot
    std::vector<EncodedPiece> pieces;  // in the order of the group's frozen tensors
};

// Of the group's frozen tensors; empty where all are trained.
EncodedSlab encoded_slab(const TensorGroup& group, SlabFormat format, const StoredTypes& stored);

// Fills layout.encoded and layout.work_slab_bytes. Both stay empty unless some matrix of a frozen layer is in blocks.
void lay_out_encoding(ModelLayout& layout);

// How a plan's item of layers goes on: " in nf4", " in the file's blocks", or nothing where they are not encoded.
std::string kept_as_text(const ModelLayout& layout);

}  // namespace slab::train
