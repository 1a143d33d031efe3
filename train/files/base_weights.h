// A base model's weights: from Hugging Face files, from a GGUF file, or random for a model trained from scratch.
//
// At construction files are checked against the table of tensors: missing, unexpected, wrong shape or type. Then
// tensors are read one at a time, straight into slabs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/base/stop_token.h"
#include "kernels/block_formats.h"
#include "kernels/runtime/real.h"
#include "kernels/runtime/thread_pool.h"
#include "train/files/bnb_weights.h"
#include "train/files/gguf_weights.h"
#include "train/files/model_files.h"
#include "train/spec/model_config.h"
#include "train/spec/slab_format.h"
#include "train/spec/tensor_table.h"

namespace slab::train {

// What encoding lost: sums over elements, in double, in the order of pieces.
struct EncodeReport {
    double squared_error = 0, squared_norm = 0;
    EncodeReport& operator+=(const EncodeReport& other) {
        squared_error += other.squared_error;
        squared_norm += other.squared_norm;
        return *this;
    }
    double relative_error() const;  // root of the quotient; 0 for weights that are all 0
};

// Which matrices of the layers a base stores in blocks: GGUF's types, or bitsandbytes' nf4. Of a directory that has no
// weights, what config.json says. Empty where every weight is a plain number.
StoredTypes stored_types_of(const std::filesystem::path& directory_or_file, const ModelConfig& config);

class BaseWeights {
  public:
    // A directory, a .safetensors file or a GGUF file. Throws UserError naming file and tensor.
    static BaseWeights from_files(const std::filesystem::path& directory_or_file, const ModelConfig& config);
    // GPT-2's initialisation: matrices normal(0, 0.02), divided by sqrt(2 L) where they end a residual branch; norms 1,
    // biases 0.
    static BaseWeights random(uint64_t seed, const ModelConfig& config);

    // All parts of the tensor, in our orientation [rows, cols], into dst; in pieces, on the pool's threads. stop is
    // asked before each piece, by the thread that makes it; Interrupted ends the reading.
    template <class T>
    void read(const TensorSpec& spec, T* dst, ThreadPool& pool, data::StopToken stop = {});
    // One of them, [part.rows, spec.cols].
    template <class T>
    void read_part(const TensorSpec& spec, const TensorPart& part, T* dst, ThreadPool& pool, data::StopToken stop = {});

    // Rows [first_row, first_row + rows) of one of them, into dst [rows, spec.cols].
    template <class T>
    void read_part_rows(const TensorSpec& spec, const TensorPart& part, size_t first_row, size_t rows, T* dst,
                        ThreadPool& pool, data::StopToken stop = {});
    // One of them in blocks, whole blocks a row, into dst [encoded_bytes]. Blocks of the file's own format are copied
    // and have no error; others are made here. The bytes do not depend on the number of threads. Throws UserError
    // naming file, tensor, element and offset for a block whose scale is not finite, and for a weight that the format's
    // scale cannot hold.
    EncodeReport read_encoded(const TensorSpec& spec, const TensorPart& part, BlockFormat format, std::byte* dst,
                              ThreadPool& pool, data::StopToken stop = {});

    // Lets the system drop what it keeps of the files in memory.
    void drop_cached_files() const;

    // A checksum that identifies the base, as text. It covers the config's numbers and each tensor's name, type, shape
    // and a few KiB of its bytes, taken evenly over it. It does not depend on how tensors are split into files. Random
    // weights follow from the seed, so of them only names and shapes count.
    std::string fingerprint(const ModelConfig& config) const;

    // Number of values that the build's number type could not hold exactly (F16 into bf16), over all reads so far.
    size_t inexact_elems() const { return inexact_elems_; }

  private:
    BaseWeights() = default;
    // The rows of a part, in our orientation, from whichever file there is, or drawn.
    template <class T>
    ReadReport read_rows(const TensorSpec& spec, const TensorPart& part, size_t first_row, size_t rows, T* dst) const;
    template <class T>
    void draw_elems(const TensorSpec& spec, const TensorPart& part, size_t first_elem, size_t elems, T* dst) const;
    bool has_blocks(const TensorPart& part, BlockFormat format) const;
    void read_block_rows(const TensorSpec& spec, const TensorPart& part, size_t first_row, size_t rows,
                         std::byte* dst) const;
    // The tensor's name in the files.
    std::string name_of(const TensorPart& part) const { return files_->resolve(key_spellings(part.key)); }

    std::shared_ptr<ModelFiles> files_;  // both null: random
    std::shared_ptr<BnbWeights> bnb_;    // beside files_, where some are stored in 4 bits
    std::shared_ptr<GgufWeights> gguf_;
    uint64_t seed_ = 0;
    int L_ = 0;
    size_t inexact_elems_ = 0;
};

}  // namespace slab::train
