// Checkpoints: everything that a run needs to continue with the same bits, written whole or not at all.
//
// The run directory, output-dir/, holds
//
//   checkpoint-100/   adapter_model.safetensors and adapter_config.json. Trained in full, model.safetensors,
//                     config.json and, if the base has them, generation_config.json and tokenizer files.
//                     Always optimizer.safetensors (exp_avg.<key>, exp_avg_sq.<key>) and trainer_state.json.
//                     Beside an adapter slabstream.json says which numbers it was trained on.
//   adapter or model  The result, as in a checkpoint. The base's tokenizer files lie beside an adapter too.
//   log.jsonl, config.toml
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "train/files/base_weights.h"
#include "train/files/model_directory.h"
#include "train/model/model.h"

namespace slab::train {

struct Evaluation {
    int64_t step;
    double loss;
};

struct TrainerState {
    int64_t step = 0;          // steps done
    uint64_t next_sample = 0;  // the loader's position: step x samples_per_step, skipped steps included
    int applied_updates = 0;   // AdamW's count; smaller than step when steps were skipped
    int bad_steps_in_row = 0;  // not finite, up to here
    // The run's first evaluation, and the best one of a step that has a checkpoint. Both over eval_set, a name for the
    // validation rows: losses over different rows are not compared.
    std::string eval_set;
    std::optional<Evaluation> first_eval, best_eval;
    std::string best_checkpoint;  // directory of best_eval
    // The values, by flag, that a run must share to resume this one.
    std::map<std::string, std::string> identity;
    uint64_t samples_per_step = 1;  // micro-batch x accumulation; follows from identity and is not saved
    // BaseWeights::fingerprint of the base; empty in checkpoints of earlier versions.
    std::string base_fingerprint;
    std::string first_start;  // data::local_time_text: the date that chat templates show
};

// The parts of a saved model that are not trained tensors.
struct SaveContext {
    const ModelLayout& layout;
    BaseWeights& weights;               // frozen tensors, when layers are trained in full
    std::string base_model;             // its name, for adapter_config.json
    std::string config_json;            // of a whole model, in float32
    std::vector<Companion> companions;  // files that belong beside a whole model
    std::ostream& notes;                // gets a note of each that could not be copied
    std::function<void()> alive = {};   // called for each tensor
    std::string adapter_record = {};    // text of slabstream.json beside an adapter; "": none
};

// The trained result alone into an existing directory: an adapter, or a whole Hugging Face model. Throws data::IoError
// if a file cannot be written, or the base no longer be read.
void save_result(const std::filesystem::path& directory, Model& model, const SaveContext& context);

// directory: output-dir/checkpoint-N. Appears whole or not at all. Blocks until the stream is done. If frozen tensors
// can no longer be read from the base, the checkpoint has the trained ones alone, and resuming needs no others.
void save_checkpoint(const std::filesystem::path& directory, Model& model, const SaveContext& context,
                     TrainerState state);

// Replaces trainer_state.json alone, in a checkpoint of this step.
void save_state(const std::filesystem::path& directory, Model& model, TrainerState state);

// A checkpoint in host memory, in the packed order of the layout's table of trained tensors.
struct CheckpointContent {
    TrainerState state;
    std::vector<float> weights, exp_avg, exp_avg_sq;  // [parameter_count] each
};
// Throws data::UserError naming file and tensor. A difference from `run`'s identity names the flag and both values;
// another base, and a file that was not saved with the state, are named too. Only identity, base and samples_per_step
// of `run` are read.
CheckpointContent read_checkpoint(const std::filesystem::path& directory, const ModelLayout& layout,
                                  const TrainerState& run);
// Reads a checkpoint into the model.
TrainerState load_checkpoint(const std::filesystem::path& directory, Model& model, const TrainerState& run);

// The micro-batches a step, over all ranks, of the run that made it; nothing where the file does not say. No error:
// read_checkpoint() tells what is wrong.
std::optional<int> micro_batches_of(const std::filesystem::path& directory);

std::filesystem::path checkpoint_path(const std::filesystem::path& output_dir, int64_t step);
// The step in a checkpoint's name; nothing if the name is no checkpoint's.
std::optional<int64_t> step_of_checkpoint(const std::filesystem::path& directory);
// The complete checkpoint with the highest step, if there is any.
std::optional<std::filesystem::path> last_checkpoint(const std::filesystem::path& output_dir);
// Throws data::UserError naming a checkpoint-N, later than the last complete one, without a trainer_state.json: a run
// would replace it. Killed saves leave no such name.
void require_whole_checkpoints(const std::filesystem::path& output_dir);
// TrainerState::first_start; "" where the checkpoint does not say it. Whatever else is wrong with it is said later.
std::string first_start_in(const std::filesystem::path& directory);
// Throws data::UserError unless it is a directory with a trainer_state.json.
void require_checkpoint(const std::filesystem::path& directory);
// Removes the oldest beyond `keep` (0: keeps all), but never `best` (may be empty). Returns the reason for each that
// could not be deleted: no run ends for that.
std::vector<std::string> prune_checkpoints(const std::filesystem::path& output_dir, int64_t keep,
                                           const std::filesystem::path& best);

}  // namespace slab::train
