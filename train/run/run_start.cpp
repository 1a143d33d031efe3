// The run before its first step: paths and settings looked at, the plan printed, everything loaded. See run.h.
#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "train/files/adapter_files.h"
#include "train/files/base_tokenizer.h"
#include "train/files/model_directory.h"
#include "train/model/link_rate.h"
#include "train/model/memory_plan.h"
#include "train/model/sampler.h"
#include "train/run/identity.h"
#include "train/run/idle_flags.h"
#include "train/run/run.h"
#include "train/run/run_directory.h"
#include "train/run/trace_file.h"
#include "train/spec/text.h"

namespace slab::train {

namespace fs = std::filesystem;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

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
                                     "; wanted a text, records (*.jsonl) or a token file (*.bin)");
    check_side_files(o_, companions_of(base_));
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

// What the headers of the weights say, so that --plan does not pass what a run refuses at once. A config.json alone can
// be planned for.
void Run::check_weights() const {
    std::error_code error;
    const auto may_be_weights = [](const fs::path& file) {
        const std::string name = file.filename().string();
        return name.ends_with(".gguf") || name.starts_with("pytorch_model") ||
               name.find(".safetensors") != std::string::npos;
    };
    bool there = may_be_weights(base_);
    for (const auto& item : fs::directory_iterator(base_, error)) there = there || may_be_weights(item.path());
    if (there || data::is_gguf_file(base_))
        BaseWeights::from_files(base_, config_);
    else
        out_ << "note: there are no weights beside config.json; the plan is made from it alone\n";
}

void Run::announce_plan() {
    ModelSettings settings = settings_from(o_, config_);
    trace_steps_ = parse_trace_steps(o_.trace_steps);
    check_paths();
    prepare_sample(settings);
    note_settings(settings);
    if (o_.plan && !o_.from_scratch) check_weights();
    out_ << describe(config_) << "\n";
    device_ = std::make_unique<Device>(DeviceOptions{.threads = o_.threads, .budget_bytes = o_.offload.budget_bytes()});
    const MemoryAccount& account = device_->memory();
    layout_ = make_layout(config_, settings, o_.offload, account.reserved_bytes(), account.budget_bytes());
    if (!o_.offload.num_slots.empty() && o_.offload.num_slots != "auto" && !layout_->ring.streamed().empty() &&
        settings.num_slots > layout_->ring.slots())
        out_ << "note: --num-slots " << o_.offload.num_slots << " is more than the "
             << data::counted(layout_->ring.streamed().size(), "streamed layer") << "; the ring has "
             << layout_->ring.slots() << " slots and holds every one\n";
    if (o_.offload.layer_offloading && layout_->ring.streamed().empty())
        out_ << "warning: --layer-offloading has nothing to stream: "
             << (layout_->resident_frozen.empty() ? "no layer is frozen" : "every frozen layer is kept resident")
             << "; training goes on resident\n";
    out_ << "trains " << count_text(layout_->trained.parameter_count()) << " parameters in "
         << layout_->trained.tensors().size() << " tensors on " << device_->name() << " (" << kPrecision << ")\n";
    if (o_.plan && !o_.train_data.empty()) {
        open_rows();
        out_ << "data: " << data::counted(data_.train->rows(), "row") << " of "
             << count_text(static_cast<uint64_t>(o_.sequence_len)) << " tokens to train on, "
             << (data_.val ? count_text(data_.val->rows()) + " to evaluate on, " : "")
             << data::counted(static_cast<size_t>(steps_), "step") << "\n";
    }
    out_ << describe_plan(*layout_, account.reserved_bytes(), account.budget_bytes());
    if (const size_t free_bytes = device_->available_bytes(); account.budget_bytes() > free_bytes && free_bytes != 0)
        out_ << "note: the budget is more than the " << memory_text(free_bytes) << " that the GPU has free now\n";
    if (!o_.from_scratch && data::is_gguf_file(base_))
        out_ << "base model\n  " << describe_gguf(data::GgufFile(base_), config_, sizeof(real)) << "\n";
    out_ << std::flush;
}

// What is allowed, and may yet not be what was meant.
void Run::note_settings(const ModelSettings& settings) const {
    for (const auto& note : o_.notes) out_ << "note: " << note << "\n";
    if (settings.lora)
        for (const auto& note : check_lora_flags(o_, *settings.lora, config_)) out_ << "note: " << note << "\n";
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

// The rows and the number of steps, with all that can be wrong about them.
void Run::open_rows() {
    data_ = open_data(o_, base_, config_, out_, stop_);
    if (data_.val) check_has_targets(*data_.val);
    steps_ = total_steps(o_, data_.train->rows());
    if (!o_.trace.empty() && trace_steps_.first > steps_)
        throw std::runtime_error("--trace-steps " + o_.trace_steps + " begins after the run's last step, " +
                                 std::to_string(steps_) + "; name steps of the run");
}

void Run::load() {
    const MemoryAccount& account = device_->memory();
    check_budget(*layout_, account.reserved_bytes(), account.budget_bytes());
    check_available(*layout_, account.reserved_bytes(), device_->available_bytes());
    check_host_memory(*layout_, available_host_bytes());
    check_address_space(*layout_, free_address_bytes(), device_->pool().size());
    open_rows();
    // All that can be wrong with the base is found before the run directory is touched.
    weights_ = o_.from_scratch ? BaseWeights::random(o_.seed, config_) : BaseWeights::from_files(base_, config_);
    if (!layout_->settings.lora) config_json_ = config_json_for(base_, config_, DType::f32);
    companions_ = layout_->settings.lora ? tokenizer_files_of(base_) : companions_of(base_);
    make_output_dir();
    load_model();
}

void Run::make_output_dir() {
    output_dir_ = o_.output_dir;
    std::error_code error;
    for (fs::path p = fs::absolute(output_dir_); !fs::exists(p, error) && p.has_relative_path(); p = p.parent_path())
        made_directories_.push_back(p);
    fs::create_directories(output_dir_, error);
    if (error || !fs::is_directory(output_dir_))
        throw std::runtime_error("--output-dir " + output_dir_.string() +
                                 ": cannot be made: " + (error ? error.message() : "a file is in the way"));
}

// A run that ends before it has anything to write leaves none behind.
void Run::remove_empty_directories() {
    std::error_code error;
    for (const fs::path& directory : made_directories_)
        if (fs::is_directory(directory, error)) fs::remove(directory, error);  // only while it is empty
}

// The directory is there. What is loaded goes into memory alone.
void Run::load_model() {
    lock_ = data::DirectoryLock(output_dir_);
    data::remove_stale_temporaries(output_dir_);
    if (o_.micro_batch_size > static_cast<int64_t>(data_.train->rows()))
        out_ << "note: a micro-batch of " << o_.micro_batch_size << " rows takes the " << data_.train->rows()
             << " rows of --train-data several times over\n";
    require_own_directory(o_, companions_);
    require_own_log(o_);
    require_own_trace(o_);
    state_.identity = identity_of(o_, *layout_, steps_, *data_.train);
    state_.samples_per_step =
        static_cast<uint64_t>(o_.micro_batch_size) * static_cast<uint64_t>(o_.gradient_accumulation_steps);
    state_.base_fingerprint = weights_->fingerprint(config_);
    nothing_left_ = came_to_its_end();
    if (nothing_left_) return;

    const Clock::time_point start = Clock::now();
    Model::Options options;
    options.seed = o_.seed;
    options.stop = stop_;
    Clock::time_point told = start;
    options.progress = [&](size_t done, size_t total) {
        if (data::seconds_since(told) < 2 && done != total) return;
        if (done == total && data::seconds_since(start) < 2) return;
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
    out_ << "loaded in " << format_text("%.1f", data::seconds_since(start)) << " s; " << model_->offload().report()
         << "\n"
         << std::flush;
    if (!layout_->ring.streamed().empty()) out_ << "host memory: " << model_->slabs().report() << "\n";
    if (!layout_->ring.streamed().empty()) link_gbps_ = measure_link_gbps(*model_);
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
    if (data_.val) {
        const data::TokenFile& file = data_.val->file();
        eval_set = file.path().filename().string() + ", " + std::to_string(data_.val->rows()) + " rows";
        // Rows held out of --train-data follow from that, whose content is part of the run's identity.
        if (!o_.val_data.empty()) eval_set += format_text(", %016" PRIx64, file.content_hash());
    }
    evaluations_adopted_ = state_.eval_set == eval_set;
    if (!evaluations_adopted_) state_.first_eval = state_.best_eval = std::nullopt;
    state_.eval_set = eval_set;
    if (!state_.best_eval) return;
    const fs::path here = checkpoint_path(output_dir_, state_.best_eval->step);
    if (fs::exists(here)) state_.best_checkpoint = here.string();
    evaluations_adopted_ = evaluations_adopted_ && fs::exists(state_.best_checkpoint);
    if (!evaluations_adopted_) state_.best_eval = std::nullopt;
}

// None: the run begins at its beginning.
std::optional<fs::path> Run::checkpoint_to_resume() const {
    if (o_.resume_from_checkpoint.empty()) return std::nullopt;
    return o_.resume_from_checkpoint == "last" ? last_checkpoint(output_dir_) : fs::path(o_.resume_from_checkpoint);
}

void Run::take_state(TrainerState state, const fs::path& from) {
    if (state.base_fingerprint.empty())
        out_ << "note: " << from.string()
             << " does not say which base model it was made on (an earlier version wrote it); this run takes "
                "--base-model to be it\n";
    state.base_fingerprint = state_.base_fingerprint;
    state_ = std::move(state);
    if (state_.step > steps_)
        throw std::runtime_error(from.string() + ": is of step " + std::to_string(state_.step) + ", and this run has " +
                                 std::to_string(steps_));
    adopt_checkpoint(from);
}

// Whether all of the result's files are there, those that tools read beside the weights too.
bool Run::result_is_whole() const {
    std::error_code error;
    const auto there = [&](const fs::path& name) { return fs::exists(output_dir_ / name.filename(), error); };
    return there(result_file()) && there(layout_->settings.lora ? kAdapterConfigFile : kModelConfigFile) &&
           std::all_of(companions_.begin(), companions_.end(), there);
}

// Whether the run that is resumed here is over, with all that this command asks for: result, last evaluation, sample.
// Its checkpoint is read and compared all the same.
bool Run::came_to_its_end() {
    const auto from = checkpoint_to_resume();
    std::error_code error;
    if (!from || !fs::equivalent(*from, checkpoint_path(output_dir_, steps_), error) || !result_is_whole() ||
        !log_tells_end(log_path(o_), steps_, data_.val != nullptr, sample_request()))
        return false;
    const TrainerState wanted = state_;
    take_state(read_checkpoint(*from, *layout_, state_).state, *from);
    adopt_evaluations();
    if (evaluations_adopted_) return true;
    state_ = wanted;
    saved_step_ = -1;
    return false;
}

void Run::restore() {
    if (const auto from = checkpoint_to_resume()) {
        take_state(load_checkpoint(*from, *model_, state_), *from);
        out_ << "resumed from " << from->string() << " after step " << state_.step << "\n";
    } else if (!o_.resume_from_checkpoint.empty()) {
        out_ << "note: " << output_dir_.string() << " holds no checkpoint yet; the run starts at its beginning\n";
    }
    first_step_ = state_.step;
    adopt_evaluations();
    log_ = RunLog(log_path(o_), o_.resume_from_checkpoint.empty() ? -1 : state_.step, [&] { require_own_log(o_); });
    data::write_file_atomically(output_dir_ / "config.toml", run_config_text(o_, layout_->settings.lora));
    const char* const offload =
        layout_->ring.streamed().empty() ? (o_.offload.layer_offloading ? "inactive" : "off") : "active";
    log_.write({{"event", "start"},
                {"step", state_.step},
                {"max_steps", steps_},
                {"output_dir", way_to_run(log_path(o_), output_dir_)},
                {"model", describe(config_)},
                {"device", device_->name()},
                {"precision", kPrecision},
                {"trained_parameters", layout_->trained.parameter_count()},
                {"offload", offload},
                {"streamed_layers", layout_->ring.streamed().size()},
                {"slots", layout_->ring.slots()},
                {"slot_bytes", layout_->ring.slot_bytes()},
                {"num_prefetch", layout_->settings.num_prefetch},
                {"recompute", layout_->settings.recompute == Recompute::block ? "block" : "none"},
                {"planned_device_bytes", device_->memory().reserved_bytes() + layout_->device_bytes()},
                {"host_slab_bytes", model_->host_slab_bytes()}});
}

}  // namespace slab::train
