// Whose the files are that a run would write over: its own, or another's.
//
// There is one rule. A directory is the run's own when it holds the checkpoint that the run goes on from. In any other
// nothing may lie that the run would replace, but for what a start without a checkpoint leaves: a run's config.toml,
// and a log, which says itself that it is one (run_log.h).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "train/options.h"

namespace slab::train {

// Where the log goes: --log, or log.jsonl in --output-dir.
std::filesystem::path log_path(const TrainOptions& options);

// Of --log (or the log in --output-dir) and --trace: they are neither each other nor the data, nor what else the run
// writes, and what lies at the log's place is a log. companions: the base's files that are copied beside the result.
// Throws std::runtime_error naming flag, file and what it is. The directory need not be there.
void check_side_files(const TrainOptions& options, const std::vector<std::filesystem::path>& companions);

// The directory, which is there, may be written into by this run. Throws std::runtime_error naming what is in the way.
void require_own_directory(const TrainOptions& options, const std::vector<std::filesystem::path>& companions);

// config.toml as it is written: options.config_toml, behind a line that says whose it is.
std::string run_config_text(const TrainOptions& options);

}  // namespace slab::train
