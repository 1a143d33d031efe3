// The manager's layer visits, waits and copies as a Chrome trace, for Perfetto; dev/plot_run.py draws a step of it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "offload/layer_offload_manager.h"

namespace slab::train {

// Throws data::UserError if a file that is no trace is in the way, or one that cannot be read.
void check_trace_file(const std::filesystem::path& file);

// The run that write_trace() was given. "" if there is no trace, or one of an earlier version. Throws as
// check_trace_file() does.
std::string run_of_trace(const std::filesystem::path& file);

// Written whole or not at all. run: path_to_run() of the file (run_directory.h). Throws SideFileError naming the file.
void write_trace(const std::filesystem::path& file, const std::string& run,
                 const std::vector<offload::LayerOffloadManager::TraceBox>& boxes);

}  // namespace slab::train
