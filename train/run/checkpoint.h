// Checkpoints and the run directory: everything a run needs to go on with the same bits, written whole or not at all.
//
// output-dir/
//   checkpoint-100/   adapter_model.safetensors + adapter_config.json, or, trained in full, model.safetensors +
//                     config.json and, as the base has them, generation_config.json and tokenizer files;
//                     optimizer.safetensors (exp_avg.<key>, exp_avg_sq.<key>), trainer_state.json
//   the same again but for the last two: the final result. Here the base's tokenizer files lie beside an adapter too.
//   log.jsonl, config.toml
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "train/files/base_weights.h"
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
    // The evaluation that the run began with, and the best one of a step that has a checkpoint. Both over eval_set, a
    // name for the validation rows: losses over different rows are not compared.
    std::string eval_set;
    std::optional<Evaluation> first_eval, best_eval;
    std::string best_checkpoint;  // directory of best_eval
    // What must be the same for a resumed run to be the continuation of this one, flag by flag.
    std::map<std::string, std::string> identity;
    uint64_t samples_per_step = 1;  // micro-batch x accumulation: of the run, follows from identity and is not saved
    // BaseWeights::fingerprint of the base; empty when it was read from a checkpoint that was made before there was
    // one.
    std::string base_fingerprint;
};

// What the saved model needs beside the trained tensors.
struct SaveContext {
    const ModelLayout& layout;
    BaseWeights& weights;                           // frozen tensors, when layers are trained in full
    std::string base_model;                         // its name, for adapter_config.json
    std::string config_json;                        // of a whole model, in float32
    std::vector<std::filesystem::path> companions;  // the base's files that belong beside a whole model, copied there
    std::ostream& notes;                            // told of those that could not be copied
};

// The trained result alone into an existing directory: an adapter, or a whole Hugging Face model. Throws
// std::runtime_error, when the base has become unreadable too.
void save_result(const std::filesystem::path& directory, Model& model, const SaveContext& context);

// directory: output-dir/checkpoint-N. Appears whole or not at all. Blocks until the stream is done. When frozen tensors
// can no longer be read from the base, the checkpoint has the trained ones alone, which are all that resuming takes.
void save_checkpoint(const std::filesystem::path& directory, Model& model, const SaveContext& context,
                     TrainerState state);

// trainer_state.json alone, of a checkpoint of this step that is there already.
void save_state(const std::filesystem::path& directory, Model& model, TrainerState state);

// A checkpoint in host memory, in the packed order of the layout's table of trained tensors.
struct CheckpointContent {
    TrainerState state;
    std::vector<float> weights, exp_avg, exp_avg_sq;  // [parameter_count] each
};
// Throws std::runtime_error naming file and tensor; differences from `run`'s identity name the flag and both values,
// another base is called so, and so is a file that is not the one saved with the state. Of `run` only identity, base
// and samples_per_step are looked at.
CheckpointContent read_checkpoint(const std::filesystem::path& directory, const ModelLayout& layout,
                                  const TrainerState& run);
// The same, into the model.
TrainerState load_checkpoint(const std::filesystem::path& directory, Model& model, const TrainerState& run);

std::filesystem::path checkpoint_path(const std::filesystem::path& output_dir, int64_t step);
// The step in a checkpoint's name; -1 when the name is no checkpoint's.
int64_t step_of_checkpoint(const std::filesystem::path& directory);
// The complete checkpoint with the highest step, if there is one.
std::optional<std::filesystem::path> last_checkpoint(const std::filesystem::path& output_dir);
// Throws std::runtime_error naming a checkpoint-N, later than the last complete one, that has no trainer_state.json: a
// run would take it for none at all, and replace it. What killed saves leave has no such name.
void require_whole_checkpoints(const std::filesystem::path& output_dir);
// Throws std::runtime_error unless it is a directory with a trainer_state.json.
void require_checkpoint(const std::filesystem::path& directory);
// Removes the oldest beyond `keep` (0: keeps all), but never `best` (may be empty), which is kept besides. Returns, of
// each that could not be deleted, why: no run ends for that.
std::vector<std::string> prune_checkpoints(const std::filesystem::path& output_dir, int64_t keep,
                                           const std::filesystem::path& best);

}  // namespace slab::train
