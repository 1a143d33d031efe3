// Matrices that bitsandbytes stored in 4 bits (*-bnb-4bit directories): nf4 in blocks of 64 values.
//
// Beside "X.weight", the codes, a file has "X.weight.absmax", one scale a block, and "X.weight.quant_state.
// bitsandbytes__nf4", a JSON text. With double quantisation the scales are bytes themselves: an index into
// "nested_quant_map", times "nested_absmax" of 256 of them, plus an offset. Reading gives float32 scales, so blocks
// come out as our nf4 (kernels/block_formats.h). Blocks run over the matrix in the order of its elements. Format:
// github.com/bitsandbytes-foundation/bitsandbytes, functional.py, QuantState.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "train/files/model_files.h"
#include "train/files/safetensors.h"
#include "train/spec/tensor_table.h"

namespace slab::train {

class BnbWeights {
  public:
    // files must outlive this. Finds the matrices that are stored in 4 bits.
    explicit BnbWeights(const ModelFiles& files);

    // Whether the files store this tensor in 4 bits; name as in the files.
    bool has(const std::string& name) const { return states_.count(name) != 0; }
    // Checks tensors and numbers beside the codes of [rows, cols]; throws UserError naming file and tensor. The names
    // of all tensors that belong to it go into `used`.
    void check(const std::string& name, size_t rows, size_t cols, std::set<std::string>& used) const;

    // Blocks [first_block, first_block + blocks) in our nf4 into dst, codes that the matrix does not have as 0. Throws
    // UserError naming file, tensor, element and offset for a scale that is not finite. Safe from several threads.
    void read_blocks(const std::string& name, size_t first_block, size_t blocks, std::byte* dst) const;
    // Elements [first_elem, first_elem + elems) as T (float or bf16).
    template <class T>
    ReadReport read_elems(const std::string& name, size_t first_elem, size_t elems, T* dst) const;

    // The tensors whose bytes are the matrix: codes and scales.
    static std::vector<std::string> content_of(const std::string& name) { return {name, name + ".absmax"}; }

  private:
    struct State {
        size_t elems = 0;  // of the matrix
        bool nested = false;
        size_t nested_block = 0;  // scales in a block of scales
        float nested_offset = 0;
    };
    State read_state(const std::string& name) const;
    void read_scales(const std::string& name, const State& state, size_t first_block, size_t blocks, float* dst) const;

    const ModelFiles& files_;
    std::map<std::string, State> states_;
};

}  // namespace slab::train
