// Signals that ask a program to stop: Ctrl-C, a batch system's SIGTERM, a terminal that closes, CPU time used up.
//
// The first one only sets a flag. Work asks its StopToken where it can be left off and throws Interrupted; what it
// had begun to write goes with its objects (atomic_file.h). A second one of the same kind ends the process as if nobody
// watched (but SIGXCPU, which repeats by itself).
#pragma once

#include "data/base/stop_token.h"

namespace slab::data {

constexpr int kExitInterrupted = 130;  // as a shell says of a process that SIGINT ended

// Watches SIGINT, SIGTERM, SIGHUP and SIGXCPU from now on; the token is good as long as the process. A SIGHUP that is
// ignored when the program starts (nohup) stays ignored.
StopToken watch_stop_signals();

// To be called last: returns `code`, or, when that is kExitInterrupted, ends the process by the signal that came. So
// whoever started it sees 128 + the signal's number, and a script's Ctrl-C ends the script too.
int end_as_signalled(int code);

}  // namespace slab::data
