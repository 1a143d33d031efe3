// What a process does with a signal after the first one of its kind: a second Ctrl-C ends it, and a SIGXCPU, which
// comes again every second, does not.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <initializer_list>

#include "data/base/stop_signals.h"

namespace {

enum Seen { kNotFlagged = 1, kDefault = 2, kWatched = 3 };

// What a child that watches finds after one signal: handlers are the process's, and doctest has its own in this one.
int seen_after(int signal) {
    const pid_t child = fork();
    if (child == 0) {
        const slab::data::StopToken stop = slab::data::watch_stop_signals();
        raise(signal);
        struct sigaction now {};
        sigaction(signal, nullptr, &now);
        _exit(!stop.requested() ? kNotFlagged : now.sa_handler == SIG_DFL ? kDefault : kWatched);
    }
    REQUIRE(child > 0);
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("stop signals: after the first one the next of its kind ends the process, but a SIGXCPU") {
        for (const int signal : {SIGINT, SIGTERM}) {
            CAPTURE(signal);
            CHECK(seen_after(signal) == kDefault);
        }
        CHECK(seen_after(SIGXCPU) == kWatched);
    }
}
