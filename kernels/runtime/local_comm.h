// Ranks of one process exchange by copies on their own streams, ordered by events. No other library, any backend.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/runtime/comm.h"
#include "kernels/runtime/rank_group.h"

namespace slab {

class LocalComm final : public Comm {
  public:
    // All ranks of the group are in this process. device: this rank's.
    LocalComm(RankGroup& group, int rank, Device& device);

    // Two meetings of the host. Each rank copies what is for it from its peers' devices.
    void exchange(std::span<const SentPiece> mine, std::span<const ReceivedPiece> theirs, Stream& stream,
                  CallTag tag) override;
    std::string name() const override { return "local"; }

  private:
    Event given_;  // what this rank gives is written
    Event taken_;  // this rank has copied all that is for it
};

}  // namespace slab
