// A Chrome trace of what the manager did: one lane of layer visits and waits, one of copies. Opens in Perfetto;
// dev/plot_run.py draws a step of it.
#pragma once

#include <filesystem>
#include <vector>

#include "offload/layer_offload_manager.h"

namespace slab::train {

// Written whole or not at all; throws std::runtime_error naming the file.
void write_trace(const std::filesystem::path& file, const std::vector<offload::LayerOffloadManager::TraceBox>& boxes);

}  // namespace slab::train
