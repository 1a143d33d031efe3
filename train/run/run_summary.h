// The end of a run in numbers: what was copied, memory against the plan, evaluations; on the screen and in the log.
#pragma once

#include <cstdint>
#include <iosfwd>

#include "train/run/run_files.h"
#include "train/run/run_log.h"
#include "train/run/run_plan.h"
#include "train/run/session.h"

namespace slab::train {

// Sums over the steps of this process.
struct StepTotals {
    double step_seconds = 0, wait_ms = 0;
    uint64_t micro_batches = 0;  // trained on
    uint64_t slabs_in = 0, bytes_in = 0, slabs_out = 0, bytes_out = 0;

    void add(const StepReport& step, uint64_t step_micro_batches);
};

// Prints the summary and writes the log's line of the end. seconds: of all steps.
void write_summary(const RunPlan& plan, Session& session, RunFiles& files, const StepTotals& totals, double seconds,
                   std::ostream& out);

}  // namespace slab::train
