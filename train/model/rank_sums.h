// Gradients and losses of all ranks, added in the order of their micro-batches, with the same bits on every rank.
//
// Each rank adds one shard of the gradients: it gets that shard from every rank that had a micro-batch in the round. At
// a step's end the sums of the shards are spread. The bits are those of one rank that takes all micro-batches itself,
// since every gradient is finished before it is added (kernels/ordered_sum.h).
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/runtime/comm.h"
#include "train/model/model.h"

namespace slab::train {

class RankSums {
  public:
    // model: with a layout for comm.size() ranks. Both must outlive this.
    RankSums(Model& model, Comm& comm);

    // A round: each rank takes exchange_every consecutive micro-batches, in the order of the ranks; the last may take
    // fewer, or none. For a step: begin_step; then for each round begin_round, after each micro-batch keep_loss, and
    // end_round; then end_step. All is enqueued on the model's compute stream; the host waits for the other ranks.
    void begin_step();
    void begin_round();
    void keep_loss(uint64_t place);                // of the rank's micro-batch number `place` of this round
    void end_round(uint64_t round_micro_batches);  // of all ranks
    void end_step();                               // the model's gradients are now the step's, on every rank
    void digest_weights();                         // after the update

    const double* loss_sum() const { return buffers_.loss_sum; }  // device [1]: of the step
    const uint64_t* digest() const { return buffers_.digest; }    // device [1]

  private:
    size_t shard_begin(int rank) const;
    size_t shard_elems(int rank) const;  // the last ones may be shorter, or empty

    Model& model_;
    Comm& comm_;
    const RankSumBuffers buffers_;
    const uint64_t exchange_every_;
    const size_t elems_;
    int64_t step_ = 0, rounds_ = 0;
};

}  // namespace slab::train
