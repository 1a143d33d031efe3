// The handler sets a flag, then leaves the next signal of its kind to the system.
#include "data/base/stop_signals.h"

#include <atomic>
#include <csignal>
#include <initializer_list>

namespace slab::data {

namespace {

// A signal handler can reach nothing but globals.
std::atomic<bool> stop{false};
volatile std::sig_atomic_t stop_signal = 0;

void on_signal(int signal) {
    stop_signal = signal;
    stop = true;
    // SIGXCPU repeats every second, faster than a run can save. At the hard limit the system kills the process.
    if (signal != SIGXCPU) std::signal(signal, SIG_DFL);
}

}  // namespace

StopToken watch_stop_signals() {
    struct sigaction hangup {};
    const bool ignored = sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler == SIG_IGN;
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGXCPU})
        if (signal != SIGHUP || !ignored) std::signal(signal, on_signal);
    return StopToken(stop);
}

int end_as_signalled(int code) {
    if (code != kExitInterrupted || stop_signal == 0) return code;
    std::signal(stop_signal, SIG_DFL);
    std::raise(stop_signal);
    return code;
}

}  // namespace slab::data
