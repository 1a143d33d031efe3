// Where a base model's weights come from: Hugging Face files, a GGUF file, or random numbers for a model trained from
// scratch.
//
// Files are checked against the table of tensors at construction (missing, unexpected, wrong shape or type), before
// anything is allocated; tensors are then read one at a time, straight into slabs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/base/stop_token.h"
#include "kernels/runtime/real.h"
#include "kernels/runtime/thread_pool.h"
#include "train/files/gguf_weights.h"
#include "train/files/model_files.h"
#include "train/spec/model_config.h"
#include "train/spec/tensor_table.h"

namespace slab::train {

class BaseWeights {
  public:
    // A directory, a .safetensors file or a GGUF file. Throws std::runtime_error naming file and tensor.
    static BaseWeights from_files(const std::filesystem::path& directory_or_file, const ModelConfig& config);
    // GPT-2's initialisation: matrices normal(0, 0.02), those that end a residual branch divided by sqrt(2 L), norms 1,
    // biases 0.
    static BaseWeights random(uint64_t seed, const ModelConfig& config);

    // All parts of the tensor, in our orientation [rows, cols], into dst; in pieces, on the pool's threads. stop is
    // asked before each piece, by the thread that makes it; Interrupted ends the reading.
    template <class T>
    void read(const TensorSpec& spec, T* dst, ThreadPool& pool, data::StopToken stop = {});
    // One of them, [part.rows, spec.cols].
    template <class T>
    void read_part(const TensorSpec& spec, const TensorPart& part, T* dst, ThreadPool& pool, data::StopToken stop = {});

    // A number, as text, that another base almost surely does not have: over each tensor's name, type, shape and bytes
    // taken at places spread evenly over it, a few KiB of each. The same however the tensors are spread over files. Of
    // random weights, whose bytes follow from the seed, over names and shapes. With what config.json says beside these.
    std::string fingerprint(const ModelConfig& config) const;

    // Values that the build's number type could not hold exactly, over all reads so far (F16 into bf16).
    size_t inexact_elems() const { return inexact_elems_; }

  private:
    BaseWeights() = default;
    // The rows of a part, in our orientation, from whichever file there is.
    template <class T>
    ReadReport read_rows(const TensorSpec& spec, const TensorPart& part, size_t first_row, size_t rows, T* dst) const;

    std::shared_ptr<ModelFiles> files_;  // both null: random
    std::shared_ptr<GgufWeights> gguf_;
    uint64_t seed_ = 0;
    int L_ = 0;
    size_t inexact_elems_ = 0;
};

}  // namespace slab::train
