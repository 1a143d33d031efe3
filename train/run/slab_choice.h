// --slab-format: from flags and base to the format of frozen layers, and what a run says of it.
#pragma once

#include <string>
#include <vector>

#include "train/model/encode_errors.h"
#include "train/model/model_layout.h"
#include "train/run/options.h"
#include "train/spec/slab_format.h"

namespace slab::train {

struct SlabChoice {
    SlabFormat format;
    std::vector<std::string> notes;  // a sentence each, without "note: "
};
// stored: of the base, which is a GGUF file or a directory. Without a flag blocks of bitsandbytes are kept, and those
// of a GGUF file where layers stream. Throws data::UserError for blocks of a base that is in blocks already.
SlabChoice choose_slab_format(const TrainOptions& options, const StoredTypes& stored, bool gguf);

// Tensors that stay plain for the length of their rows: a sentence for each length.
std::vector<std::string> plain_tensor_notes(const ModelLayout& layout);

// "slabs: nf4, 12.1 GiB as bf16 -> 3.4 GiB; error ..." or "slabs: as in the file (Q4_K 80%, Q6_K 20%), ..."; "" where
// nothing is encoded.
std::string slabs_line(const ModelLayout& layout, const EncodeErrors& errors);

}  // namespace slab::train
