// Reads a whole text for build/tokenize and train_gpt: from a file, a named pipe or an open descriptor.
//
// Input that is no text would train and mean nothing. It is refused by name (text_kind.h), as is a first line that is a
// record. A byte order mark is left out.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <string>

#include "data/base/stop_token.h"

namespace slab::data {

// Both throw IoError or UserError naming the text. An empty one is returned as it is. What is taken and unusual becomes
// a line of `notes`. stop is asked between pieces, also while a pipe is empty; Interrupted ends the reading.
std::string read_text(const std::filesystem::path& path, std::ostream& notes, StopToken stop);
// Everything from `fd` until its end. `name` is its name in errors.
std::string read_text(int fd, const std::string& name, std::ostream& notes, StopToken stop);

}  // namespace slab::data
