// What `build/tokenize` does: text files in, llm.c token files with masks out, split into training and validation.
// Apart from main so that tests can run it whole.
#pragma once

#include <iosfwd>

namespace slab::data {

// Returns the exit code. `stdin_fd` is read where a file is called `-`.
int run_tokenize(int argc, const char* const* argv, int stdin_fd, std::ostream& out, std::ostream& err);

}  // namespace slab::data
