// The order of a run's parts. Only RunFiles writes to the disk, and not before everything is loaded.
#include "train/run/run.h"

#include <chrono>
#include <memory>
#include <ostream>
#include <utility>
#include <vector>

#include "data/base/clock.h"
#include "data/base/stop_signals.h"
#include "train/model/link_rate.h"
#include "train/run/rank_team.h"
#include "train/run/run_files.h"
#include "train/run/run_plan.h"
#include "train/run/run_steps.h"
#include "train/run/session.h"
#include "train/run/slab_choice.h"
#include "train/spec/text.h"

namespace slab::train {

namespace {

using Clock = std::chrono::steady_clock;

// Opens sessions by `open` and prints how far loading is, then what was loaded.
template <class Open>
auto load(RunPlan& plan, data::StopToken stop, std::ostream& out, const Open& open) {
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
    auto opened = open(options);
    if (plan.weights->inexact_elems() != 0)
        out << "note: " << count_text(plan.weights->inexact_elems()) << " weights are not exact in " << kPrecision
            << " and were rounded\n";
    out << "loaded in " << format_text("%.1f", data::seconds_since(start)) << " s; " << std::flush;
    return opened;
}

// What lies where, and the link's rate.
void report(const RunPlan& plan, Session& session, bool first, std::ostream& out) {
    if (first) {
        out << session.model->offload().report() << "\n" << std::flush;
        const std::string slabs = slabs_line(plan.layout, session.model->encode_errors());
        if (!slabs.empty()) out << slabs << "\n";
    }
    if (plan.layout.ring.streamed().empty()) return;
    if (first) out << "host memory: " << session.model->slabs().report() << "\n";
    session.link_gbps = measure_link_gbps(*session.model);
}

// Returns the exit code.
int take_steps(const RunPlan& plan, Session& session, RunFiles& files, data::StopToken stop, std::ostream& out) {
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

// On several ranks: the first one has the files and the screen.
int run_team(RunPlan& plan, RunFiles& files, data::StopToken stop, std::ostream& out) {
    const auto team = load(plan, stop, out, [&](const Model::Options& options) {
        return std::make_unique<RankTeam>(std::move(plan.devices), plan.layout, *plan.weights, options,
                                          plan.flags.adapter_in,
                                          TeamSettings{.gpus = plan.gpus,
                                                       .timeout = std::chrono::seconds(plan.flags.comm_timeout),
                                                       .transport = plan.flags.transport,
                                                       .give_up = {}});
    });
    for (int rank = 0; rank < team->size(); ++rank) report(plan, team->session(rank), rank == 0, out);
    files.restore(team->session(0));
    team->share_trained();
    std::ostream nowhere(nullptr);
    std::vector<std::unique_ptr<RunFiles>> of_others;  // made before the leader's begin to change
    for (int rank = 1; rank < team->size(); ++rank)
        of_others.push_back(std::make_unique<RunFiles>(plan, files, team->comm(rank), nowhere));
    int code = 0;
    team->run([&](int rank, Session& session) {
        if (rank == 0) {
            code = take_steps(plan, session, files, stop, out);
        } else {
            std::ostream silent(nullptr);
            take_steps(plan, session, *of_others[static_cast<size_t>(rank - 1)], stop, silent);
        }
    });
    return code;
}

int run(const TrainOptions& flags, data::StopToken stop, std::ostream& out) {
    RunPlan plan(flags, stop, out);
    if (flags.plan) return plan.fits() ? 0 : 1;

    plan.open_inputs(stop, out);
    RunFiles files(plan, out);
    if (files.already_finished()) return 0;
    if (plan.in_team()) return run_team(plan, files, stop, out);
    Session session = load(plan, stop, out, [&](const Model::Options& options) {
        return open_session(std::move(plan.devices.front()), plan.layout, *plan.weights, options,
                            plan.flags.adapter_in);
    });
    report(plan, session, true, out);
    files.restore(session);
    return take_steps(plan, session, files, stop, out);
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
