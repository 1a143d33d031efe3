// The run: its steps, evaluations, saves and reports. See trainer.h and, for the start of it, run_start.cpp.
#include "train/run/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>

#include "data/gguf/gguf.h"
#include "train/files/adapter_files.h"
#include "train/files/model_directory.h"
#include "train/model/sampler.h"
#include "train/run/learning_rate.h"
#include "train/run/run.h"
#include "train/run/run_directory.h"
#include "train/run/side_file.h"
#include "train/run/trace_file.h"
#include "train/spec/micro_batch.h"
#include "train/spec/text.h"

namespace slab::train {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

namespace {

constexpr int kBadStepsAllowed = 3;

// Data that can no longer be read ends the run as a log that cannot be written does: with its steps saved.
MicroBatch batch_of(DataLoader& data, uint64_t first_sample, uint64_t rows, size_t* filling = nullptr) {
    try {
        return data.batch(first_sample, static_cast<int>(rows), filling);
    } catch (const std::runtime_error& error) {
        throw SideFileError(error.what());
    }
}

// The text with its full stop, if it has none.
std::string sentence(std::string text) {
    if (!text.ends_with('.') && !text.ends_with('?') && !text.ends_with('!')) text += '.';
    return text;
}

// While it lives, what is traced belongs to this step (1, 2, ...); then to none: an evaluation may come.
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

// What a model writes, and what a user types, need not be UTF-8; a log must be.
json as_utf8(const json& j) {
    return json::parse(j.dump(-1, ' ', false, json::error_handler_t::replace));
}

}  // namespace

// Time and waits up to here belong to an evaluation, a sample or a save, not to the next step.
void Run::leave_out_of_step() {
    loop_->restart_clock();
    wait_ms_reported_ = model_->offload().stats().wait_ms;
}

void Run::evaluate(int64_t step) {
    if (!data_.val) return;
    const Clock::time_point start = Clock::now();
    const uint64_t rows = data_.val->rows(), B = static_cast<uint64_t>(o_.micro_batch_size);
    const auto batch = [&](uint64_t i) { return batch_of(*data_.val, i * B, std::min(B, rows - i * B)); };
    const std::optional<double> loss = loop_->evaluate((rows + B - 1) / B, batch, stop_);
    leave_out_of_step();
    if (!loss) {
        out_ << "note: the evaluation at step " << step << " was interrupted\n" << std::flush;
        return;
    }
    out_ << "eval " << step << "/" << steps_ << "  "
         << format_text("loss %.4f  perplexity %.2f", *loss, std::exp(*loss)) << "  (" << count_text(rows) << " rows)\n"
         << std::flush;
    log_.write({{"step", step},
                {"eval_loss", json_number(*loss)},
                {"eval_perplexity", json_number(std::exp(*loss))},
                {"eval_rows", rows},
                {"eval_runtime", data::seconds_since(start)}});
    last_eval_ = {step, *loss};
    if (!state_.first_eval) state_.first_eval = last_eval_;
}

// Takes this step, saved now or about to be, for the best so far if it is; returns whether it is. Only steps count that
// are evaluated and saved without an interruption too: the best is a function of the flags.
bool Run::consider_best(int64_t step) {
    const auto due = [&](int64_t every) { return every > 0 && step % every == 0; };
    if (step != steps_ && !(step > 0 && due(o_.eval_steps) && due(o_.save_steps))) return false;
    if (step == first_step_ && !evaluations_adopted_) return false;  // nothing is known of better ones before
    if (!last_eval_ || last_eval_->step != step || !std::isfinite(last_eval_->loss)) return false;
    if (state_.best_eval && state_.best_eval->loss <= last_eval_->loss) return false;
    state_.best_eval = last_eval_;
    state_.best_checkpoint = checkpoint_path(output_dir_, step).string();
    return true;
}

// What is asked for, as the log has it; null without --sample.
json Run::sample_request() const {
    if (o_.sample.empty()) return nullptr;
    return as_utf8({{"prompt", o_.sample},
                    {"sample_tokens", o_.sample_tokens},
                    {"temperature", o_.sample_temperature},
                    {"top_k", o_.top_k},
                    {"top_p", o_.top_p},
                    {"chat", o_.sample_chat}});
}

void Run::sample(const std::string& when) {
    if (o_.sample.empty()) return;
    const Clock::time_point start = Clock::now();
    const SampleSettings settings{.tokens = o_.sample_tokens,
                                  .temperature = o_.sample_temperature,
                                  .top_k = o_.top_k,
                                  .top_p = o_.top_p,
                                  .seed = o_.seed,
                                  .stop_tokens = stop_tokens(*tokenizer_)};
    out_ << "sample " << when << ": " << printable_text(o_.sample) << "|" << std::flush;
    std::string text;
    TextStream stream(*tokenizer_);
    const auto show = [&](const std::string& piece) {
        text += piece;
        out_ << printable_text(piece) << std::flush;
    };
    int tokens = 0;
    const SampleEnd end = sample_tokens(*model_, prompt_, settings, stop_, [&](int32_t token) {
        ++tokens;
        show(stream.add(token));
    });
    show(stream.rest());
    out_ << "\n";
    if (end == SampleEnd::not_finite)
        out_ << "note: this sample ends after " << count_text(static_cast<uint64_t>(tokens))
             << " tokens: none of the model's logits for the next one is a finite number. Hint: look at the base model "
                "when this comes before training, lower --learning-rate when it comes after\n";
    if (end == SampleEnd::cache_full)
        out_ << "note: this sample ends after " << count_text(static_cast<uint64_t>(tokens))
             << " tokens: with its prompt it fills the model's " << layout_->settings.cache_positions << " positions\n";
    out_ << std::flush;
    json line = as_utf8({{"event", "sample"},
                         {"when", when},
                         {"text", text},
                         {"ended", name_of(end)},
                         {"new_tokens", tokens},
                         {"sample_runtime", data::seconds_since(start)}});
    line.update(sample_request());
    log_.write(line);
    leave_out_of_step();
}

// Before a step: starts the trace when the window begins, or when a resumed run begins inside it.
void Run::start_trace(int64_t step) {
    const auto [first, last] = trace_steps_;
    if (o_.trace.empty() || tracing_ || traced_ || step + 1 < first || step + 1 > last) return;
    collect_all();  // what comes now waits for the steps under way, and is no part of them
    model_->offload().set_trace(true);
    tracing_ = true;
    leave_out_of_step();
}

// After the window's last step, or when the run ends inside it.
void Run::end_trace() {
    if (!tracing_) return;
    collect_all();
    try {
        require_own_trace(o_);  // another run may have written one there since this one began
    } catch (const std::runtime_error& error) {
        throw SideFileError(error.what());
    }
    write_trace(o_.trace, way_to_run(o_.trace, output_dir_), model_->offload().trace());
    model_->offload().set_trace(false);
    tracing_ = false;
    traced_ = true;
    leave_out_of_step();
}

// Returns false when the run was interrupted in the middle of the step, which is dropped then.
bool Run::enqueue_step() {
    const int64_t step = state_.step;
    const uint64_t first_sample = state_.next_sample, B = static_cast<uint64_t>(o_.micro_batch_size);
    const uint64_t micro_batches = static_cast<uint64_t>(o_.gradient_accumulation_steps);
    StepSettings settings{.adamw = {.learning_rate = static_cast<float>(learning_rate_at(o_, step, steps_)),
                                    .beta1 = static_cast<float>(o_.adam_beta1),
                                    .beta2 = static_cast<float>(o_.adam_beta2),
                                    .epsilon = static_cast<float>(o_.adam_epsilon),
                                    .weight_decay = static_cast<float>(o_.weight_decay)},
                          .max_grad_norm = static_cast<float>(o_.max_grad_norm)};
    const offload::OffloadStats before = model_->offload().stats();
    const uint64_t traffic_before = device_->traffic().device_to_host_bytes;
    std::vector<size_t> filling(micro_batches);  // each micro-batch is made twice
    const StepInTrace in_trace(model_->offload(), step + 1);
    const std::optional<size_t> read_back_bytes = loop_->enqueue(
        micro_batches, [&](uint64_t i) { return batch_of(*data_.train, first_sample + i * B, B, &filling[i]); },
        settings, stop_);
    if (!read_back_bytes) return false;
    const offload::OffloadStats after = model_->offload().stats();
    const uint64_t sent_back_bytes = device_->traffic().device_to_host_bytes - traffic_before;
    in_flight_.push_back({.step = step,
                          .learning_rate = settings.adamw.learning_rate,
                          .filling = std::accumulate(filling.begin(), filling.end(), size_t{0}),
                          .slabs_in = after.slabs_in - before.slabs_in,
                          .bytes_in = after.bytes_in - before.bytes_in,
                          .slabs_out = after.slabs_out - before.slabs_out,
                          .bytes_out = sent_back_bytes - *read_back_bytes});
    state_.next_sample = first_sample + state_.samples_per_step;
    state_.step = step + 1;
    return true;
}

void Run::collect_one() {
    const StepResult result = loop_->collect();
    const InFlight flight = in_flight_.front();
    in_flight_.pop_front();
    StepReport r;
    r.step = flight.step + 1;
    r.total_steps = steps_;
    r.epoch = static_cast<double>(r.step) * o_.micro_batch_size * o_.gradient_accumulation_steps /
              static_cast<double>(data_.train->rows());
    r.loss = result.loss;
    r.grad_norm = result.grad_norm;
    r.skipped = result.skipped;
    r.learning_rate = flight.learning_rate;
    r.targets = result.targets;
    r.tokens = result.tokens - flight.filling;
    r.seconds = result.seconds;
    const double per_step = data::seconds_since(started_) / static_cast<double>(r.step - first_step_);
    r.left_seconds = per_step * static_cast<double>(steps_ - r.step);
    r.device_peak_bytes = device_->memory().peak_bytes();
    r.device_budget_bytes = device_->memory().budget_bytes();
    r.streaming = !layout_->ring.streamed().empty();
    r.slabs_in = flight.slabs_in;
    r.bytes_in = flight.bytes_in;
    r.slabs_out = flight.slabs_out;
    r.bytes_out = flight.bytes_out;
    r.link_gbps = link_gbps_;
    const double wait_ms = model_->offload().stats().wait_ms;
    r.wait_ms = std::max(0.0, wait_ms - wait_ms_reported_);
    wait_ms_reported_ = wait_ms;
    if (r.targets != 0) passes_ += o_.gradient_accumulation_steps;
    slabs_in_total_ += r.slabs_in;
    bytes_in_total_ += r.bytes_in;
    slabs_out_total_ += r.slabs_out;
    bytes_out_total_ += r.bytes_out;
    wait_ms_total_ += r.wait_ms;
    step_seconds_total_ += r.seconds;
    if (r.step % o_.logging_steps == 0 || r.step == steps_ || r.skipped || r.targets == 0)
        out_ << step_line(r) << "\n" << std::flush;
    log_.step(r);
    if (r.targets != 0) state_.bad_steps_in_row = result.skipped ? state_.bad_steps_in_row + 1 : 0;
    if (state_.bad_steps_in_row >= kBadStepsAllowed) stop_at_bad_steps(r.step);
}

// What is on disk is good and stays the last checkpoint. Where there is none, what was reached is kept: skipped updates
// leave the weights as they were.
void Run::stop_at_bad_steps(int64_t step) {
    collect_all();
    std::string kept = "no update was applied in this run";
    if (const auto last = last_checkpoint(output_dir_)) {
        kept = "no update was applied since; the last checkpoint is " + last->string();
    } else if (step - first_step_ > kBadStepsAllowed) {
        write_checkpoint(state_.step);
        kept =
            "their updates were skipped; what was reached is in " + checkpoint_path(output_dir_, state_.step).string();
    }
    throw std::runtime_error("loss or gradient norm was not finite in " + std::to_string(kBadStepsAllowed) +
                             " steps in a row, up to step " + std::to_string(step) + "; " + kept +
                             ". Try a lower --learning-rate, and look at the data");
}

void Run::write_checkpoint(int64_t step) {
    try {
        save_checkpoint(checkpoint_path(output_dir_, step), *model_, save_context(), state_);
    } catch (const std::runtime_error& error) {
        throw std::runtime_error("the checkpoint of step " + std::to_string(step) +
                                 " was not saved: " + sentence(error.what()) + " " + how_to_go_on());
    }
    saved_step_ = step;
}

// After what ended the run.
std::string Run::how_to_go_on() const {
    const auto last = last_checkpoint(output_dir_);
    return last ? "The last checkpoint is " + last->string() +
                      "; once that is mended, go on from there with --resume-from-checkpoint last"
                : "No checkpoint is saved";
}

// Returns whether a checkpoint of this step is there now. After a step that was not finite none is made: what is on
// disk is good. One that is there learns of an evaluation that an interruption had put off.
bool Run::save(int64_t step) {
    collect_all();
    if (saved_step_ == step) {
        if (consider_best(step)) save_state(checkpoint_path(output_dir_, step), *model_, state_);
        prune();
        return true;
    }
    if (state_.bad_steps_in_row > 0) {
        out_ << "note: no checkpoint of step " << step
             << ": it was not finite and its update was skipped; the weights are those of the step before\n";
        return false;
    }
    consider_best(step);
    write_checkpoint(step);
    prune();
    leave_out_of_step();
    return true;
}

void Run::prune() {
    const std::filesystem::path best = state_.best_eval ? state_.best_checkpoint : "";
    for (const std::string& why : prune_checkpoints(output_dir_, o_.save_total_limit, best))
        out_ << "note: " << why << "\n" << std::flush;
}

void Run::say_evaluations(json& summary) {
    if (!last_eval_) return;
    const Evaluation& first = *state_.first_eval;
    out_ << "validation loss " << format_text("%.4f", first.loss)
         << (first.step == 0 ? " before" : " at step " + std::to_string(first.step));
    if (last_eval_->step != first.step) out_ << format_text(", %.4f after", last_eval_->loss);
    out_ << "\n";
    if (!state_.best_eval) return;
    out_ << "best checkpoint: " << printable_text(state_.best_checkpoint)
         << format_text(", validation loss %.4f\n", state_.best_eval->loss);
    summary["best_metric"] = state_.best_eval->loss;
    summary["best_model_checkpoint"] = printable_text(state_.best_checkpoint);
}

void Run::write_result() {
    try {
        save_result(output_dir_, *model_, save_context());
    } catch (const std::runtime_error& error) {
        throw std::runtime_error("the result was not written: " + sentence(error.what()) + " " + how_to_go_on());
    }
    // Tools look for the tokenizer beside an adapter as well as beside a model.
    if (layout_->settings.lora)
        for (const std::string& why : copy_into(output_dir_, companions_).left_out) out_ << "note: " << why << "\n";
}

void Run::finish() {
    write_result();
    const double seconds = data::seconds_since(started_);
    json summary = {{"event", "end"},
                    {"step", state_.step},
                    {"seconds", seconds},
                    {"device_peak_bytes", device_->memory().peak_bytes()}};
    if (!layout_->ring.streamed().empty()) {
        const size_t all_slabs =
            std::accumulate(layout_->ring.streamed().begin(), layout_->ring.streamed().end(), size_t{0},
                            [&](size_t sum, int l) { return sum + layout_->layer(l).slab.total_bytes(); });
        uint64_t visits = 0;  // of streamed layers, in one micro-batch
        for (const int layer : layout_->training_visits())
            visits += std::binary_search(layout_->ring.streamed().begin(), layout_->ring.streamed().end(), layer);
        const uint64_t naive = visits * passes_;
        out_ << "streamed " << count_text(slabs_in_total_) << " slabs, " << memory_text(bytes_in_total_)
             << ", to the device in training (loading every layer at every visit: " << count_text(naive)
             << " slabs); weights moved back: " << bytes_text(bytes_out_total_) << "\n"
             << "device memory spared: " << memory_text(all_slabs - layout_->ring.slots() * layout_->ring.slot_bytes())
             << " of " << memory_text(all_slabs) << " of streamed weights; compute waited for the link "
             << format_text("%.1f%%", 100 * wait_ms_total_ / 1e3 / std::max(step_seconds_total_, 1e-9))
             << " of the steps' time\n";
        summary["slabs_in"] = slabs_in_total_;
        summary["bytes_in"] = bytes_in_total_;
        summary["slabs_out"] = slabs_out_total_;
        summary["bytes_out"] = bytes_out_total_;
        if (const uint64_t untimed = model_->offload().stats().untimed; untimed != 0) {
            summary["untimed_waits"] = untimed;
            out_ << "note: " << count_text(untimed) << " waits were not timed; the share of waiting is at least that\n";
        }
    }
    const size_t planned = device_->memory().reserved_bytes() + layout_->device_bytes();
    out_ << "peak device memory " << memory_text(device_->memory().peak_bytes()) << ", planned " << memory_text(planned)
         << "\n";
    if constexpr (kBackend == Backend::cuda) {
        const MeasuredMemory measured = device_->measured_memory();
        summary["device_bytes_by_driver"] = measured.bytes;
        out_ << "the driver counts " << memory_text(measured.bytes)
             << (measured.of_process ? " for this process\n" : " since the start, other processes included\n");
    }
    say_evaluations(summary);
    out_ << "wrote " << result_file().string() << " after " << duration_text(seconds) << "\n";
    if (!layout_->settings.lora && data::is_gguf_file(base_)) out_ << "note: " << no_tokenizer_text() << "\n";
    log_.write(summary);
}

void Run::train_steps() {
    while (state_.step < steps_ && !stop_.requested()) {
        start_trace(state_.step);
        if (!enqueue_step()) {
            out_ << "note: step " << state_.step + 1 << " was under way and is dropped; no weight was changed by it\n";
            break;
        }
        if (in_flight_.size() > 1) collect_one();
        const int64_t step = state_.step;
        const auto due = [&](int64_t every) { return every > 0 && step % every == 0; };
        if (step == trace_steps_.second) end_trace();
        if (step == steps_) break;  // the last evaluation and checkpoint come below, due or not
        if (due(o_.eval_steps)) {
            collect_all();
            evaluate(step);
        }
        if (due(o_.save_steps)) save(step);
    }
    collect_all();
}

int Run::run() {
    try {
        announce_plan();
        if (o_.plan) return plan_fits() ? 0 : 1;
        load();
        if (!nothing_left_) restore();
    } catch (const data::Interrupted&) {
        remove_empty_directories();
        out_ << "interrupted while loading; nothing was written\n";
        return data::kExitInterrupted;
    } catch (...) {
        remove_empty_directories();
        throw;
    }
    if (nothing_left_) {
        prune();  // a kill may have come between saving and this
        out_ << "nothing is left to do: the run in " << output_dir_.string() << " ended after step " << steps_
             << ", its result is " << result_file().string() << "\n";
        return 0;
    }
    started_ = Clock::now();
    if (data_.train->unused_tokens() != 0)
        out_ << "note: the last " << data_.train->unused_tokens() << " tokens of " << o_.train_data
             << " make no whole row and are not used\n";
    evaluate(state_.step);
    if (saved_step_ == state_.step) save(state_.step);  // what an end between evaluation, save and pruning left undone
    sample(first_step_ == 0 ? "before" : "at step " + std::to_string(first_step_));
    started_ = Clock::now();
    try {
        train_steps();
        end_trace();
        if (state_.step == steps_ && first_step_ < steps_) evaluate(state_.step);
    } catch (const SideFileError& error) {
        const std::string end = sentence(error.what()) + " The run ends after step " + std::to_string(state_.step);
        bool saved = false;
        try {
            saved = save(state_.step);
        } catch (const std::runtime_error& of_saving) {
            throw std::runtime_error(end + "; " + of_saving.what());
        }
        throw std::runtime_error(end + (saved ? ", of which a checkpoint is saved" : "") + ". " + how_to_go_on());
    }
    if (state_.step < steps_) {
        const bool saved = save(state_.step);
        out_ << "interrupted after step " << state_.step << (saved ? "; checkpoint saved" : "")
             << (last_checkpoint(output_dir_) ? ", go on with --resume-from-checkpoint last\n" : "\n");
        log_.write({{"event", "interrupted"}, {"step", state_.step}});
        return data::kExitInterrupted;
    }
    save(state_.step);
    try {
        if (first_step_ < steps_) sample("after");
        finish();
    } catch (const SideFileError& error) {
        throw std::runtime_error(sentence(error.what()) + " " + how_to_go_on());
    }
    return 0;
}

int train(const TrainOptions& options, data::StopToken stop, std::ostream& out) {
    return Run(options, stop, out).run();
}

}  // namespace slab::train
