// generation_config.json: where generation stops.
//
// transformers, vLLM and others stop at the eos_token_id there, one or a list. Without the file they take it from
// config.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "train/files/model_directory.h"

namespace slab::train {

// The ids at which generation with this base stops: of generation_config.json, else of config.json, or of a GGUF file's
// metadata. Ids that are no numbers are left out. Throws UserError or IoError naming the file.
std::vector<int64_t> generation_ends(const std::filesystem::path& base);
// The same of an adapter's directory; empty when it has no generation_config.json.
std::vector<int64_t> generation_ends_beside(const std::filesystem::path& directory);

// The text of generation_config.json for a model made from this base: the base's own, else what config.json or the GGUF
// file say about generation. `more` are ids at which it stops as well.
std::string generation_config_of(const std::filesystem::path& base, const std::vector<int64_t>& more = {});

// Replaces the companion of that name, or adds it: it then stops at `more`, too.
void stop_at(std::vector<Companion>& companions, const std::filesystem::path& base, const std::vector<int64_t>& more);

}  // namespace slab::train
