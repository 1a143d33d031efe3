// A Chrome trace of what the manager did: one lane of layer visits and waits, one of copies. Opens in Perfetto;
// dev/plot_run.py draws a step of it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "offload/layer_offload_manager.h"

namespace slab::train {

// Throws std::runtime_error when a file that is no trace is in the way, or one that cannot be read.
void check_trace_file(const std::filesystem::path& file);

// What write_trace was told of the run. "" when there is no trace, or one of an earlier version. Throws as
// check_trace_file does.
std::string run_of_trace(const std::filesystem::path& file);

// Written whole or not at all; throws SideFileError (run_log.h) naming the file. run: whose it is (run_directory.h).
void write_trace(const std::filesystem::path& file, const std::string& run,
                 const std::vector<offload::LayerOffloadManager::TraceBox>& boxes);

}  // namespace slab::train
