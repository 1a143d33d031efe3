// The order of an epoch is drawn when its first row is asked for, and kept until the next but one begins.
#include "train/run/data_loader.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "data/base/error.h"
#include "kernels/cross_entropy.h"
#include "kernels/philox.h"
#include "train/run/side_file.h"
#include "train/spec/micro_batch.h"

namespace slab::train {

namespace {

// Whether a token with these bits of the mask is a target. A document's first token is none: nothing stands before it.
bool is_target(uint8_t bits) {
    return (bits & (data::kMaskTarget | data::kMaskDocumentStart)) == data::kMaskTarget;
}

// Calls f. A data file that is read before a step can fail after hours: such a failure must not cost the steps done.
template <class F>
auto reading(F&& f) {
    try {
        return f();
    } catch (const data::IoError& error) {
        throw SideFileError(error.what());
    }
}

}  // namespace

DataLoader::DataLoader(data::TokenFile file, int T, int V, uint64_t seed, bool shuffle, uint64_t first_row,
                       uint64_t end_row)
    : file_(std::move(file)), T_(T), seed_(seed), first_row_(first_row), shuffle_(shuffle) {
    if (file_.row_tokens() != 0 && file_.row_tokens() != static_cast<size_t>(T))
        throw data::UserError({.subject = file_.path().string(),
                               .given = "was made for --sequence-len " + std::to_string(file_.row_tokens()) +
                                        " (each row begins with a record), and this run has --sequence-len " +
                                        std::to_string(T),
                               .hint = "give the run the file's, or make the file anew with build/tokenize"});
    if (file_.size() <= static_cast<size_t>(T))
        throw data::UserError({.subject = file_.path().string(),
                               .given = "holds " + std::to_string(file_.size()) + " tokens; a row of --sequence-len " +
                                        std::to_string(T) + " needs " + std::to_string(T + 1),
                               .hint = "a smaller --sequence-len, or more text (for validation a larger --val-fraction "
                                       "of build/tokenize)"});
    if (file_.max_token() >= static_cast<uint32_t>(V))
        throw data::UserError({.subject = file_.path().string(),
                               .given = "token " + std::to_string(file_.max_token_index()) + " is " +
                                        std::to_string(file_.max_token()) + "; the model's vocabulary ends at " +
                                        std::to_string(V - 1),
                               .hint = "was the file made with another tokenizer?"});
    const uint64_t in_file = (file_.size() - 1) / static_cast<uint64_t>(T);
    if (first_row >= std::min(end_row, in_file)) throw std::logic_error("a data set of no rows");
    rows_ = std::min(end_row, in_file) - first_row;
}

uint64_t DataLoader::row_of(uint64_t sample) {
    const uint64_t epoch = sample / rows_, place = sample % rows_;
    if (!shuffle_) return first_row_ + place;
    Order& order = orders_[epoch % 2];
    if (epoch != order.epoch) {
        // Fisher-Yates with numbers that are a function of (seed, epoch, place).
        order.rows.resize(rows_);
        std::iota(order.rows.begin(), order.rows.end(), 0u);
        for (uint64_t i = rows_ - 1; i > 0; --i) {
            const PhiloxOut out = philox(seed_, static_cast<uint32_t>(i), static_cast<uint32_t>(epoch),
                                         static_cast<uint32_t>(epoch >> 32), philox_use::row_order);
            const uint64_t j = ((uint64_t{out.v[0]} << 32) | out.v[1]) % (i + 1);
            std::swap(order.rows[i], order.rows[j]);
        }
        order.epoch = epoch;
    }
    return first_row_ + order.rows[place];
}

size_t DataLoader::append_row(MicroBatch& batch, uint64_t row) {
    const size_t T = static_cast<size_t>(T_);
    row_tokens_.resize(T + 1);
    row_bits_.resize(T + 1);
    file_.read(static_cast<size_t>(row) * T, T + 1, row_tokens_.data(), row_bits_.data());
    int32_t doc_start = 0;
    for (int t = 0; t < T_; ++t) {
        if (t > 0 && (row_bits_[t] & data::kMaskDocumentStart)) doc_start = t;
        batch.tokens.push_back(static_cast<int32_t>(row_tokens_[t]));
        batch.targets.push_back(is_target(row_bits_[t + 1]) ? static_cast<int32_t>(row_tokens_[t + 1]) : kIgnoreTarget);
        if (file_.has_mask()) batch.doc_start.push_back(doc_start);
    }
    if (file_.row_tokens() == 0) return 0;
    return T - data::padding_begin({row_tokens_.data(), T}, {row_bits_.data(), T});
}

MicroBatch DataLoader::batch(uint64_t first_sample, int B, size_t* filling) {
    MicroBatch batch;
    batch.B = B;
    batch.T = T_;
    batch.first_sample = first_sample;
    size_t filled = 0;
    const std::lock_guard lock(mutex_);
    reading([&] {
        for (int b = 0; b < B; ++b) filled += append_row(batch, row_of(first_sample + static_cast<uint64_t>(b)));
    });
    if (filling) *filling = filled;
    return batch;
}

size_t DataLoader::target_count(uint64_t first_sample, int B) {
    const size_t T = static_cast<size_t>(T_);
    const std::lock_guard lock(mutex_);
    row_bits_.resize(T + 1);
    size_t targets = 0;
    reading([&] {
        for (int b = 0; b < B; ++b) {
            file_.read_mask(row_of(first_sample + static_cast<uint64_t>(b)) * T, T + 1, row_bits_.data());
            targets += static_cast<size_t>(std::count_if(row_bits_.begin() + 1, row_bits_.end(), is_target));
        }
    });
    return targets;
}

}  // namespace slab::train
