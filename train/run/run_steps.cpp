// A step's numbers are known one step later, so its line of screen and log comes from collect_one().
#include "train/run/run_steps.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <vector>

#include "data/base/clock.h"
#include "data/base/error.h"
#include "train/run/learning_rate.h"
#include "train/run/sample.h"
#include "train/run/side_file.h"
#include "train/spec/micro_batch.h"
#include "train/spec/text.h"

namespace slab::train {

using Clock = std::chrono::steady_clock;

namespace {

constexpr int kBadStepsAllowed = 3;
constexpr int kZeroGradientsAllowed = 3;
// Below this a gradient of 0 means that the rows are learned: each target's probability is 1 in float32.
constexpr float kLearnedLoss = 1e-5f;

// While it lives, traced boxes belong to this step (1, 2, ...); after it to none, as those of an evaluation.
class StepInTrace {
  public:
    StepInTrace(offload::LayerOffloadManager& manager, int64_t step) : manager_(manager) {
        manager_.set_trace_step(step);
    }
    ~StepInTrace() { manager_.set_trace_step(0); }
    StepInTrace(const StepInTrace&) = delete;
    StepInTrace& operator=(const StepInTrace&) = delete;

  private:
    offload::LayerOffloadManager& manager_;
};

StepSettings settings_of_step(const TrainOptions& flags, int64_t step, int64_t steps) {
    return {.adamw = {.learning_rate = static_cast<float>(learning_rate_at(flags, step, steps)),
                      .beta1 = static_cast<float>(flags.adam_beta1),
                      .beta2 = static_cast<float>(flags.adam_beta2),
                      .epsilon = static_cast<float>(flags.adam_epsilon),
                      .weight_decay = static_cast<float>(flags.weight_decay)},
            .max_grad_norm = static_cast<float>(flags.max_grad_norm)};
}

}  // namespace

RunSteps::RunSteps(const RunPlan& plan, Session& session, RunFiles& files, data::StopToken stop, std::ostream& out)
    : plan_(plan), session_(session), files_(files), stop_(stop), out_(out) {}

void RunSteps::begin() {
    DataLoader& rows = *plan_.data_sets.train;
    if (rows.unused_tokens() != 0)
        out_ << "note: the last " << rows.unused_tokens() << " tokens of " << plan_.flags.train_data
             << " make no whole row and are not used\n";
    evaluate();
    if (files_.is_saved()) save();  // an end between evaluation, save and pruning left these undone
    const int64_t first_step = files_.first_step();
    sample(first_step == 0 ? "before" : "at step " + std::to_string(first_step));
    started_ = Clock::now();
}

void RunSteps::take() {
    try {
        take_steps();
        end_trace();
        if (complete() && files_.first_step() < plan_.steps) evaluate();
        if (session_.loop->comm() != nullptr) stop_requested();  // all learn of a file that failed
    } catch (const std::runtime_error& error) {
        const bool of_files = dynamic_cast<const SideFileError*>(&error) || dynamic_cast<const DataFailed*>(&error);
        if (!of_files) throw;
        collect_all();
        if (!files_.is_leader()) files_.wait_for_leaders_error();
        const std::string end =
            sentence(error.what()) + " The run ends after step " + std::to_string(files_.state.step);
        bool saved = false;
        try {
            saved = save();
        } catch (const std::runtime_error& of_saving) {  // of any kind: both are told
            throw data::IoError(end + "; " + of_saving.what());
        }
        throw data::IoError(end + (saved ? ", of which a checkpoint is saved" : "") + ". " + files_.way_on());
    }
}

void RunSteps::take_steps() {
    while (!complete() && !stop_requested()) {
        start_trace();
        if (!enqueue()) {
            out_ << "note: step " << files_.state.step + 1
                 << " was under way and is dropped; no weight was changed by it\n";
            break;
        }
        if (in_flight_.size() > 1) collect_one();
        const int64_t step = files_.state.step;
        const auto due = [&](int64_t every) { return every > 0 && step % every == 0; };
        if (step == plan_.trace_steps.second) end_trace();
        if (complete()) break;  // the last evaluation and checkpoint come after the loop, due or not
        if (due(plan_.flags.eval_steps)) evaluate();
        if (due(plan_.flags.save_steps)) save();
    }
    collect_all();
}

bool RunSteps::stop_requested() {
    if (session_.loop->comm() == nullptr) return stop_.requested();
    return session_.loop->any_stops(stop_, side_failure_, {"after step", files_.state.step});
}

// On several ranks a failure of the leader's files waits for the next meeting, so that all end at the same place.
void RunSteps::keep_side_failure(const std::function<void()>& write) {
    try {
        write();
    } catch (const SideFileError& error) {
        if (session_.loop->comm() == nullptr) throw;
        if (side_failure_.empty()) side_failure_ = error.what();
    }
}

// The worst rank's memory and waiting; traffic and links together.
RunSteps::Shared RunSteps::shared_by_all(const Shared& mine, int64_t step) {
    if (session_.loop->comm() == nullptr) return mine;
    Shared all{};
    for (const Shared& its : session_.loop->comm()->meet_values(mine, {"numbers of step", step})) {
        all.wait_ms = std::max(all.wait_ms, its.wait_ms);
        all.peak_bytes = std::max(all.peak_bytes, its.peak_bytes);
        all.link_gbps += its.link_gbps;
        all.filling += its.filling;
        all.slabs_in += its.slabs_in;
        all.bytes_in += its.bytes_in;
        all.slabs_out += its.slabs_out;
        all.bytes_out += its.bytes_out;
    }
    return all;
}

// Returns false if a stop came in the middle of the step, which is dropped then.
bool RunSteps::enqueue() {
    TrainerState& state = files_.state;
    const uint64_t first_sample = state.next_sample, B = static_cast<uint64_t>(plan_.flags.micro_batch_size);
    const uint64_t micro_batches = static_cast<uint64_t>(plan_.flags.gradient_accumulation_steps);
    DataLoader& rows = *plan_.data_sets.train;
    size_t filling = 0;
    const StepData data{
        .micro_batches = micro_batches,
        .tokens = micro_batches * B * static_cast<size_t>(plan_.flags.sequence_len),
        .target_count = [&](uint64_t i) { return rows.target_count(first_sample + i * B, static_cast<int>(B)); },
        .batch =
            [&](uint64_t i) {
                size_t of_batch = 0;
                MicroBatch batch = rows.batch(first_sample + i * B, static_cast<int>(B), &of_batch);
                filling += of_batch;
                return batch;
            }};
    const StepSettings settings = settings_of_step(plan_.flags, state.step, plan_.steps);
    offload::LayerOffloadManager& manager = session_.model->offload();
    const offload::OffloadStats before = manager.stats();
    const uint64_t traffic_before = session_.device->traffic().device_to_host_bytes;
    const StepInTrace in_trace(manager, state.step + 1);
    const std::optional<size_t> read_back_bytes = session_.loop->enqueue(data, settings, stop_);
    if (!read_back_bytes) return false;
    const offload::OffloadStats after = manager.stats();
    const uint64_t sent_back_bytes = session_.device->traffic().device_to_host_bytes - traffic_before;
    in_flight_.push_back({.step = state.step,
                          .learning_rate = settings.adamw.learning_rate,
                          .filling = filling,
                          .slabs_in = after.slabs_in - before.slabs_in,
                          .bytes_in = after.bytes_in - before.bytes_in,
                          .slabs_out = after.slabs_out - before.slabs_out,
                          .bytes_out = sent_back_bytes - *read_back_bytes});
    state.next_sample = first_sample + state.samples_per_step;
    state.step += 1;
    return true;
}

void RunSteps::collect_one() {
    const StepResult result = session_.loop->collect();
    const InFlight flight = in_flight_.front();
    in_flight_.pop_front();
    const TrainOptions& flags = plan_.flags;
    StepReport r;
    r.step = flight.step + 1;
    r.total_steps = plan_.steps;
    r.epoch = static_cast<double>(r.step) * flags.micro_batch_size * flags.gradient_accumulation_steps /
              static_cast<double>(plan_.data_sets.train->rows());
    r.loss = result.loss;
    r.grad_norm = result.grad_norm;
    r.skipped = result.skipped;
    r.learning_rate = flight.learning_rate;
    r.targets = result.targets;
    const double wait_ms = session_.model->offload().stats().wait_ms;
    const Shared all = shared_by_all({.wait_ms = std::max(0.0, wait_ms - wait_ms_reported_),
                                      .link_gbps = session_.link_gbps,
                                      .peak_bytes = session_.device->memory().peak_bytes(),
                                      .filling = flight.filling,
                                      .slabs_in = flight.slabs_in,
                                      .bytes_in = flight.bytes_in,
                                      .slabs_out = flight.slabs_out,
                                      .bytes_out = flight.bytes_out},
                                     r.step);
    wait_ms_reported_ = wait_ms;
    r.tokens = result.tokens - all.filling;
    r.seconds = result.seconds;
    const double per_step = data::seconds_since(started_) / static_cast<double>(r.step - files_.first_step());
    r.left_seconds = per_step * static_cast<double>(plan_.steps - r.step);
    r.device_peak_bytes = all.peak_bytes;
    r.device_budget_bytes = session_.device->memory().budget_bytes();
    r.streaming = !plan_.layout.ring.streamed().empty();
    r.slabs_in = all.slabs_in;
    r.bytes_in = all.bytes_in;
    r.slabs_out = all.slabs_out;
    r.bytes_out = all.bytes_out;
    r.link_gbps = all.link_gbps;
    r.wait_ms = all.wait_ms;
    totals_.add(r, r.targets != 0 ? static_cast<uint64_t>(flags.gradient_accumulation_steps) : 0);
    if (r.step % flags.logging_steps == 0 || r.step == plan_.steps || r.skipped || r.targets == 0)
        out_ << step_line(r) << "\n" << std::flush;
    keep_side_failure([&] { files_.log().step(r); });
    TrainerState& state = files_.state;
    if (r.targets != 0) state.bad_steps_in_row = result.skipped ? state.bad_steps_in_row + 1 : 0;
    if (state.bad_steps_in_row < kBadStepsAllowed) return watch_gradient(r);
    collect_all();
    files_.stop_at_bad_steps(session_, r.step, kBadStepsAllowed);
}

// A gradient of exactly 0 is no small one: the model's output no longer depends on what is trained, as after steps so
// large that activations overflow. The run then ends, unless nothing is left to learn.
void RunSteps::watch_gradient(const StepReport& r) {
    if (r.targets == 0) return;
    zero_gradients_ = !r.skipped && r.grad_norm == 0 ? zero_gradients_ + 1 : 0;
    last_loss_ = static_cast<float>(r.loss);
    if (zero_gradients_ != kZeroGradientsAllowed) return;
    if (last_loss_ <= kLearnedLoss) {
        out_ << "note: the gradient was exactly 0 in " << zero_gradients_ << " steps in a row, up to step " << r.step
             << ", as is the loss: nothing is left to learn in these rows\n";
        return;
    }
    collect_all();
    files_.stop_at_zero_gradients(r.step, kZeroGradientsAllowed, last_loss_);
}

// Time and waits up to here belong to an evaluation, a sample or a save, not to the next step.
void RunSteps::restart_clock() {
    session_.loop->restart_clock();
    wait_ms_reported_ = session_.model->offload().stats().wait_ms;
}

void RunSteps::evaluate() {
    if (!plan_.data_sets.val) return;
    collect_all();
    const int64_t step = files_.state.step;
    const Clock::time_point start = Clock::now();
    DataLoader& val = *plan_.data_sets.val;
    const uint64_t rows = val.rows(), B = static_cast<uint64_t>(plan_.flags.micro_batch_size);
    const auto batch = [&](uint64_t i) { return val.batch(i * B, static_cast<int>(std::min(B, rows - i * B))); };
    const std::optional<double> loss = session_.loop->evaluate((rows + B - 1) / B, batch, stop_);
    restart_clock();
    if (!loss) {
        out_ << "note: the evaluation at step " << step << " was interrupted\n" << std::flush;
        return;
    }
    out_ << "eval " << step << "/" << plan_.steps << "  "
         << format_text("loss %.4f  perplexity %.2f", *loss, std::exp(*loss)) << "  (" << count_text(rows) << " rows)\n"
         << std::flush;
    keep_side_failure([&] {
        files_.log().write({{"step", step},
                            {"eval_loss", json_number(*loss)},
                            {"eval_perplexity", json_number(std::exp(*loss))},
                            {"eval_rows", rows},
                            {"eval_runtime", data::seconds_since(start)}});
    });
    files_.note_evaluation({step, *loss});
}

void RunSteps::sample(const std::string& when) {
    if (plan_.flags.sample.empty()) return;
    Comm* const comm = session_.loop->comm();
    const auto alive = [&] {
        if (comm != nullptr) comm->alive({"sample at step", files_.state.step});
    };
    const nlohmann::json line = write_sample(plan_.flags, plan_.sample, *session_.model, when, stop_, out_, alive);
    keep_side_failure([&] { files_.log().write(line); });
    restart_clock();
}

bool RunSteps::save() {
    collect_all();
    const bool saved = files_.save(session_);
    restart_clock();
    return saved;
}

// Before a step: starts the trace when the window begins, or when a resumed run begins inside it.
void RunSteps::start_trace() {
    const auto [first, last] = plan_.trace_steps;
    const int64_t next = files_.state.step + 1;
    if (plan_.flags.trace.empty() || trace_ != Trace::before || next < first || next > last) return;
    collect_all();  // starting waits for the steps under way, which are no part of the trace
    session_.model->offload().set_trace(true);
    trace_ = Trace::during;
    restart_clock();
}

// After the window's last step, or when the run ends inside it.
void RunSteps::end_trace() {
    if (trace_ != Trace::during) return;
    collect_all();
    keep_side_failure([&] { files_.write_trace_of(session_); });
    session_.model->offload().set_trace(false);
    trace_ = Trace::after;
    restart_clock();
}

void RunSteps::save_interrupted() {
    const bool saved = save();
    const int64_t step = files_.state.step;
    out_ << "interrupted after step " << step << (saved ? "; checkpoint saved" : "")
         << (last_checkpoint(plan_.output_dir()) ? ", go on with --resume-from-checkpoint last\n" : "\n");
    files_.log().write({{"event", "interrupted"}, {"step", step}});
}

void RunSteps::finish() {
    save();
    if (zero_gradients_ > 0 && last_loss_ > kLearnedLoss)
        out_ << "note: the gradient of the last " << (zero_gradients_ == 1 ? "step" : "steps")
             << " was exactly 0 at a loss of " << format_text("%.4g", last_loss_)
             << ": nothing was learned there. Try a lower --learning-rate\n";
    try {
        if (files_.first_step() < plan_.steps) sample("after");
        files_.write_result(session_);
        if (!side_failure_.empty()) throw SideFileError(side_failure_);
        if (!files_.is_leader()) return;
        write_summary(plan_, session_, files_, totals_, data::seconds_since(started_), out_);
    } catch (const SideFileError& error) {
        throw data::IoError(sentence(error.what()) + " " + files_.way_on());
    }
}

}  // namespace slab::train
