// Signals that ask a program to stop: Ctrl-C, a batch system's SIGTERM, a terminal that closes, CPU time used up.
//
// The first one only sets a flag. Work asks its StopToken between pieces and throws Interrupted; unfinished files
// disappear with their objects (atomic_file.h). A second signal of the same kind ends the process at once, except
// SIGXCPU, which repeats by itself.
#pragma once

#include "data/base/stop_token.h"

namespace slab::data {

constexpr int kExitInterrupted = 130;  // a shell's exit status for a process that SIGINT ended

// Watches SIGINT, SIGTERM, SIGHUP and SIGXCPU from now on. The token lives as long as the process. A SIGHUP ignored at
// the program's start (nohup) stays ignored.
StopToken watch_stop_signals();

// To be called last. Returns `code`; kExitInterrupted instead ends the process by the signal that came. The parent then
// sees 128 + the signal's number, and Ctrl-C ends a script around the program too.
int end_as_signalled(int code);

}  // namespace slab::data
