// The steps of a run on one session, and what comes between them: evaluations, samples, saves, the trace.
//
// The host runs ahead: a step is enqueued before the one before it is collected. Evaluations, saves and samples collect
// all steps first.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <ostream>
#include <string>

#include "data/base/stop_token.h"
#include "train/run/run_files.h"
#include "train/run/run_plan.h"
#include "train/run/run_summary.h"
#include "train/run/session.h"

namespace slab::train {

class RunSteps {
  public:
    RunSteps(const RunPlan& plan, Session& session, RunFiles& files, data::StopToken stop, std::ostream& out);

    // Evaluation and sample before the first step.
    void begin();
    // All steps that are left, or those until a stop, and the last evaluation. If log, trace or data fails, saves the
    // steps done and throws data::IoError.
    void take();
    bool complete() const { return files_.state.step == plan_.steps; }
    // After a stop: a checkpoint, and how to go on.
    void save_interrupted();
    // After the last step: checkpoint, sample, result, summary.
    void finish();

  private:
    // A step enqueued and not yet collected.
    struct InFlight {
        int64_t step;
        double learning_rate;
        size_t filling;  // tokens that only fill rows up
        uint64_t slabs_in, bytes_in, slabs_out, bytes_out;
    };

    // What all ranks must know of one: to be shown, and added up.
    struct Shared {
        double wait_ms, link_gbps;
        uint64_t peak_bytes, filling, slabs_in, bytes_in, slabs_out, bytes_out;
    };

    void take_steps();
    // Whether any rank is asked to stop. A file that failed on the leader meanwhile ends the run on all ranks here.
    bool stop_requested();
    void keep_side_failure(const std::function<void()>& write);
    Shared shared_by_all(const Shared& mine, int64_t step);
    bool enqueue();
    void collect_one();
    void collect_all() {
        while (!in_flight_.empty()) collect_one();
    }
    void watch_gradient(const StepReport& report);
    void evaluate();
    void sample(const std::string& when);
    bool save();
    void start_trace();
    void end_trace();
    void restart_clock();

    const RunPlan& plan_;
    Session& session_;
    RunFiles& files_;
    const data::StopToken stop_;
    std::ostream& out_;
    std::deque<InFlight> in_flight_;
    StepTotals totals_;
    double wait_ms_reported_ = 0;
    std::string side_failure_;  // on several ranks: of a log or trace, until all ranks know
    int zero_gradients_ = 0;    // steps in a row, up to the last one collected, whose gradient was exactly 0
    float last_loss_ = 0;       // of that step
    std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
    enum class Trace { before, during, after } trace_ = Trace::before;
};

}  // namespace slab::train
