// Finds models by their name on the Hugging Face hub, in the cache where its own tools keep downloads.
//
//     <cache>/models--org--name/refs/main            the commit that "main" was when it was fetched
//     <cache>/models--org--name/snapshots/<commit>/  the files, as links into ../../blobs
//
// Nothing is ever fetched here. The error for a missing model says how to fetch it.
#pragma once

#include <filesystem>
#include <string>

namespace slab::data {

// The cache's directory: $HF_HUB_CACHE, else $HUGGINGFACE_HUB_CACHE (its old name), else $HF_HOME/hub, else
// $XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub. A leading ~ in a value is $HOME, as for those tools.
std::filesystem::path hub_cache_directory();

// The path `given` if it exists, else the cache's snapshot of the model "org/name" (or "name", as "gpt2"). Throws
// UserError naming the flag when there is neither.
std::filesystem::path find_model(const std::string& flag, const std::string& given);

}  // namespace slab::data
