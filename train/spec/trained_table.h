// One table of element offsets for weights, gradients, master copies and both Adam moments of what is trained.
//
// Tensors start at multiples of 128 elements (256 bytes in bf16); the gaps stay zero. A `joined` tensor follows its
// predecessor without a gap: the A matrices of q, k and v are one matrix to the kernels and three to PEFT.
// Tensors that decay come first, so that AdamW runs over two ranges.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace slab::train {

enum class TrainedKind { base, lora_A, lora_B };

struct TrainedTensor {
    std::string key;    // PEFT's or Hugging Face's name in files
    TrainedKind kind;   // a weight of the base, or one of an adapter's two
    size_t rows, cols;  // in memory; [rows, 1] for a vector
    bool matrix;        // two-dimensional in files
    bool decay;
    bool transposed;  // stored [cols, rows] in files
    bool joined;      // directly after its predecessor
    int layer;        // -1 outside the layers
    size_t offset_elems = 0;
    size_t elems() const { return rows * cols; }
};

class TrainedTable {
  public:
    size_t add(TrainedTensor tensor);  // returns its index
    void finish();                     // assigns offsets; no add afterwards

    const std::vector<TrainedTensor>& tensors() const { return tensors_; }
    const TrainedTensor& at(size_t index) const { return tensors_.at(index); }
    bool empty() const { return tensors_.empty(); }
    size_t total_elems() const { return total_elems_; }
    size_t decayed_elems() const { return decayed_elems_; }  // [0, decayed) decays, [decayed, total) does not
    size_t parameter_count() const;                          // without the gaps
    std::vector<size_t> packed_offsets() const;              // of each tensor, in elements, without the gaps

  private:
    std::vector<TrainedTensor> tensors_;
    size_t total_elems_ = 0, decayed_elems_ = 0;
};

}  // namespace slab::train
