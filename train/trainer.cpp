// The run. See trainer.h.
#include "train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>

#include "data/atomic_file.h"
#include "data/tokenizer.h"
#include "train/adapter_files.h"
#include "train/base_tokenizer.h"
#include "train/checkpoint.h"
#include "train/data_sets.h"
#include "train/hub_cache.h"
#include "train/run_log.h"
#include "train/run_setup.h"
#include "train/sampler.h"
#include "train/step_loop.h"
#include "train/text.h"
#include "train/trace_file.h"

namespace slab::train {

namespace fs = std::filesystem;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

namespace {

constexpr int kBadStepsAllowed = 3;
constexpr int kExitInterrupted = 130;  // as a shell says of a process that SIGINT ended

struct Interrupted {};  // thrown while loading, when there is nothing yet to save

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

class Run {
  public:
    Run(const TrainOptions& options, const std::atomic<bool>& interrupt, std::ostream& out)
        : o_(options),
          interrupt_(interrupt),
          out_(out),
          base_(find_base_model(options.base_model)),
          config_(read_base_config(base_)) {}

    int run();

  private:
    void check_paths() const;
    void announce_plan();
    void prepare_sample(ModelSettings& settings);
    void note_settings() const;
    bool plan_fits() const;
    void load();
    void restore();
    void adopt_checkpoint(const fs::path& from);
    void adopt_evaluations();
    void evaluate(int64_t step);
    void consider_best(int64_t step);
    void sample(const char* when);
    void enqueue_step();
    void collect_one();
    void collect_all() {
        while (!in_flight_.empty()) collect_one();
    }
    [[noreturn]] void stop_at_bad_steps(int64_t step);
    void write_checkpoint(int64_t step);
    bool save(int64_t step);
    void start_trace(int64_t step);
    void end_trace();
    void leave_out_of_step();
    void say_evaluations(json& summary);
    void train_steps();
    void finish();

    // A step enqueued and not yet reported.
    struct InFlight {
        int64_t step;
        double learning_rate;
        uint64_t slabs_in, bytes_in, slabs_out, bytes_out;
    };

    const TrainOptions& o_;
    const std::atomic<bool>& interrupt_;
    std::ostream& out_;
    const fs::path base_;  // where --base-model was found
    ModelConfig config_;
    fs::path output_dir_;
    std::unique_ptr<data::Tokenizer> tokenizer_;  // with --sample
    std::vector<int32_t> prompt_;
    data::DirectoryLock lock_;
    DataSets data_;
    std::unique_ptr<Device> device_;
    std::optional<ModelLayout> layout_;
    std::optional<BaseWeights> weights_;
    std::unique_ptr<Model> model_;
    std::unique_ptr<StepLoop> loop_;
    RunLog log_;
    TrainerState state_;
    std::deque<InFlight> in_flight_;
    int64_t steps_ = 0, first_step_ = 0;
    double link_gbps_ = 0, wait_ms_reported_ = 0;
    std::optional<Evaluation> last_eval_;
    double step_seconds_total_ = 0, wait_ms_total_ = 0;
    uint64_t passes_ = 0;  // micro-batches trained on
    uint64_t slabs_in_total_ = 0, bytes_in_total_ = 0, slabs_out_total_ = 0, bytes_out_total_ = 0;
    Clock::time_point started_, last_report_;
    std::pair<int64_t, int64_t> trace_steps_{0, 0};
    bool tracing_ = false, traced_ = false;
    int64_t saved_step_ = -1;  // a checkpoint of this step lies in output_dir_
};

// The prompt as tokens, and room for it and what follows in the key/value cache.
void Run::prepare_sample(ModelSettings& settings) {
    if (o_.sample.empty()) return;
    if (base_tokenizer_path(base_.string(), config_).empty())
        throw std::runtime_error("--sample needs the model's tokenizer, and there is no tokenizer.json beside " +
                                 base_.string() + " (a vocabulary of 260 would be bytes; this one has " +
                                 std::to_string(config_.V) + ")");
    tokenizer_ = open_base_tokenizer(base_.string(), config_);
    prompt_ = o_.sample_chat ? chat_prompt_tokens(*tokenizer_, o_.sample, o_.chat_template, config_.V)
                             : prompt_tokens(*tokenizer_, o_.sample, config_.V);
    const int positions = most_positions(config_);
    if (prompt_.size() >= static_cast<size_t>(positions))
        throw std::runtime_error("--sample: the prompt has " + count_text(prompt_.size()) + " tokens and the model " +
                                 count_text(static_cast<uint64_t>(positions)) +
                                 " positions; wanted a shorter prompt, with room for a text behind it");
    settings.cache_positions = std::min(positions, static_cast<int>(prompt_.size()) + o_.sample_tokens);
}

// What is wrong with a path is said before a table of memory has scrolled it away.
void Run::check_paths() const {
    for (const auto& [flag, file] : {std::pair{"--train-data", o_.train_data}, {"--val-data", o_.val_data}})
        if (std::error_code error; !file.empty() && !fs::exists(file, error))
            throw std::runtime_error(std::string(flag) + " " + file + ": " +
                                     (error ? error.message() : "no such file") +
                                     "; wanted a token file (build/tokenize makes one from text)");
    if (!o_.trace.empty()) {
        check_trace_file(o_.trace);
        const auto folder_of = [](const fs::path& file) {
            return fs::weakly_canonical(fs::absolute(file)).parent_path();
        };
        const fs::path folder = folder_of(o_.trace);  // may be the run directory, which is yet to be made
        if (!fs::is_directory(folder) && folder != folder_of(fs::path(o_.output_dir) / "trace"))
            throw std::runtime_error("--trace " + o_.trace + ": the directory it shall lie in does not exist");
    }
    std::error_code error;
    const fs::path base = fs::is_directory(base_, error) ? base_ : base_.parent_path();
    if (!o_.output_dir.empty() && fs::equivalent(o_.output_dir, base.empty() ? "." : base, error))
        throw std::runtime_error(
            "--output-dir " + o_.output_dir +
            ": is the base model's own directory, whose files a run must not replace; give another");
}

void Run::announce_plan() {
    ModelSettings settings = settings_from(o_, config_);
    trace_steps_ = parse_trace_steps(o_.trace_steps);
    check_paths();
    prepare_sample(settings);
    note_settings();
    out_ << describe(config_) << "\n";
    device_ = std::make_unique<Device>(DeviceOptions{
        .threads = o_.threads,
        .budget_bytes = o_.offload.vram_budget.empty() ? 0 : parse_size(o_.offload.vram_budget, "--vram-budget")});
    const MemoryAccount& account = device_->memory();
    layout_ = make_layout(config_, settings, o_.offload, account.reserved_bytes(), account.budget_bytes());
    if (o_.offload.layer_offloading && layout_->streamed.empty())
        out_ << "warning: --layer-offloading has nothing to stream: "
             << (layout_->resident_frozen.empty() ? "no layer is frozen" : "every frozen layer is kept resident")
             << "; training goes on resident\n";
    out_ << "trains " << count_text(layout_->trained.parameter_count()) << " parameters in "
         << layout_->trained.tensors().size() << " tensors on " << device_->name() << " (" << kPrecision << ")\n";
    out_ << describe_plan(*layout_, account.reserved_bytes(), account.budget_bytes());
    if (!o_.from_scratch && data::is_gguf_file(base_))
        out_ << "base model\n  " << describe_gguf(data::GgufFile(base_), config_, sizeof(real)) << "\n";
    out_ << std::flush;
}

// What is allowed, and may yet not be what was meant.
void Run::note_settings() const {
    for (const auto& notice : config_.notices) out_ << "note: " << notice << "\n";
    if (o_.sequence_len > config_.max_positions && config_.max_positions > 0)
        out_ << "note: --sequence-len " << o_.sequence_len << " is beyond the " << config_.max_positions
             << " positions that the base model was made for (max_position_embeddings)\n";
    if (o_.from_scratch && o_.adapter == "lora")
        out_ << "warning: --from-scratch with --adapter lora: the adapter will fit random weights that are saved "
                "nowhere (--seed "
             << o_.seed << " draws them again)\n";
}

bool Run::plan_fits() const {
    const MemoryAccount& account = device_->memory();
    return account.budget_bytes() == 0 || account.reserved_bytes() + layout_->device_bytes() <= account.budget_bytes();
}

void Run::load() {
    const MemoryAccount& account = device_->memory();
    check_budget(*layout_, account.reserved_bytes(), account.budget_bytes());
    check_host_memory(*layout_, available_host_bytes());
    data_ = open_data(
        o_, config_, [&] { return open_base_tokenizer(base_.string(), config_); }, out_);
    if (data_.val) check_has_targets(*data_.val);
    steps_ = total_steps(o_, data_.train->rows());
    if (!o_.trace.empty() && trace_steps_.first > steps_)
        throw std::runtime_error("--trace-steps " + o_.trace_steps + " begins after the run's last step, " +
                                 std::to_string(steps_) + "; name steps of the run");
    // All that can be wrong with the base is found before the run directory is touched.
    weights_ = o_.from_scratch ? BaseWeights::random(o_.seed, config_) : BaseWeights::from_files(base_, config_);
    output_dir_ = o_.output_dir;
    std::error_code error;
    fs::create_directories(output_dir_, error);
    if (error || !fs::is_directory(output_dir_))
        throw std::runtime_error("--output-dir " + output_dir_.string() +
                                 ": cannot be made: " + (error ? error.message() : "a file is in the way"));
    lock_ = data::DirectoryLock(output_dir_);
    data::remove_stale_temporaries(output_dir_);
    if (o_.micro_batch_size > static_cast<int64_t>(data_.train->rows()))
        out_ << "note: a micro-batch of " << o_.micro_batch_size << " rows takes the " << data_.train->rows()
             << " rows of --train-data several times over\n";
    if (o_.resume_from_checkpoint.empty() && last_checkpoint(output_dir_))
        throw std::runtime_error(
            "--output-dir " + output_dir_.string() + " holds " + last_checkpoint(output_dir_)->filename().string() +
            " of an earlier run; go on with --resume-from-checkpoint last, or give another directory");
    for (const char* result : {"adapter_model.safetensors", "model.safetensors"})
        if (o_.resume_from_checkpoint.empty() && fs::exists(output_dir_ / result))
            throw std::runtime_error("--output-dir " + output_dir_.string() + " holds " + result +
                                     " of an earlier run, which this one would replace; remove it, or give another "
                                     "directory");

    const Clock::time_point start = Clock::now();
    Model::Options options;
    options.seed = o_.seed;
    Clock::time_point told = start;
    options.progress = [&](size_t done, size_t total) {
        if (interrupt_) throw Interrupted{};
        if (seconds_since(told) < 2 && done != total) return;
        if (done == total && seconds_since(start) < 2) return;
        told = Clock::now();
        out_ << "loading " << memory_text(done) << " of " << memory_text(total) << "\n" << std::flush;
    };
    model_ = std::make_unique<Model>(*device_, *layout_, *weights_, options);
    if (!o_.adapter_in.empty())
        model_->trained().write_weights(read_trained(adapter_weights_file(o_.adapter_in), layout_->trained),
                                        model_->compute());
    if (weights_->inexact_elems() != 0)
        out_ << "note: " << count_text(weights_->inexact_elems()) << " weights are not exact in " << kPrecision
             << " and were rounded\n";
    out_ << "loaded in " << format_text("%.1f", seconds_since(start)) << " s; " << model_->offload().report() << "\n";
    if (!layout_->streamed.empty()) out_ << "host memory: " << model_->slabs().report() << "\n";
    if (!layout_->streamed.empty()) link_gbps_ = model_->measure_link_gbps();
    loop_ = std::make_unique<StepLoop>(*model_);
}

// A checkpoint of this run directory is this run's own; later ones there would be taken for its continuation.
void Run::adopt_checkpoint(const fs::path& from) {
    std::error_code ignored;
    const auto last = last_checkpoint(output_dir_);
    if (!last) return;
    if (fs::equivalent(from, checkpoint_path(output_dir_, state_.step), ignored)) saved_step_ = state_.step;
    if (step_of_checkpoint(*last) > state_.step)
        throw std::runtime_error("--output-dir " + output_dir_.string() + " holds " + last->filename().string() +
                                 ", later than the one to resume from; remove it, or give another directory");
}

// What the checkpoint knows of evaluations, as far as it is of use here: the best checkpoint may have been moved with
// its run directory, or be gone, and losses over other rows do not compare.
void Run::adopt_evaluations() {
    std::string eval_set;
    if (data_.val)
        eval_set = data_.val->file().path().filename().string() + ", " + std::to_string(data_.val->rows()) + " rows";
    if (state_.eval_set != eval_set) state_.first_eval = state_.best_eval = std::nullopt;
    state_.eval_set = eval_set;
    if (!state_.best_eval) return;
    const fs::path here = checkpoint_path(output_dir_, state_.best_eval->step);
    if (fs::exists(here)) state_.best_checkpoint = here.string();
    if (!fs::exists(state_.best_checkpoint)) state_.best_eval = std::nullopt;
}

void Run::restore() {
    state_.identity = identity_of(o_, *layout_, steps_, *data_.train);
    if (!o_.resume_from_checkpoint.empty()) {
        std::optional<fs::path> from =
            o_.resume_from_checkpoint == "last" ? last_checkpoint(output_dir_) : fs::path(o_.resume_from_checkpoint);
        if (from) {
            state_ = load_checkpoint(*from, *model_, state_.identity);
            adopt_checkpoint(*from);
            out_ << "resumed from " << from->string() << " after step " << state_.step << "\n";
        } else {
            out_ << "note: " << output_dir_.string() << " holds no checkpoint yet; the run starts at its beginning\n";
        }
    }
    first_step_ = state_.step;
    adopt_evaluations();
    const fs::path log = o_.log.empty() ? output_dir_ / "log.jsonl" : fs::path(o_.log);
    log_ = RunLog(log, o_.resume_from_checkpoint.empty() ? -1 : state_.step);
    data::write_file_atomically(output_dir_ / "config.toml", o_.config_toml);
    const char* const offload =
        layout_->streamed.empty() ? (o_.offload.layer_offloading ? "inactive" : "off") : "active";
    log_.write({{"event", "start"},
                {"step", state_.step},
                {"max_steps", steps_},
                {"model", describe(config_)},
                {"device", device_->name()},
                {"precision", kPrecision},
                {"trained_parameters", layout_->trained.parameter_count()},
                {"offload", offload},
                {"streamed_layers", layout_->streamed.size()},
                {"slots", layout_->slots},
                {"slot_bytes", layout_->slot_bytes},
                {"num_prefetch", layout_->settings.num_prefetch},
                {"recompute", layout_->settings.recompute == Recompute::block ? "block" : "none"},
                {"planned_device_bytes", device_->memory().reserved_bytes() + layout_->device_bytes()},
                {"host_slab_bytes", model_->host_slab_bytes()}});
}

// Time and waits up to here belong to an evaluation, a sample or a save, not to the next step.
void Run::leave_out_of_step() {
    last_report_ = Clock::now();
    wait_ms_reported_ = model_->offload().stats().wait_ms;
}

void Run::evaluate(int64_t step) {
    if (!data_.val) return;
    const Clock::time_point start = Clock::now();
    const uint64_t rows = data_.val->rows(), B = static_cast<uint64_t>(o_.micro_batch_size);
    const auto batch = [&](uint64_t i) { return data_.val->batch(i * B, static_cast<int>(std::min(B, rows - i * B))); };
    const std::optional<double> loss = loop_->evaluate((rows + B - 1) / B, batch, [&] { return interrupt_.load(); });
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
                {"eval_runtime", seconds_since(start)}});
    last_eval_ = {step, *loss};
    if (!state_.first_eval) state_.first_eval = last_eval_;
}

// Whether this step, about to be saved, is the best so far. What a resumed run evaluates at its start does not count:
// the best is a function of the flags, not of interruptions.
void Run::consider_best(int64_t step) {
    const bool due = step == steps_ || (step > 0 && o_.eval_steps > 0 && step % o_.eval_steps == 0);
    if (!due || !last_eval_ || last_eval_->step != step || !std::isfinite(last_eval_->loss)) return;
    if (state_.best_eval && state_.best_eval->loss <= last_eval_->loss) return;
    state_.best_eval = last_eval_;
    state_.best_checkpoint = checkpoint_path(output_dir_, step).string();
}

void Run::sample(const char* when) {
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
    const SampleEnd end = sample_tokens(
        *model_, prompt_, settings, [&] { return interrupt_.load(); },
        [&](int32_t token) {
            ++tokens;
            show(stream.add(token));
        });
    show(stream.rest());
    out_ << "\n";
    if (end == SampleEnd::cache_full)
        out_ << "note: this sample ends after " << count_text(static_cast<uint64_t>(tokens))
             << " tokens: with its prompt it fills the model's " << layout_->settings.cache_positions << " positions\n";
    out_ << std::flush;
    log_.write(json::parse(json({{"event", "sample"},
                                 {"when", when},
                                 {"prompt", o_.sample},
                                 {"text", text},
                                 {"ended", name_of(end)},
                                 {"new_tokens", tokens},
                                 {"sample_runtime", seconds_since(start)}})
                               .dump(-1, ' ', false, json::error_handler_t::replace)));
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
    write_trace(o_.trace, model_->offload().trace());
    model_->offload().set_trace(false);
    tracing_ = false;
    traced_ = true;
    leave_out_of_step();
}

void Run::enqueue_step() {
    const int64_t step = state_.step;
    std::vector<MicroBatch> micro_batches;
    for (int i = 0; i < o_.gradient_accumulation_steps; ++i) {
        micro_batches.push_back(data_.train->batch(state_.next_sample, o_.micro_batch_size));
        state_.next_sample += o_.micro_batch_size;
    }
    StepSettings settings{.adamw = {.learning_rate = static_cast<float>(learning_rate_at(o_, step, steps_)),
                                    .beta1 = static_cast<float>(o_.adam_beta1),
                                    .beta2 = static_cast<float>(o_.adam_beta2),
                                    .epsilon = static_cast<float>(o_.adam_epsilon),
                                    .weight_decay = static_cast<float>(o_.weight_decay)},
                          .max_grad_norm = static_cast<float>(o_.max_grad_norm)};
    const offload::OffloadStats before = model_->offload().stats();
    const uint64_t traffic_before = device_->traffic().device_to_host_bytes;
    model_->offload().set_trace_step(step + 1);
    const size_t read_back_bytes = loop_->enqueue(micro_batches, settings);
    model_->offload().set_trace_step(0);  // an evaluation may come
    const offload::OffloadStats after = model_->offload().stats();
    const uint64_t sent_back_bytes = device_->traffic().device_to_host_bytes - traffic_before;
    in_flight_.push_back({.step = step,
                          .learning_rate = settings.adamw.learning_rate,
                          .slabs_in = after.slabs_in - before.slabs_in,
                          .bytes_in = after.bytes_in - before.bytes_in,
                          .slabs_out = after.slabs_out - before.slabs_out,
                          .bytes_out = sent_back_bytes - read_back_bytes});
    state_.step = step + 1;
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
    r.tokens = result.tokens;
    r.seconds = seconds_since(last_report_);
    last_report_ = Clock::now();
    const double per_step = seconds_since(started_) / static_cast<double>(r.step - first_step_);
    r.left_seconds = per_step * static_cast<double>(steps_ - r.step);
    r.device_peak_bytes = device_->memory().peak_bytes();
    r.device_budget_bytes = device_->memory().budget_bytes();
    r.streaming = !layout_->streamed.empty();
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
    saved_step_ = step;
    save_checkpoint(checkpoint_path(output_dir_, step), *model_, {*layout_, *weights_, o_.base_model}, state_);
}

// Returns whether a checkpoint of this step is there now. After a step that was not finite none is made: what is on
// disk is good.
bool Run::save(int64_t step) {
    collect_all();
    if (saved_step_ == step) return true;
    if (state_.bad_steps_in_row > 0) {
        out_ << "note: no checkpoint of step " << step
             << ": it was not finite and its update was skipped; the weights are those of the step before\n";
        return false;
    }
    consider_best(step);
    write_checkpoint(step);
    prune_checkpoints(output_dir_, o_.save_total_limit, state_.best_eval ? state_.best_checkpoint : "");
    leave_out_of_step();
    return true;
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

void Run::finish() {
    save_result(output_dir_, *model_, {*layout_, *weights_, o_.base_model});
    // Tools look for the tokenizer beside an adapter as well as beside a model. A GGUF file has its own inside, and
    // what lies beside it may belong to another.
    if (!data::is_gguf_file(base_))
        for (const fs::path& file : data::tokenizer_files(config_path(base_).parent_path()))
            data::copy_file_atomically(file, output_dir_ / file.filename());
    const double seconds = seconds_since(started_);
    json summary = {{"event", "end"},
                    {"step", state_.step},
                    {"seconds", seconds},
                    {"device_peak_bytes", device_->memory().peak_bytes()}};
    if (!layout_->streamed.empty()) {
        const size_t all_slabs =
            std::accumulate(layout_->streamed.begin(), layout_->streamed.end(), size_t{0},
                            [&](size_t sum, int l) { return sum + layout_->slabs[l].total_bytes(); });
        uint64_t visits = 0;  // of streamed layers, in one micro-batch
        for (const int layer : layout_->training_visits())
            visits += std::binary_search(layout_->streamed.begin(), layout_->streamed.end(), layer);
        const uint64_t naive = visits * passes_;
        out_ << "streamed " << count_text(slabs_in_total_) << " slabs, " << memory_text(bytes_in_total_)
             << ", to the device in training (loading every layer at every visit: " << count_text(naive)
             << " slabs); weights moved back: " << bytes_text(bytes_out_total_) << "\n"
             << "device memory spared: " << memory_text(all_slabs - layout_->slots * layout_->slot_bytes) << " of "
             << memory_text(all_slabs) << " of streamed weights; compute waited for the link "
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
    say_evaluations(summary);
    out_ << "wrote "
         << (output_dir_ / (layout_->settings.lora ? "adapter_model.safetensors" : "model.safetensors")).string()
         << " after " << duration_text(seconds) << "\n";
    log_.write(summary);
}

void Run::train_steps() {
    while (state_.step < steps_ && !interrupt_) {
        start_trace(state_.step);
        enqueue_step();
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
    announce_plan();
    if (o_.plan) return plan_fits() ? 0 : 1;
    try {
        load();
    } catch (const Interrupted&) {
        out_ << "interrupted while loading; nothing was written\n";
        return kExitInterrupted;
    }
    restore();
    started_ = last_report_ = Clock::now();
    if (data_.train->unused_tokens() != 0)
        out_ << "note: the last " << data_.train->unused_tokens() << " tokens of " << o_.train_data
             << " make no whole row and are not used\n";
    evaluate(state_.step);
    sample("before");
    started_ = last_report_ = Clock::now();
    try {
        train_steps();
        end_trace();
    } catch (const SideFileError& error) {
        throw std::runtime_error(std::string(error.what()) + ". The run ends after step " +
                                 std::to_string(state_.step) +
                                 (save(state_.step) ? ", of which a checkpoint is saved" : ""));
    }
    if (state_.step < steps_) {
        const bool saved = save(state_.step);
        out_ << "interrupted after step " << state_.step << (saved ? "; checkpoint saved" : "")
             << (last_checkpoint(output_dir_) ? ", go on with --resume-from-checkpoint last\n" : "\n");
        log_.write({{"event", "interrupted"}, {"step", state_.step}});
        return kExitInterrupted;
    }
    if (first_step_ < steps_) evaluate(state_.step);
    save(state_.step);
    sample("after");
    finish();
    return 0;
}

}  // namespace

int train(const TrainOptions& options, const std::atomic<bool>& interrupt, std::ostream& out) {
    return Run(options, interrupt, out).run();
}

}  // namespace slab::train
