// A whole text, as build/tokenize and train_gpt take it: from a file, a named pipe or an open descriptor.
//
// What is no text is refused by what it begins with, since it would train and mean nothing: a 0 byte among the first 64
// KiB (archives, UTF-16) or a line that is a record. Bytes that are no UTF-8 are text of some other encoding, and pass.
#pragma once

#include <filesystem>
#include <string>

#include "data/base/stop_token.h"

namespace slab::data {

// Both throw std::runtime_error naming the text. An empty one is returned as it is. stop is asked between pieces,
// also while a pipe gives nothing; Interrupted ends the reading.
std::string read_text(const std::filesystem::path& path, StopToken stop);
// All that comes through `fd` until its end; `name` is what errors call it.
std::string read_text(int fd, const std::string& name, StopToken stop);

}  // namespace slab::data
