// Schedules are values: a copy goes on exactly as the original did, so nothing else has to be recorded than the visits.
#include "offload/step_check.h"

#include <stdexcept>
#include <string>

namespace slab::offload {

void StepCheck::start(const StreamSchedule& schedule, const std::vector<int>& order, const MovedSlabs& moved) {
    active_ = true;
    schedule_ = schedule;
    order_ = order;
    made_.clear();
    before_ = moved;
}

void StepCheck::finish(const MovedSlabs& moved, const std::vector<size_t>& copied_bytes) {
    if (!active_) return;
    active_ = false;
    const Simulation expected = simulate(schedule_, order_, made_);
    const size_t expected_bytes = expected.load_bytes(copied_bytes);
    const uint64_t slabs = moved.slabs - before_.slabs, bytes = moved.bytes - before_.bytes;
    if (slabs == expected.loads() && bytes == expected_bytes) return;
    throw std::logic_error("offload: " + std::to_string(slabs) + " slabs (" + std::to_string(bytes) +
                           " bytes) were moved since pre_step, the schedule says " + std::to_string(expected.loads()) +
                           " (" + std::to_string(expected_bytes) + " bytes)");
}

}  // namespace slab::offload
