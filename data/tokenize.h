// What `build/tokenize` does: text files in, llm.c token files with masks out, split into training and validation.
// Apart from main so that tests can run it whole.
#pragma once

#include <iosfwd>

#include "data/base/stop_token.h"

namespace slab::data {

// Returns the exit code. `stdin_fd` is read where a file is called `-`. stop is asked between pieces of work, also
// while a pipe gives nothing, until the first output is renamed. A stop leaves no file and returns kExitInterrupted
// (stop_signals.h).
int run_tokenize(int argc, const char* const* argv, int stdin_fd, std::ostream& out, std::ostream& err,
                 StopToken stop = {});

}  // namespace slab::data
