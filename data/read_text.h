// A whole text, as build/tokenize and train_gpt take it: from a file, a named pipe or an open descriptor.
//
// What is no text is refused by what it begins with, since it would train and mean nothing: a 0 byte among the first 64
// KiB (archives, UTF-16) or a line that is a record. Bytes that are no UTF-8 are text of some other encoding, and pass.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace slab::data {

// Both throw std::runtime_error naming the text. An empty one is returned as it is. check is called now and then, also
// while a pipe gives nothing, and may throw to end the reading.
std::string read_text(const std::filesystem::path& path, const std::function<void()>& check);
// All that comes through `fd` until its end; `name` is what errors call it.
std::string read_text(int fd, const std::string& name, const std::function<void()>& check);

}  // namespace slab::data
