// Models by their name on the Hugging Face hub, found where its own tools keep downloads.
//
//     <cache>/models--org--name/refs/main            the commit that "main" was when it was fetched
//     <cache>/models--org--name/snapshots/<commit>/  the files, as links into ../../blobs
//
// Nothing is ever fetched here: a model that is not there is an error that says how to fetch it.
#pragma once

#include <filesystem>
#include <string>

namespace slab::data {

// The cache's directory: $HF_HUB_CACHE, else $HUGGINGFACE_HUB_CACHE (its old name), else $HF_HOME/hub, else
// $XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub. A leading ~ in a value is $HOME, as for those tools.
std::filesystem::path hub_cache_directory();

// What `given` names: the path, if there is such a file or directory, else the snapshot in the cache of the model
// "org/name" (or "name", as "gpt2"). Throws std::runtime_error when it is neither, beginning with the flag.
std::filesystem::path find_model(const std::string& flag, const std::string& given);

}  // namespace slab::data
