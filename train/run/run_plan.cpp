// Flags and paths are checked before the table of memory is printed, so that an error stands where a user looks.
#include "train/run/run_plan.h"

#include <algorithm>
#include <cmath>
#include <ostream>

#include "data/base/display.h"
#include "data/base/error.h"
#include "data/base/local_time.h"
#include "data/gguf/gguf.h"
#include "data/hub_cache.h"
#include "train/files/base_config.h"
#include "train/files/base_tokenizer.h"
#include "train/files/generation_config.h"
#include "train/files/gguf_config.h"
#include "train/files/model_directory.h"
#include "train/model/memory_plan.h"
#include "train/run/checkpoint.h"
#include "train/run/flag_table.h"
#include "train/run/idle_flags.h"
#include "train/run/rank_team.h"
#include "train/run/reply_ends.h"
#include "train/run/run_directory.h"
#include "train/run/run_setup.h"
#include "train/run/session.h"
#include "train/run/slab_choice.h"
#include "train/run/trace_file.h"
#include "train/spec/text.h"

namespace slab::train {

namespace fs = std::filesystem;

namespace {

void check_trace_flag(const TrainOptions& flags) {
    if (flags.trace.empty()) return;
    check_trace_file(flags.trace);
    const auto folder_of = [](const fs::path& file) { return fs::weakly_canonical(fs::absolute(file)).parent_path(); };
    const fs::path folder = folder_of(flags.trace);  // may be the run directory, which is yet to be made
    if (!fs::is_directory(folder) && folder != folder_of(fs::path(flags.output_dir) / "trace"))
        throw data::UserError(
            {.subject = "--trace " + flags.trace, .given = "the directory it shall lie in does not exist"});
}

void check_paths(const TrainOptions& flags, const fs::path& base_model) {
    for (const auto& [flag, file] : {std::pair{"--train-data", flags.train_data}, {"--val-data", flags.val_data}})
        if (std::error_code error; !file.empty() && !fs::exists(file, error))
            throw data::UserError({.subject = std::string(flag) + " " + file,
                                   .given = error ? error.message() : "no such file",
                                   .wanted = "a text, records (*.jsonl) or a token file (*.bin)"});
    check_side_files(flags, companions_of(base_model));
    check_trace_flag(flags);
    std::error_code error;
    const fs::path base = fs::is_directory(base_model, error) ? base_model : base_model.parent_path();
    if (!flags.output_dir.empty() && fs::equivalent(flags.output_dir, base.empty() ? "." : base, error))
        throw data::UserError({.subject = "--output-dir " + flags.output_dir,
                               .given = "is the base model's own directory, whose files a run must not replace",
                               .wanted = "another directory"});
}

// Refuses weights whose headers a run would refuse at once. A config.json alone can be planned for.
void check_weights(const fs::path& base, const ModelConfig& config, std::ostream& out) {
    std::error_code error;
    const auto may_be_weights = [](const fs::path& file) {
        const std::string name = file.filename().string();
        return name.ends_with(".gguf") || name.starts_with("pytorch_model") ||
               name.find(".safetensors") != std::string::npos;
    };
    bool there = may_be_weights(base);
    for (const auto& item : fs::directory_iterator(base, error)) there = there || may_be_weights(item.path());
    if (there || data::is_gguf_file(base))
        BaseWeights::from_files(base, config);
    else
        out << "note: there are no weights beside config.json; the plan is made from it alone\n";
}

// Settings that are allowed, and may yet not be what was meant.
void note_settings(const TrainOptions& flags, const ModelConfig& config, const ModelSettings& settings,
                   std::ostream& out) {
    for (const auto& note : flags.notes) out << "note: " << note << "\n";
    if (settings.lora)
        for (const auto& note : check_lora_flags(flags, *settings.lora, config)) out << "note: " << note << "\n";
    for (const auto& notices : {config.notices, config.weight_notices})
        for (const auto& notice : notices) out << "note: " << notice << "\n";
    if (flags.sequence_len > config.max_positions && config.max_positions > 0)
        out << "note: --sequence-len " << flags.sequence_len << " is beyond the " << config.max_positions
            << " positions that the base model was made for (max_position_embeddings)\n";
    if (flags.from_scratch && flags.adapter == "lora")
        out << "warning: --from-scratch with --adapter lora: the adapter will fit random weights that are saved "
               "nowhere (--seed "
            << flags.seed << " draws them again)\n";
}

// The options with the micro-batches of all ranks in a step. A run that is resumed keeps those of its checkpoint,
// whatever the number of ranks, unless the command line gives them.
TrainOptions for_all_ranks(TrainOptions o, size_t ranks) {
    const auto from = o.resume_from_checkpoint.empty()     ? std::nullopt
                      : o.resume_from_checkpoint == "last" ? last_checkpoint(o.output_dir)
                                                           : std::optional(fs::path(o.resume_from_checkpoint));
    const bool given =
        is_given(o, "gradient-accumulation-steps") && !o.given.at("gradient-accumulation-steps").in_config_file;
    const std::optional<int> then = from && !given ? micro_batches_of(*from) : std::nullopt;
    o.gradient_accumulation_steps = then ? *then : o.gradient_accumulation_steps * static_cast<int>(ranks);
    return o;
}

void note_offload(const OffloadFlags& flags, const ModelLayout& layout, std::ostream& out) {
    if (!flags.num_slots.empty() && flags.num_slots != "auto" && !layout.ring.streamed().empty() &&
        layout.settings.num_slots > layout.ring.slots())
        out << "note: --num-slots " << flags.num_slots << " is more than the "
            << data::counted(layout.ring.streamed().size(), "streamed layer") << "; the ring has "
            << layout.ring.slots() << " slots and holds every one\n";
    if (flags.layer_offloading && layout.ring.streamed().empty())
        out << "warning: --layer-offloading has nothing to stream: "
            << (layout.resident_frozen.empty() ? "no layer is frozen" : "every frozen layer is kept resident")
            << "; training goes on resident\n";
}

// Of the checkpoint that is resumed, else now. Checkpoints of earlier versions do not say it.
std::tm first_start_of(const TrainOptions& flags) {
    const std::string& from = flags.resume_from_checkpoint;
    std::optional<fs::path> checkpoint;
    if (!from.empty()) checkpoint = from == "last" ? last_checkpoint(flags.output_dir) : fs::path(from);
    const auto start = checkpoint ? data::local_time_of(first_start_in(*checkpoint)) : std::nullopt;
    return start.value_or(data::local_time_now());
}

// Who works, and what a step is divided into.
void note_ranks(const RunPlan& plan, std::ostream& out) {
    std::string gpus;
    for (const int gpu : plan.gpus) gpus += (gpus.empty() ? "" : ", ") + std::to_string(gpu);
    out << data::counted(plan.gpus.size(), "rank");
    if (kBackend == Backend::cuda) out << " on GPU " << gpus;
    const uint64_t M = static_cast<uint64_t>(plan.flags.gradient_accumulation_steps);
    const uint64_t in_round = plan.gpus.size() * static_cast<uint64_t>(plan.flags.exchange_every);
    const double gradient_bytes = static_cast<double>(plan.layout.trained.total_elems() * sizeof(float));
    const auto micro_batches = [](uint64_t n) {
        return std::to_string(n) + (n == 1 ? " micro-batch" : " micro-batches");
    };
    out << ": a step has " << micro_batches(M) << " in " << data::counted((M + in_round - 1) / in_round, "round")
        << "; a round exchanges " << memory_text(static_cast<size_t>(gradient_bytes)) << " of gradients\n";
    if (M % in_round != 0)
        out << "note: the last round of a step has work for " << micro_batches(M % in_round) << " of " << in_round
            << "; ranks without one wait\n";
    if (!plan.trains_adapter() && plan.ranks() > 1)
        out << "note: without an adapter the bits of a run depend on the number of ranks\n";
    int exponent;
    if (kBackend == Backend::cuda && sizeof(real) == sizeof(float) && plan.trains_adapter() && plan.ranks() > 1 &&
        std::frexp(plan.layout.settings.lora->scale(), &exponent) != 0.5f)
        out << "note: in float32 on GPUs the last bits depend on whether there is one rank, unless lora-alpha / lora-r "
               "is "
               "a power of two\n";
}

}  // namespace

RunPlan::RunPlan(const TrainOptions& options, data::StopToken stop, std::ostream& out)
    : gpus(parse_gpus(options.gpus)),
      flags(for_all_ranks(options, gpus.size())),
      base(data::find_model("--base-model", options.base_model)),
      config(read_base_config(base, options.from_scratch ? BaseFiles::config_only : BaseFiles::config_and_weights)),
      first_start(first_start_of(options)) {
    ModelSettings settings = settings_from(flags, config);
    trace_steps = parse_trace_steps(flags.trace_steps);
    check_paths(flags, base);
    sample = plan_sample(flags, base, config, first_start);
    settings.cache_positions = sample.positions;
    settings.ranks = ranks();
    settings.exchange_every = flags.exchange_every;
    settings.transport_bytes = check_transport(flags.transport, gpus);
    if (!flags.from_scratch) settings.stored_types = stored_types_of(base, config);
    const SlabChoice slabs = choose_slab_format(flags, settings.stored_types, data::is_gguf_file(base));
    settings.slab_format = slabs.format;
    note_settings(flags, config, settings, out);
    for (const std::string& note : slabs.notes) out << "note: " << note << "\n";
    if (flags.plan && !flags.from_scratch) check_weights(base, config, out);
    out << describe(config) << "\n";
    devices = open_devices(flags.threads, flags.offload, gpus);
    Device& device = tightest_device();
    layout = plan_layout(device, config, settings, flags.offload);
    fits_ = fits_budget(device, layout);
    note_offload(flags.offload, layout, out);
    for (const std::string& note : plain_tensor_notes(layout)) out << "note: " << note << "\n";
    out << "trains " << count_text(layout.trained.parameter_count()) << " parameters in "
        << layout.trained.tensors().size() << " tensors on " << device.name() << " (" << kPrecision << ")\n";
    if (in_team()) note_ranks(*this, out);
    if (flags.plan && !flags.train_data.empty()) {
        open_rows(stop, out);
        out << "data: " << data::counted(data_sets.train->rows(), "row") << " of "
            << count_text(static_cast<uint64_t>(flags.sequence_len)) << " tokens to train on, "
            << (data_sets.val ? count_text(data_sets.val->rows()) + " to evaluate on, " : "")
            << data::counted(static_cast<size_t>(steps), "step") << "\n";
    }
    print_layout(out);
}

Device& RunPlan::tightest_device() const {
    return **std::min_element(devices.begin(), devices.end(), [](const auto& a, const auto& b) {
        return a->memory().budget_bytes() < b->memory().budget_bytes();
    });
}

void RunPlan::print_layout(std::ostream& out) const {
    Device& device = tightest_device();
    const MemoryAccount& account = device.memory();
    if (ranks() > 1) out << "of each rank:\n";
    out << describe_plan(layout, account.reserved_bytes(), account.budget_bytes());
    if (const size_t free_bytes = device.available_bytes(); account.budget_bytes() > free_bytes && free_bytes != 0)
        out << "note: the budget is more than the " << memory_text(free_bytes) << " that the GPU has free now\n";
    if (!flags.from_scratch && data::is_gguf_file(base))
        out << "base model\n  " << describe_gguf(data::GgufFile(base), config, sizeof(real), layout.is_encoded())
            << "\n";
    out << std::flush;
}

// The rows and the number of steps, with all that can be wrong about them.
void RunPlan::open_rows(data::StopToken stop, std::ostream& out) {
    data_sets = open_data(flags, base, config, first_start, out, stop);
    steps = total_steps(flags, data_sets.train->rows());
    if (!flags.trace.empty() && trace_steps.first > steps)
        throw data::UserError({.subject = "--trace-steps " + flags.trace_steps,
                               .given = "begins after the run's last step, " + std::to_string(steps),
                               .wanted = "steps of the run"});
}

void RunPlan::open_inputs(data::StopToken stop, std::ostream& out) {
    check_memory(tightest_device(), layout);
    if (ranks() > 1) check_host_memory_of_ranks(layout, available_host_bytes());
    open_rows(stop, out);
    weights = flags.from_scratch ? BaseWeights::random(flags.seed, config) : BaseWeights::from_files(base, config);
    if (!trains_adapter()) config_json = config_json_for(base, config, DType::f32);
    companions = trains_adapter() ? tokenizer_files_of(base) : companions_of(base);
    stop_where_replies_end(out);
}

// The model learns to end its replies as the data does. generation_config.json beside the result then says so.
void RunPlan::stop_where_replies_end(std::ostream& out) {
    std::unique_ptr<data::Tokenizer> tokenizer;
    const auto open_tokenizer = [&]() -> const data::Tokenizer* {
        try {
            tokenizer = open_base_tokenizer(base.string(), config);
        } catch (const data::UserError&) {  // token files need no tokenizer
        }
        return tokenizer.get();
    };
    const std::vector<int64_t> known = generation_ends(base);
    const std::vector<ReplyEnd> ends = reply_ends(data_sets.train->file(), known, open_tokenizer);
    if (ends.empty()) return;
    std::string trained, stops;
    std::vector<int64_t> more;
    for (const ReplyEnd& end : ends) {
        trained += (trained.empty() ? "" : ", ") + data::printable_text(end.text) + " (" + std::to_string(end.id) + ")";
        more.push_back(end.id);
    }
    for (const int64_t id : known)
        stops +=
            (stops.empty() ? "" : ", ") +
            (id <= UINT32_MAX ? data::printable_text(tokenizer->decode({{static_cast<uint32_t>(id)}}, true)) : "") +
            " (" + std::to_string(id) + ")";
    out << "note: the data ends replies in " << trained << ", and the base stops generating at "
        << (stops.empty() ? "no token" : stops) << "; " << kGenerationConfigFile << " beside the result stops at "
        << (stops.empty() ? "the former" : "both") << "\n";
    stop_at(companions, base, more);
}

fs::path RunPlan::result_file() const {
    return output_dir() / (trains_adapter() ? kAdapterWeightsFile : kModelWeightsFile);
}

}  // namespace slab::train
