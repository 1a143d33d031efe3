// Rows of a token file, in an order that is a function of (seed, epoch) alone.
//
// A row is T + 1 consecutive tokens, which give T targets; neighbouring rows share one token, never a target. The
// loader's only state is the global sample index, which counts on across epochs:
//
//     sample s is row permutation(seed, s / rows)[s % rows]
//
// So a resumed run, and any split into micro-batches, sees the same data. Documents (bit 1 of the mask) reach
// attention, positions and loss: the first token of a document is no target of the document before.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "data/token_file.h"
#include "train/model/model.h"
#include "train/spec/micro_batch.h"

namespace slab::train {

class DataLoader {
  public:
    // shuffle false: rows in file order (evaluation). first_row, end_row: only these rows of the file, a data set of
    // its own. Throws data::UserError if the file holds no whole row, or a token outside the vocabulary of V.
    DataLoader(data::TokenFile file, int T, int V, uint64_t seed, bool shuffle, uint64_t first_row = 0,
               uint64_t end_row = UINT64_MAX);

    uint64_t rows() const { return rows_; }  // per epoch
    // Tokens at the file's end that make no whole row.
    size_t unused_tokens() const { return (file_.size() - 1) % static_cast<size_t>(T_); }
    const data::TokenFile& file() const { return file_; }

    // batch() and target_count() may be called by several threads.
    // B rows, the samples first_sample .. first_sample + B - 1. *filling, where asked for: how many of their tokens
    // only fill rows up after the last record. Throws SideFileError if the file can no longer be read.
    MicroBatch batch(uint64_t first_sample, int B, size_t* filling = nullptr);
    // Targets of that batch, from the mask alone. Throws as batch() does.
    size_t target_count(uint64_t first_sample, int B);

  private:
    uint64_t row_of(uint64_t sample);
    size_t append_row(MicroBatch& batch, uint64_t row);  // returns the row's filling

    std::mutex mutex_;  // what follows
    data::TokenFile file_;
    int T_;
    uint64_t seed_, first_row_, rows_ = 0;
    bool shuffle_;
    // Of even and of odd epochs: where an epoch ends within a step, ranks are on either side.
    struct Order {
        uint64_t epoch = UINT64_MAX;
        std::vector<uint32_t> rows;  // [rows]
    };
    Order orders_[2];
    std::vector<uint32_t> row_tokens_;  // [T + 1] of the row being looked at
    std::vector<uint8_t> row_bits_;     // [T + 1]
};

}  // namespace slab::train
