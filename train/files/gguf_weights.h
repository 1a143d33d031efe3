// A GGUF file's tensors as the trainer's table wants them: names translated, blocks decoded, rows in Hugging Face's
// order.
//
// llama.cpp's rotation turns neighbouring pairs, Hugging Face's turns halves. So llama.cpp's conversion of the llama
// architecture, and of no other, reorders the rows of q and k within each head; read_rows undoes that. GPT-2's
// matrices, which Hugging Face stores as [inputs, outputs], are plain [outputs, inputs] here.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include "data/gguf/gguf.h"
#include "train/files/safetensors.h"
#include "train/spec/model_config.h"
#include "train/spec/tensor_table.h"

namespace slab::train {

// GGUF's name for the tensor that transformers calls `key`: "model.layers.3.self_attn.q_proj.weight" ->
// "blk.3.attn_q.weight". "" when there is none.
std::string gguf_name(const std::string& key);

// Whether a GGUF file of this family stores the rows of this tensor in llama.cpp's rotary order.
bool gguf_reorders_rows(Family family, const std::string& key);
// The index in llama.cpp's order of row `row` of q or k in our order; heads have HD rows each.
size_t gguf_row(size_t row, int HD);

class GgufWeights {
  public:
    // Checks every tensor of the table (missing, unexpected, shape) before anything is allocated. Throws UserError
    // naming file and tensor.
    GgufWeights(const std::filesystem::path& path, const ModelConfig& config);

    // Rows of one part of a tensor as T (float or bf16), our orientation and order, into dst [rows, spec.cols]. A
    // vector's rows are its elements. Throws UserError naming file, tensor, element and offset for a number that is not
    // finite. Safe from several threads.
    template <class T>
    ReadReport read_rows(const TensorSpec& spec, const TensorPart& part, size_t first_row, size_t rows, T* dst) const;

    // Rows of one part of a matrix in the file's blocks, our order of rows, into dst [rows x bytes of a row]. Errors
    // and threads as above.
    void read_blocks(const TensorSpec& spec, const TensorPart& part, size_t first_row, size_t rows,
                     std::byte* dst) const;

    const data::GgufFile& file() const { return file_; }
    // The tensor that transformers calls `key`; throws when there is none.
    const data::GgufTensor& tensor_of(const std::string& key) const;

  private:
    // Elements of whole blocks from stored row first_row on, decoded and finite, into wide [rows x the row's elements].
    void decode_rows(const data::GgufTensor& tensor, size_t first_row, size_t rows, float* wide) const;

    // Throws for the first block of these rows, as stored, that has a scale which is not finite.
    void check_blocks(const data::GgufTensor& tensor, size_t first_row, size_t rows, const std::byte* blocks) const;
    std::string subject_of(const data::GgufTensor& tensor) const;  // "FILE: tensor "NAME" (Q4_K [32, 256])"

    data::GgufFile file_;
    Family family_;
    int HD_;
};

// "F.gguf: 92.4 MiB on disk (Q4_1, Q8_0, F32), 538.1 MiB decoded to float32 in host memory", or "..., layers kept in
// its blocks".
std::string describe_gguf(const data::GgufFile& file, const ModelConfig& config, size_t bytes_per_elem,
                          bool layers_in_blocks = false);

}  // namespace slab::train
