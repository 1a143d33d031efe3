// What frozen layers are kept as: in host memory, in the ring's slots, and on the device where they are resident.
//
// Only matrices are encoded. Norms and biases stay as the model's blocks read them. So does a matrix whose rows are no
// whole number of blocks. q8_0 and nf4 change the model's numbers; as_is keeps those of the file.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/block_formats.h"
#include "train/spec/tensor_table.h"

namespace slab::train {

enum class SlabFormat {
    bf16,   // the build's `real`, as the kernels read it
    q8_0,   // 8.5 bits a weight, made while loading
    nf4,    // 4.5 bits a weight, made while loading
    as_is,  // each matrix in the blocks that the base stores it in
};
const char* slab_format_name(SlabFormat format);  // as --slab-format spells it: "as-is"
std::optional<SlabFormat> slab_format_named(std::string_view name);

// The matrices of the layers that a base stores in blocks, by the key of their TensorPart. Others are plain numbers.
using StoredTypes = std::map<std::string, BlockFormat>;

// What one part of a tensor is kept in; plain where it is not in blocks.
BlockFormat kept_format(SlabFormat format, const TensorSpec& spec, const TensorPart& part, const StoredTypes& stored);
// Whether the format asks for blocks and the rows are no whole number of them.
bool stays_plain(SlabFormat format, const TensorSpec& spec, const TensorPart& part, const StoredTypes& stored);

}  // namespace slab::train
