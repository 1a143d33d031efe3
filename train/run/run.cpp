// The order of a run's parts. Only RunFiles writes to the disk, and not before everything is loaded.
#include "train/run/run.h"

#include <chrono>
#include <ostream>

#include "data/base/clock.h"
#include "data/base/stop_signals.h"
#include "train/model/link_rate.h"
#include "train/run/run_files.h"
#include "train/run/run_plan.h"
#include "train/run/run_steps.h"
#include "train/run/session.h"
#include "train/spec/text.h"

namespace slab::train {

namespace {

using Clock = std::chrono::steady_clock;

// Opens the session and prints how far loading is, then what was loaded.
Session load_session(RunPlan& plan, data::StopToken stop, std::ostream& out) {
    const Clock::time_point start = Clock::now();
    Clock::time_point last_line = start;
    Model::Options options;
    options.seed = plan.flags.seed;
    options.stop = stop;
    options.progress = [&](size_t done, size_t total) {
        if (data::seconds_since(last_line) < 2 && done != total) return;
        if (done == total && data::seconds_since(start) < 2) return;
        last_line = Clock::now();
        out << "loading " << memory_text(done) << " of " << memory_text(total) << "\n" << std::flush;
    };
    Session session = open_session(std::move(plan.device), plan.layout, *plan.weights, options, plan.flags.adapter_in);
    if (plan.weights->inexact_elems() != 0)
        out << "note: " << count_text(plan.weights->inexact_elems()) << " weights are not exact in " << kPrecision
            << " and were rounded\n";
    out << "loaded in " << format_text("%.1f", data::seconds_since(start)) << " s; "
        << session.model->offload().report() << "\n"
        << std::flush;
    if (!plan.layout.ring.streamed().empty()) {
        out << "host memory: " << session.model->slabs().report() << "\n";
        session.link_gbps = measure_link_gbps(*session.model);
    }
    return session;
}

int run(const TrainOptions& flags, data::StopToken stop, std::ostream& out) {
    RunPlan plan(flags, stop, out);
    if (flags.plan) return plan.fits() ? 0 : 1;

    plan.open_inputs(stop, out);
    RunFiles files(plan, out);
    if (files.already_finished()) return 0;
    Session session = load_session(plan, stop, out);
    files.restore(session);

    RunSteps steps(plan, session, files, stop, out);
    steps.begin();
    steps.take();
    if (!steps.complete()) {
        steps.save_interrupted();
        return data::kExitInterrupted;
    }
    steps.finish();
    return 0;
}

}  // namespace

int train(const TrainOptions& options, data::StopToken stop, std::ostream& out) {
    try {
        return run(options, stop, out);
    } catch (const data::Interrupted&) {  // thrown while loading alone; steps ask without throwing
        out << "interrupted while loading; nothing was written\n";
        return data::kExitInterrupted;
    }
}

}  // namespace slab::train
