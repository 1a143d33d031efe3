// Compares the slabs and bytes moved in a step with what the schedule would move.
//
// The check runs the schedule again from its state at the step's beginning, over the visits that were made. It uses
// what the runtime copied, so a source that sends too little, or a copy that the schedule did not ask for, is found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "offload/stream_schedule.h"

namespace slab::offload {

// Slabs and bytes copied from host to device, counted up from some point on.
struct MovedSlabs {
    uint64_t slabs = 0, bytes = 0;
};

class StepCheck {
  public:
    // order: as announced. moved: the count so far.
    void start(const StreamSchedule& schedule, const std::vector<int>& order, const MovedSlabs& moved);
    void visited(int layer) {
        if (active_) made_.push_back(layer);
    }
    // The step can no longer be compared: a load failed, or streaming ended.
    void drop() { active_ = false; }
    // moved: the count now. copied_bytes [L]: of each layer's slab. Throws std::logic_error when they differ from the
    // schedule. Does nothing without a step under way.
    void finish(const MovedSlabs& moved, const std::vector<size_t>& copied_bytes);

  private:
    bool active_ = false;
    StreamSchedule schedule_;  // as it was at start()
    std::vector<int> order_, made_;
    MovedSlabs before_;
};

}  // namespace slab::offload
