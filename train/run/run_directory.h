// Whether the files that a run would replace are its own.
//
// A directory is the run's own if it holds the checkpoint that the run resumes from. In any other directory nothing may
// lie that the run would replace. A start without a checkpoint leaves two files that are allowed: a run's config.toml
// and a log.
//
// Log and trace name their run by the relative path from their directory to the run's ("." or "../run"), so that both
// can be moved together. A log or trace outside the run directory is continued only by resuming the run that it names.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "train/files/adapter_config.h"
#include "train/files/model_directory.h"
#include "train/run/options.h"
#include "train/spec/lora.h"

namespace slab::train {

inline constexpr char kRunConfigFile[] = "config.toml";

// Where the log goes: --log, or log.jsonl in --output-dir.
std::filesystem::path log_path(const TrainOptions& options);

// Checks --log (or the log in --output-dir) and --trace. They must differ from each other, from the data and from the
// other files that the run writes. A file at the log's place must be a log. companions: the base's files that are
// copied beside the result. The directory need not exist. Throws data::UserError.
void check_side_files(const TrainOptions& options, const std::vector<Companion>& companions);

// The directory exists. Throws data::UserError that names a file in it which is not this run's own.
void require_own_directory(const TrainOptions& options, const std::vector<Companion>& companions);

// Relative path from the directory of the log or trace `file` to its run's directory.
std::string path_to_run(const std::filesystem::path& file, const std::filesystem::path& output_dir);

// Throws data::UserError if the log, or the trace, that exists belongs to another run.
void require_own_log(const TrainOptions& options);
void require_own_trace(const TrainOptions& options);

// The content of config.toml: a first line that marks it as a run's, options.config_toml, and with --adapter-in the
// settings of its adapter.
std::string run_config_text(const TrainOptions& options, const std::optional<LoraSettings>& lora);

}  // namespace slab::train
