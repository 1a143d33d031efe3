// Reads a whole text for build/tokenize and train_gpt: from a file, a named pipe or an open descriptor.
//
// Input that is no text would train and mean nothing. So a 0 byte among the first 64 KiB (archives, UTF-16) is refused,
// and a first line that is a record. Other encodings than UTF-8 pass.
#pragma once

#include <filesystem>
#include <string>

#include "data/base/stop_token.h"

namespace slab::data {

// Both throw IoError or UserError naming the text. An empty one is returned as it is. stop is asked between pieces,
// also while a pipe is empty; Interrupted ends the reading.
std::string read_text(const std::filesystem::path& path, StopToken stop);
// Everything from `fd` until its end. `name` is its name in errors.
std::string read_text(int fd, const std::string& name, StopToken stop);

}  // namespace slab::data
