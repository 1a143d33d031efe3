// The program `build/tokenize`: text files in, llm.c token files with masks out, split into training and validation.
// It is apart from main() so that tests can run all of it.
#pragma once

#include <iosfwd>

#include "data/base/stop_token.h"

namespace slab::data {

// Returns the exit code. `stdin_fd` is read for a file called `-`. stop is asked between pieces of work, also while a
// pipe is empty, until the first output is renamed. A stop leaves no file and returns kExitInterrupted
// (stop_signals.h).
int run_tokenize(int argc, const char* const* argv, int stdin_fd, std::ostream& out, std::ostream& err,
                 StopToken stop = {});

}  // namespace slab::data
