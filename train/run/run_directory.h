// Whose the files are that a run would write over: its own, or another's.
//
// There is one rule. A directory is the run's own when it holds the checkpoint that the run goes on from. In any other
// nothing may lie that the run would replace, but for what a start without a checkpoint leaves: a run's config.toml,
// and a log, which says itself that it is one (run_log.h).
//
// A log or a trace says whose it is by the way from its own directory to its run's ("." or "../run"), so that both may
// be moved together. One that lies elsewhere is only gone on with: by a run that resumes, in the directory it names.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "train/files/adapter_config.h"
#include "train/run/options.h"
#include "train/spec/lora.h"

namespace slab::train {

// Where the log goes: --log, or log.jsonl in --output-dir.
std::filesystem::path log_path(const TrainOptions& options);

// Of --log (or the log in --output-dir) and --trace: they are neither each other nor the data, nor what else the run
// writes, and what lies at the log's place is a log. companions: the base's files that are copied beside the result.
// Throws std::runtime_error naming flag, file and what it is. The directory need not be there.
void check_side_files(const TrainOptions& options, const std::vector<std::filesystem::path>& companions);

// The directory, which is there, may be written into by this run. Throws std::runtime_error naming what is in the way.
void require_own_directory(const TrainOptions& options, const std::vector<std::filesystem::path>& companions);

// The way from the log or trace `file` to its run's directory.
std::string way_to_run(const std::filesystem::path& file, const std::filesystem::path& output_dir);

// The log, or the trace, that is there is this run's. Throws std::runtime_error naming it and the run it is of.
void require_own_log(const TrainOptions& options);
void require_own_trace(const TrainOptions& options);

// config.toml as it is written: options.config_toml, behind a line that says whose it is, and with --adapter-in what
// its adapter is.
std::string run_config_text(const TrainOptions& options, const std::optional<LoraSettings>& lora);

}  // namespace slab::train
