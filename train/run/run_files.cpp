// Checks come before the first write: the directory's lock, then whether what lies there is the run's own.
#include "train/run/run_files.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "data/base/atomic_file.h"
#include "data/base/error.h"
#include "data/base/local_time.h"
#include "train/files/adapter_record.h"
#include "train/files/model_directory.h"
#include "train/run/identity.h"
#include "train/run/run_directory.h"
#include "train/run/sample.h"
#include "train/run/side_file.h"
#include "train/run/trace_file.h"
#include "train/spec/text.h"

namespace slab::train {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// Of the slabs as they are: bf16 where no tensor is in blocks.
SlabFormat slab_format_of(const ModelLayout& layout) {
    return layout.is_encoded() ? layout.settings.slab_format : SlabFormat::bf16;
}

json start_event(const RunPlan& plan, Session& session, int64_t step) {
    const ModelLayout& layout = plan.layout;
    const char* const offload =
        layout.ring.streamed().empty() ? (plan.flags.offload.layer_offloading ? "inactive" : "off") : "active";
    json event = {{"event", "start"},
                  {"step", step},
                  {"max_steps", plan.steps},
                  {"output_dir", path_to_run(log_path(plan.flags), plan.output_dir())},
                  {"model", describe(plan.config)},
                  {"device", session.device->name()},
                  {"ranks", plan.ranks()},
                  {"exchange_every", plan.flags.exchange_every},
                  {"precision", kPrecision},
                  {"trained_parameters", layout.trained.parameter_count()},
                  {"offload", offload},
                  {"streamed_layers", layout.ring.streamed().size()},
                  {"slots", layout.ring.slots()},
                  {"slot_bytes", layout.ring.slot_bytes()},
                  {"num_prefetch", layout.settings.num_prefetch},
                  {"recompute", layout.settings.recompute == Recompute::block ? "block" : "none"},
                  {"planned_device_bytes", planned_bytes(*session.device, layout)},
                  {"slab_format", slab_format_name(slab_format_of(layout))},
                  {"host_slab_bytes", session.model->host_slab_bytes()}};
    if (const EncodeErrors& errors = session.model->encode_errors(); !errors.empty()) {
        event["slab_error_mean"] = errors.mean();
        event["slab_error_worst"] = errors.worst();
        event["slab_error_worst_tensor"] = errors.worst_tensor();
    }
    return event;
}

// A name for the validation rows: losses over different rows are not compared.
std::string name_of_eval_set(const RunPlan& plan) {
    if (!plan.data_sets.val) return "";
    const data::TokenFile& file = plan.data_sets.val->file();
    const std::string rows =
        file.path().filename().string() + ", " + std::to_string(plan.data_sets.val->rows()) + " rows";
    // Rows held out of --train-data follow from that, whose content is part of the run's identity.
    return plan.flags.val_data.empty() ? rows : rows + format_text(", %016" PRIx64, file.content_hash());
}

}  // namespace

RunFiles::RunFiles(RunPlan& plan, std::ostream& out) : plan_(plan), out_(out), output_dir_(plan.output_dir()) {
    const TrainOptions& flags = plan.flags;
    directory_.emplace("--output-dir", output_dir_);
    lock_ = data::DirectoryLock(output_dir_);
    data::remove_stale_temporaries(output_dir_);
    if (flags.micro_batch_size > static_cast<int64_t>(plan.data_sets.train->rows()))
        out_ << "note: a micro-batch of " << flags.micro_batch_size << " rows takes the "
             << plan.data_sets.train->rows() << " rows of --train-data several times over\n";
    require_own_directory(flags, plan.companions);
    require_own_log(flags);
    require_own_trace(flags);
    state.identity = identity_of(flags, plan.layout, plan.steps, *plan.data_sets.train);
    state.samples_per_step = plan.samples_per_step();
    state.base_fingerprint = plan.weights->fingerprint(plan.config);
    state.first_start = data::local_time_text(plan.first_start);
    if (flags.adapter_in.empty()) return;
    const auto record = read_adapter_record(flags.adapter_in);
    if (!record) return;
    if (const auto other = other_numbers(*record, slab_format_of(plan.layout), state.base_fingerprint); !other.empty())
        out_ << "note: the adapter of --adapter-in " << other << "\n";
}

RunFiles::RunFiles(RunPlan& plan, const RunFiles& leader, Comm& comm, std::ostream& out)
    : state(leader.state),
      plan_(plan),
      comm_(&comm),
      out_(out),
      output_dir_(leader.output_dir_),
      first_step_(leader.first_step_),
      saved_step_(leader.saved_step_) {}

void RunFiles::wait_for_leaders_error() {
    comm_->meet({}, {"the leader's error"});
    throw std::logic_error("a rank waited for an error that did not come");
}

// None: the run begins at its beginning.
std::optional<fs::path> RunFiles::checkpoint_to_resume() const {
    const std::string& from = plan_.flags.resume_from_checkpoint;
    if (from.empty()) return std::nullopt;
    return from == "last" ? last_checkpoint(output_dir_) : fs::path(from);
}

void RunFiles::take_state(TrainerState read, const fs::path& from) {
    if (read.base_fingerprint.empty())
        out_ << "note: " << from.string()
             << " does not say which base model it was made on (an earlier version wrote it); this run takes "
                "--base-model to be it\n";
    read.base_fingerprint = state.base_fingerprint;
    read.first_start = state.first_start;
    state = std::move(read);
    if (state.step > plan_.steps)
        throw data::UserError({.subject = from.string(),
                               .given = "is of step " + std::to_string(state.step) + ", and this run has " +
                                        std::to_string(plan_.steps)});
    adopt_checkpoint(from);
}

// A checkpoint of this run directory is this run's own; later ones there would be taken for its continuation.
void RunFiles::adopt_checkpoint(const fs::path& from) {
    std::error_code ignored;
    const auto last = last_checkpoint(output_dir_);
    if (!last) return;
    if (fs::equivalent(from, checkpoint_path(output_dir_, state.step), ignored)) saved_step_ = state.step;
    if (step_of_checkpoint(*last) > state.step)
        throw data::UserError({.subject = "--output-dir " + output_dir_.string(),
                               .given = "holds " + last->filename().string() + ", later than the one to resume from",
                               .hint = "remove it, or give another directory"});
}

// Takes over the evaluations in the checkpoint that still hold. The best checkpoint may have been moved with its run
// directory, or be gone, and the validation rows may be others.
void RunFiles::adopt_evaluations() {
    const std::string eval_set = name_of_eval_set(plan_);
    evaluations_adopted_ = state.eval_set == eval_set;
    if (!evaluations_adopted_) state.first_eval = state.best_eval = std::nullopt;
    state.eval_set = eval_set;
    if (!state.best_eval) return;
    const fs::path here = checkpoint_path(output_dir_, state.best_eval->step);
    if (fs::exists(here)) state.best_checkpoint = here.string();
    evaluations_adopted_ = evaluations_adopted_ && fs::exists(state.best_checkpoint);
    if (!evaluations_adopted_) state.best_eval = std::nullopt;
}

// Whether all of the result's files are there, those that tools read beside the weights too.
bool RunFiles::result_is_whole() const {
    std::error_code error;
    const auto there = [&](const fs::path& name) { return fs::exists(output_dir_ / name.filename(), error); };
    return there(plan_.result_file()) && there(plan_.trains_adapter() ? kAdapterConfigFile : kModelConfigFile) &&
           std::all_of(plan_.companions.begin(), plan_.companions.end(),
                       [&](const Companion& file) { return there(file.name); });
}

bool RunFiles::already_finished() {
    const auto from = checkpoint_to_resume();
    std::error_code error;
    if (!from || !fs::equivalent(*from, checkpoint_path(output_dir_, plan_.steps), error) || !result_is_whole() ||
        !log_tells_end(log_path(plan_.flags), plan_.steps, plan_.data_sets.val != nullptr, sample_request(plan_.flags)))
        return false;
    const TrainerState wanted = state;
    take_state(read_checkpoint(*from, plan_.layout, state).state, *from);
    adopt_evaluations();
    if (!evaluations_adopted_) {
        state = wanted;
        saved_step_ = -1;
        return false;
    }
    prune();  // a kill may have come between saving and this
    out_ << "nothing is left to do: the run in " << output_dir_.string() << " ended after step " << plan_.steps
         << ", its result is " << plan_.result_file().string() << "\n";
    return true;
}

void RunFiles::restore(Session& session) {
    const TrainOptions& flags = plan_.flags;
    if (const auto from = checkpoint_to_resume()) {
        take_state(load_checkpoint(*from, *session.model, state), *from);
        out_ << "resumed from " << from->string() << " after step " << state.step << "\n";
    } else if (!flags.resume_from_checkpoint.empty()) {
        out_ << "note: " << output_dir_.string() << " holds no checkpoint yet; the run starts at its beginning\n";
    }
    first_step_ = state.step;
    adopt_evaluations();
    log_ = RunLog(log_path(flags), flags.resume_from_checkpoint.empty() ? -1 : state.step,
                  [&] { require_own_log(flags); });
    data::write_file_atomically(output_dir_ / kRunConfigFile, run_config_text(flags, plan_.layout.settings.lora));
    log_.write(start_event(plan_, session, state.step));
}

void RunFiles::note_evaluation(const Evaluation& evaluation) {
    last_evaluation_ = evaluation;
    if (!state.first_eval) state.first_eval = evaluation;
}

// Takes this step, saved now or about to be, for the best so far if it is; returns whether it is. Only steps count that
// are evaluated and saved without an interruption too: the best is a function of the flags.
bool RunFiles::consider_best() {
    const TrainOptions& flags = plan_.flags;
    const int64_t step = state.step;
    const auto due = [&](int64_t every) { return every > 0 && step % every == 0; };
    if (step != plan_.steps && !(step > 0 && due(flags.eval_steps) && due(flags.save_steps))) return false;
    if (step == first_step_ && !evaluations_adopted_) return false;  // nothing is known of better ones before
    if (!last_evaluation_ || last_evaluation_->step != step || !std::isfinite(last_evaluation_->loss)) return false;
    if (state.best_eval && state.best_eval->loss <= last_evaluation_->loss) return false;
    state.best_eval = last_evaluation_;
    state.best_checkpoint = checkpoint_path(output_dir_, step).string();
    return true;
}

SaveContext RunFiles::save_context(Session& session) const {
    SaveContext context{plan_.layout,      *plan_.weights,   plan_.flags.base_model,
                        plan_.config_json, plan_.companions, out_};
    if (Comm* const comm = session.loop->comm(); comm != nullptr)
        context.alive = [comm, step = state.step] { comm->alive({"saving step", step}); };
    context.adapter_record = adapter_record_json(record_of(session));
    return context;
}

void RunFiles::write_checkpoint(Session& session) {
    try {
        save_checkpoint(checkpoint_path(output_dir_, state.step), *session.model, save_context(session), state);
    } catch (const std::runtime_error& error) {  // whatever its type: it is told with the way on
        throw data::IoError("the checkpoint of step " + std::to_string(state.step) +
                            " was not saved: " + sentence(error.what()) + " " + way_on());
    }
    saved_step_ = state.step;
}

AdapterRecord RunFiles::record_of(Session& session) const {
    AdapterRecord record;
    record.slab_format = slab_format_of(plan_.layout);
    record.base_fingerprint = state.base_fingerprint;
    if (const EncodeErrors& errors = session.model->encode_errors(); !errors.empty()) {
        record.mean_error = errors.mean();
        record.worst_error = errors.worst();
        record.worst_tensor = errors.worst_tensor();
    }
    return record;
}

bool RunFiles::save(Session& session) {
    if (!is_leader()) {
        if (!is_saved() && state.bad_steps_in_row > 0) return false;
        saved_step_ = state.step;
        return true;
    }
    if (is_saved()) {
        // An interruption may have put the evaluation off until after the save.
        if (consider_best()) save_state(checkpoint_path(output_dir_, state.step), *session.model, state);
        prune();
        return true;
    }
    if (state.bad_steps_in_row > 0) {
        out_ << "note: no checkpoint of step " << state.step
             << ": it was not finite and its update was skipped; the weights are those of the step before\n";
        return false;
    }
    consider_best();
    write_checkpoint(session);
    prune();
    return true;
}

void RunFiles::stop_at_bad_steps(Session& session, int64_t step, int bad_steps) {
    if (!is_leader()) wait_for_leaders_error();
    std::string kept = "no update was applied in this run";
    if (const auto last = last_checkpoint(output_dir_)) {
        kept = "no update was applied since; the last checkpoint is " + last->string();
    } else if (step - first_step_ > bad_steps) {
        write_checkpoint(session);  // skipped updates leave the weights as they were
        kept =
            "their updates were skipped; what was reached is in " + checkpoint_path(output_dir_, state.step).string();
    }
    throw data::UserError("loss or gradient norm was not finite in " + std::to_string(bad_steps) +
                          " steps in a row, up to step " + std::to_string(step) + "; " + kept +
                          ". Try a lower --learning-rate, and look at the data");
}

void RunFiles::stop_at_zero_gradients(int64_t step, int steps, float loss) {
    const auto last = last_checkpoint(output_dir_);
    throw data::UserError({.given = "the gradient was exactly 0 in " + std::to_string(steps) +
                                    " steps in a row, up to step " + std::to_string(step) + ", at a loss of " +
                                    format_text("%.4g", loss) +
                                    ": the model's output no longer depends on what is trained",
                           .wanted = "a gradient above 0",
                           .hint = "try a lower --learning-rate" +
                                   (last ? "; " + last->string() + " is the last checkpoint, and may be spoiled too"
                                         : std::string("; nothing is saved"))});
}

void RunFiles::prune() {
    const fs::path best = state.best_eval ? state.best_checkpoint : "";
    for (const std::string& why : prune_checkpoints(output_dir_, plan_.flags.save_total_limit, best))
        out_ << "note: " << why << "\n" << std::flush;
}

void RunFiles::write_result(Session& session) {
    if (!is_leader()) return;
    try {
        save_result(output_dir_, *session.model, save_context(session));
    } catch (const std::runtime_error& error) {  // as above
        throw data::IoError("the result was not written: " + sentence(error.what()) + " " + way_on());
    }
    // Tools look for the tokenizer beside an adapter as well as beside a model.
    if (plan_.trains_adapter())
        for (const std::string& why : copy_into(output_dir_, plan_.companions).left_out)
            out_ << "note: " << why << "\n";
}

void RunFiles::write_trace_of(Session& session) {
    if (!is_leader()) return;
    const std::string& file = plan_.flags.trace;
    try {
        require_own_trace(plan_.flags);  // another run may have written one there since this one began
    } catch (const data::UserError& error) {
        throw SideFileError(error.what());
    }
    write_trace(file, path_to_run(file, output_dir_), session.model->offload().trace());
}

std::string RunFiles::way_on() const {
    const auto last = last_checkpoint(output_dir_);
    return last ? "The last checkpoint is " + last->string() +
                      "; once that is mended, go on from there with --resume-from-checkpoint last"
                : "No checkpoint is saved";
}

}  // namespace slab::train
