// A checkpoint is read and compared as a whole before anything of it reaches the model.
#include "train/run/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <climits>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "data/base/atomic_file.h"
#include "data/base/checksum.h"
#include "data/base/error.h"
#include "data/base/json_file.h"
#include "train/files/adapter_files.h"
#include "train/files/adapter_record.h"
#include "train/files/model_directory.h"
#include "train/files/safetensors.h"
#include "train/files/safetensors_writer.h"
#include "train/files/transpose.h"
#include "train/run/identity.h"
#include "train/run/run_setup.h"
#include "train/spec/text.h"
#include "train/spec/trained_table.h"

namespace slab::train {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* kPrefix = "checkpoint-";
constexpr const char* kStateFile = "trainer_state.json";
constexpr const char* kOptimizerFile = "optimizer.safetensors";

std::vector<std::pair<int64_t, fs::path>> checkpoints_in(const fs::path& output_dir) {
    std::vector<std::pair<int64_t, fs::path>> found;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(output_dir, ignored))
        if (const auto step = step_of_checkpoint(entry.path()); step && fs::exists(entry.path() / kStateFile))
            found.emplace_back(*step, entry.path());
    std::sort(found.begin(), found.end());
    return found;
}

NamedWeights from_device(const char* key_prefix, TrainedSet set, Model& model, const SaveContext& context) {
    return {key_prefix, [set, &model, &context](size_t index, float* dst) {
                if (context.alive) context.alive();
                model.trained().read_tensor(set, index, dst, model.compute());
            }};
}

// A frozen tensor could not be read from the base.
struct BaseUnreadable : data::IoError {
    using data::IoError::IoError;
};

void read_frozen(BaseWeights& weights, const TensorSpec& spec, const TensorPart& part, float* dst, ThreadPool& pool) {
    try {
        weights.read_part(spec, part, dst, pool);
    } catch (const data::IoError& error) {
        throw BaseUnreadable(error.what());
    }
}

// A whole Hugging Face model in float32, tensor by tensor: trained ones as they are now, frozen ones from the base.
void save_full_model(const fs::path& directory, Model& model, const SaveContext& context) {
    const ModelLayout& layout = context.layout;
    SafetensorsWriter writer;
    std::vector<float> turned;  // the tensor at hand in our orientation, where it is stored in the other
    const auto add = [&](const Placed& tensor) {
        const TensorSpec& spec = tensor.spec;
        for (size_t p = 0; p < spec.parts.size(); ++p)
            writer.add(spec.parts[p].key, DType::f32, stored_shape(spec, spec.parts[p]),
                       [&, spec = &spec, first = tensor.in_trained, p](std::byte* dst) {
                           if (context.alive) context.alive();
                           const TensorPart& part = spec->parts[p];
                           float* const stored = reinterpret_cast<float*>(dst);  // [stored_shape(*spec, part)]
                           if (spec->transposed) turned.resize(part.rows * spec->cols);
                           float* const ours = spec->transposed ? turned.data() : stored;  // [part.rows, spec->cols]
                           if (first)
                               model.trained().read_tensor(TrainedSet::weights, *first + p, ours, model.compute());
                           else
                               read_frozen(context.weights, *spec, part, ours, model.compute().device().pool());
                           if (spec->transposed) transpose(ours, part.rows, spec->cols, stored);
                       });
    };
    for (const TensorGroup& group : layout.groups)
        for (const Placed& tensor : group.tensors) add(tensor);
    writer.write(directory / kModelWeightsFile);
    data::write_file_atomically(directory / kModelConfigFile, context.config_json);
    const CopyReport report = copy_into(directory, context.companions);
    for (const std::string& why : report.left_out) context.notes << "note: " << why << "\n";
}

// best_*: the transformers Trainer's names. A loss that is not finite is not written, and forgotten by resuming.
// file_hashes: of the files that belong to this state, by name.
json state_json(const TrainerState& state, const json& file_hashes) {
    const auto step_of_eval = [](const auto& e) { return e && std::isfinite(e->loss) ? json(e->step) : json(); };
    const auto loss_of_eval = [](const auto& e) { return e && std::isfinite(e->loss) ? json(e->loss) : json(); };
    return {{"eval_set", state.eval_set},
            {"first_eval_step", step_of_eval(state.first_eval)},
            {"first_eval_loss", loss_of_eval(state.first_eval)},
            {"best_global_step", step_of_eval(state.best_eval)},
            {"best_metric", loss_of_eval(state.best_eval)},
            {"best_model_checkpoint", state.best_eval ? json(state.best_checkpoint) : json()},
            {"global_step", state.step},
            {"next_sample", state.next_sample},
            {"applied_updates", state.applied_updates},
            {"bad_steps_in_row", state.bad_steps_in_row},
            {"identity", state.identity},
            {"base_model_fingerprint", state.base_fingerprint},
            {"first_start", state.first_start},
            {"file_hashes", file_hashes}};
}

// A count as state_json wrote it. nlohmann's own conversion would accept -1, 2.5 and true too.
int64_t read_count(const fs::path& file, const json& state, const char* key) {
    const json value = state.is_object() ? state.value(key, json()) : json();
    if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
        throw data::UserError({.subject = file.string(),
                               .given = "\"" + std::string(key) + "\" is " + data::shown(value),
                               .wanted = "a count"});
    return value.get<int64_t>();
}

// Absent in checkpoints of runs that were not evaluated.
std::optional<Evaluation> read_evaluation(const fs::path& file, const json& state, const char* step_key,
                                          const char* loss_key) {
    if (state.value(step_key, json()).is_null() && state.value(loss_key, json()).is_null()) return std::nullopt;
    const json loss = state.value(loss_key, json());
    if (!loss.is_number())
        throw data::UserError(
            {.subject = file.string(),
             .given = "\"" + std::string(loss_key) + "\" is " + data::shown(loss) + " beside \"" + step_key + "\"",
             .wanted = "a number"});
    const int64_t step = read_count(file, state, step_key);
    if (step > state.at("global_step").get<int64_t>())
        throw data::UserError(
            {.subject = file.string(),
             .given = "\"" + std::string(step_key) + "\" is " + std::to_string(step) + ", beyond \"global_step\""});
    return Evaluation{step, loss.get<double>()};
}

std::string read_text(const fs::path& file, const json& state, const char* key) {
    const json text = state.value(key, json());
    if (!text.is_null() && !text.is_string())
        throw data::UserError({.subject = file.string(),
                               .given = "\"" + std::string(key) + "\" is " + data::shown(text),
                               .wanted = "a text"});
    return text.is_null() ? "" : text.get<std::string>();
}

TrainerState read_state(const fs::path& file) {
    const json j = data::read_json_file(file);
    TrainerState state;
    state.step = read_count(file, j, "global_step");
    state.next_sample = static_cast<uint64_t>(read_count(file, j, "next_sample"));
    const int64_t updates = read_count(file, j, "applied_updates"), bad = read_count(file, j, "bad_steps_in_row");
    if (updates > state.step || bad > state.step || updates > INT_MAX)
        throw data::UserError({.subject = file.string(),
                               .given = "\"applied_updates\" " + std::to_string(updates) +
                                        " and \"bad_steps_in_row\" " + std::to_string(bad) +
                                        " must not exceed \"global_step\" " + std::to_string(state.step)});
    state.applied_updates = static_cast<int>(updates);
    state.bad_steps_in_row = static_cast<int>(bad);
    if (const auto named = step_of_checkpoint(file.parent_path()); named && *named != state.step)
        throw data::UserError(
            {.subject = file.string(),
             .given = "\"global_step\" is " + std::to_string(state.step) + ", which is not the directory's"});
    state.eval_set = read_text(file, j, "eval_set");
    state.first_eval = read_evaluation(file, j, "first_eval_step", "first_eval_loss");
    state.best_eval = read_evaluation(file, j, "best_global_step", "best_metric");
    state.best_checkpoint = read_text(file, j, "best_model_checkpoint");
    state.base_fingerprint = read_text(file, j, "base_model_fingerprint");
    state.first_start = read_text(file, j, "first_start");
    try {
        state.identity = j.at("identity").get<std::map<std::string, std::string>>();
    } catch (const json::exception&) {
        throw data::UserError(
            {.subject = file.string(), .given = "\"identity\" is not the flags of a run", .wanted = "texts by name"});
    }
    return state;
}

std::string hash_text(const fs::path& file) {
    return format_text("%016" PRIx64, data::file_checksum(file));
}

void write_state(const fs::path& directory, Model& model, TrainerState state, const json& file_hashes) {
    state.applied_updates = model.trained().read_applied_updates(model.compute());
    data::write_file_atomically(directory / kStateFile, state_json(state, file_hashes).dump(2) + "\n");
}

// By name; null in checkpoints of earlier versions.
json read_file_hashes(const fs::path& directory) {
    return data::read_json_file(directory / kStateFile).value("file_hashes", json());
}

// Throws unless the file has the checksum in the state beside it, if there is one.
void check_file_hash(const fs::path& file) {
    const json hashes = read_file_hashes(file.parent_path());
    if (hashes.is_null()) return;
    const json wanted = hashes.is_object() ? hashes.value(file.filename().string(), json()) : json();
    const std::string hash = hash_text(file);
    if (wanted != hash)
        throw data::UserError({.subject = file.string(),
                               .given = std::string("is not what was saved with ") + kStateFile +
                                        " beside it: it was changed, or is another checkpoint's. Its hash is \"" +
                                        hash + "\"",
                               .wanted = data::shown(wanted),
                               .hint = "bring the file back, or resume from another checkpoint"});
}

// AdamW takes the root of averages of squares.
void check_not_negative(const fs::path& file, const TrainedTable& table, const std::vector<float>& exp_avg_sq) {
    size_t at = 0;
    for (const TrainedTensor& t : table.tensors())
        for (size_t i = 0; i < t.elems(); ++i, ++at)
            if (exp_avg_sq[at] < 0)
                throw data::UserError(
                    {.subject = file.string(),
                     .given = "tensor \"exp_avg_sq." + t.key + "\" holds " + format_text("%g", exp_avg_sq[at]),
                     .wanted = "averages of squares, 0 or more: the file is damaged"});
}

}  // namespace

void save_result(const fs::path& directory, Model& model, const SaveContext& context) {
    if (!context.layout.settings.lora) return save_full_model(directory, model, context);
    write_trained(directory / kAdapterWeightsFile, context.layout.trained,
                  {from_device("", TrainedSet::weights, model, context)});
    data::write_file_atomically(
        directory / kAdapterConfigFile,
        adapter_config_json(*context.layout.settings.lora, context.layout.config, context.base_model));
    if (!context.adapter_record.empty())
        data::write_file_atomically(directory / kAdapterRecordFile, context.adapter_record);
}

void save_checkpoint(const fs::path& directory, Model& model, const SaveContext& context, TrainerState state) {
    data::AtomicDirectory staged(directory);
    const bool lora = context.layout.settings.lora.has_value();
    const char* const weights_file = lora ? kAdapterWeightsFile : kModelWeightsFile;
    try {
        save_result(staged.staging(), model, context);
    } catch (const BaseUnreadable& error) {
        write_trained(staged.staging() / weights_file, context.layout.trained,
                      {from_device("", TrainedSet::weights, model, context)});
        context.notes << "note: " << directory.filename().string()
                      << " has the trained tensors alone, which is enough to go on from, and is no whole model: "
                      << error.what() << "\n";
    }
    write_trained(staged.staging() / kOptimizerFile, context.layout.trained,
                  {from_device("exp_avg.", TrainedSet::exp_avg, model, context),
                   from_device("exp_avg_sq.", TrainedSet::exp_avg_sq, model, context)});
    json file_hashes;
    for (const char* name : {weights_file, kOptimizerFile}) file_hashes[name] = hash_text(staged.staging() / name);
    write_state(staged.staging(), model, std::move(state), file_hashes);
    staged.commit(data::Existing::replace);  // the run's own name
}

void save_state(const fs::path& directory, Model& model, TrainerState state) {
    write_state(directory, model, std::move(state), read_file_hashes(directory));
}

CheckpointContent read_checkpoint(const fs::path& directory, const ModelLayout& layout, const TrainerState& run) {
    require_checkpoint(directory);
    CheckpointContent content;
    TrainerState& state = content.state;
    state = read_state(directory / kStateFile);
    const std::string file = (directory / kStateFile).string();
    if (const std::string differences = identity_differences(state.identity, run.identity); !differences.empty())
        throw data::UserError(
            {.subject = file,
             .given = differences,
             .hint = "resume with the same, or start a new run (--adapter-in takes over an adapter)"});
    if (!state.base_fingerprint.empty() && state.base_fingerprint != run.base_fingerprint)
        throw data::UserError(
            {.subject = file,
             .given =
                 "the run was made on another base model than --base-model now names, with other weights or another "
                 "config.json (fingerprint " +
                 state.base_fingerprint + ", this one has " + run.base_fingerprint + ")",
             .hint = "resume with the base of then, or start a new run (--adapter-in takes over an adapter)"});
    state.samples_per_step = run.samples_per_step;
    if (state.next_sample % run.samples_per_step != 0 ||
        state.next_sample / run.samples_per_step != static_cast<uint64_t>(state.step))
        throw data::UserError({.subject = file,
                               .given = "\"next_sample\" is " + std::to_string(state.next_sample),
                               .wanted = std::to_string(run.samples_per_step) +
                                         " samples (micro-batch x accumulation) for each of \"global_step\" " +
                                         std::to_string(state.step) + " steps"});
    const TrainedTable& table = layout.trained;
    const bool lora = layout.settings.lora.has_value();
    const fs::path weights_file = directory / (lora ? kAdapterWeightsFile : kModelWeightsFile);
    content.weights = read_trained(weights_file, table, "", !lora);
    content.exp_avg = read_trained(directory / kOptimizerFile, table, "exp_avg.");
    content.exp_avg_sq = read_trained(directory / kOptimizerFile, table, "exp_avg_sq.");
    check_not_negative(directory / kOptimizerFile, table, content.exp_avg_sq);
    // Last: what is wrong with a tensor says more.
    check_file_hash(weights_file);
    check_file_hash(directory / kOptimizerFile);
    return content;
}

TrainerState load_checkpoint(const fs::path& directory, Model& model, const TrainerState& run) {
    const CheckpointContent content = read_checkpoint(directory, model.layout(), run);
    model.trained().write_weights(content.weights, model.compute());
    model.trained().write_moments(content.exp_avg, content.exp_avg_sq, content.state.applied_updates, model.compute());
    return content.state;
}

std::optional<int> micro_batches_of(const fs::path& directory) {
    try {
        const json state = data::read_json_file(directory / kStateFile);
        const int micro_batches = std::stoi(state.at("identity").at(kMicroBatchesName).get<std::string>());
        return micro_batches > 0 ? std::optional(micro_batches) : std::nullopt;
    } catch (const std::exception&) {
        return std::nullopt;
    }
}

fs::path checkpoint_path(const fs::path& output_dir, int64_t step) {
    return output_dir / (kPrefix + std::to_string(step));
}

std::optional<int64_t> step_of_checkpoint(const fs::path& directory) {
    const std::string name = directory.filename().string();
    if (!name.starts_with(kPrefix)) return std::nullopt;
    const char* const begin = name.data() + std::string_view(kPrefix).size();
    const char* const end = name.data() + name.size();
    int64_t step = 0;
    const auto [last, error] = std::from_chars(begin, end, step);
    if (error != std::errc() || last != end || step < 0) return std::nullopt;
    return step;
}

std::optional<fs::path> last_checkpoint(const fs::path& output_dir) {
    const auto found = checkpoints_in(output_dir);
    if (found.empty()) return std::nullopt;
    return found.back().second;
}

void require_whole_checkpoints(const fs::path& output_dir) {
    const auto last = last_checkpoint(output_dir);
    const int64_t whole = last ? step_of_checkpoint(*last).value_or(-1) : -1;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(output_dir, ignored))
        if (const auto step = step_of_checkpoint(entry.path());
            step && *step > whole && !fs::exists(entry.path() / kStateFile, ignored))
            throw data::UserError(
                {.subject = entry.path().string(),
                 .given = std::string("has no ") + kStateFile +
                          ", so it is no checkpoint to go on from, and a run would replace it",
                 .hint = "bring the file back, or move " + entry.path().filename().string() + " elsewhere"});
}

void require_checkpoint(const fs::path& directory) {
    std::error_code ignored;
    if (!fs::is_directory(directory, ignored))
        throw data::UserError({.subject = directory.string(),
                               .given = "is not a checkpoint directory",
                               .wanted = "output-dir/checkpoint-N, or last"});
    if (!fs::exists(directory / kStateFile, ignored))
        throw data::UserError({.subject = (directory / kStateFile).string(),
                               .given = "does not exist, so this is no whole checkpoint",
                               .wanted = "output-dir/checkpoint-N, or last"});
}

std::string first_start_in(const fs::path& directory) {
    try {
        return read_text(directory / kStateFile, data::read_json_file(directory / kStateFile), "first_start");
    } catch (const std::exception&) {
        return "";
    }
}

std::vector<std::string> prune_checkpoints(const fs::path& output_dir, int64_t keep, const fs::path& best) {
    std::vector<std::string> left;
    if (keep <= 0) return left;
    const auto found = checkpoints_in(output_dir);
    for (size_t i = 0; i + static_cast<size_t>(keep) < found.size(); ++i) {
        if (found[i].second == best) continue;
        try {
            data::remove_directory_atomically(found[i].second);
        } catch (const std::runtime_error& error) {
            left.push_back(error.what());
        }
    }
    return left;
}

}  // namespace slab::train
