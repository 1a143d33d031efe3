// Ranks without a micro-batch in a round give nothing and are left out of the sums: adding zero would change -0.
#include "train/model/rank_sums.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/ordered_sum.h"

namespace slab::train {

RankSums::RankSums(Model& model, Comm& comm)
    : model_(model),
      comm_(comm),
      buffers_(model.rank_sums()),
      exchange_every_(static_cast<uint64_t>(model.layout().settings.exchange_every)),
      elems_(model.layout().trained.total_elems()) {
    if (comm.size() != model.layout().settings.ranks || buffers_.loss_sum == nullptr)
        throw std::logic_error("a model whose layout is not for these ranks");
}

size_t RankSums::shard_begin(int rank) const {
    return std::min(elems_, static_cast<size_t>(rank) * model_.layout().shard_elems);
}

size_t RankSums::shard_elems(int rank) const {
    return shard_begin(rank + 1) - shard_begin(rank);
}

void RankSums::begin_step() {
    ++step_;
    rounds_ = 0;
}

void RankSums::begin_round() {
    model_.trained().zero_grads(model_.compute());
}

void RankSums::keep_loss(uint64_t place) {
    copy_async(buffers_.own_losses + place, model_.train_loss_sum(), sizeof(double), CopyKind::device_to_device,
               model_.compute());
}

void RankSums::end_round(uint64_t round_micro_batches) {
    Stream& stream = model_.compute();
    const size_t ranks = static_cast<size_t>(comm_.size()), stride = model_.layout().shard_elems;
    const auto taken_by = [&](size_t rank) {  // micro-batches of this round
        const uint64_t before = std::min(round_micro_batches, rank * exchange_every_);
        return std::min(exchange_every_, round_micro_batches - before);
    };
    const size_t me = static_cast<size_t>(comm_.rank());
    const bool gives = taken_by(me) != 0;
    std::vector<SentPiece> given(ranks), losses(ranks);
    std::vector<ReceivedPiece> got(ranks), got_losses(ranks);
    int givers = 0;
    for (size_t r = 0; r < ranks; ++r) {
        const int rank = static_cast<int>(r);
        if (gives) {
            given[r] = {model_.trained().grads() + shard_begin(rank), shard_elems(rank) * sizeof(float)};
            losses[r] = {buffers_.own_losses, taken_by(me) * sizeof(double)};
        }
        if (taken_by(r) == 0) continue;
        got[r] = {model_.peer_gradients() + r * stride, shard_elems(comm_.rank()) * sizeof(float)};
        got_losses[r] = {buffers_.all_losses + r * exchange_every_, taken_by(r) * sizeof(double)};
        ++givers;
    }
    comm_.exchange(losses, got_losses, stream, {"losses", step_});
    comm_.exchange(given, got, stream, {"gradients", step_});
    const bool accumulate = rounds_++ > 0;
    add_in_order(AddInOrder<double>{.sum = buffers_.loss_sum,
                                    .terms = buffers_.all_losses,
                                    .stride = 1,
                                    .count = static_cast<int>(round_micro_batches),
                                    .n = 1,
                                    .accumulate = accumulate},
                 stream);
    add_in_order(AddInOrder<float>{.sum = buffers_.sum,
                                   .terms = model_.peer_gradients(),
                                   .stride = stride,
                                   .count = givers,
                                   .n = shard_elems(comm_.rank()),
                                   .accumulate = accumulate},
                 stream);
}

void RankSums::end_step() {
    std::vector<SentPiece> given;
    std::vector<ReceivedPiece> got;
    for (int rank = 0; rank < comm_.size(); ++rank) {
        given.push_back({buffers_.sum, shard_elems(comm_.rank()) * sizeof(float)});
        got.push_back({model_.trained().grads() + shard_begin(rank), shard_elems(rank) * sizeof(float)});
    }
    comm_.exchange(given, got, model_.compute(), {"totals", step_});
}

void RankSums::digest_weights() {
    digest_numbers(buffers_.digest, model_.trained().masters(), elems_, model_.compute());
}

}  // namespace slab::train
