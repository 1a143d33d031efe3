// A rank that hangs sleeps for good: the process ends around it.
#include "train/run/fault_point.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "data/base/error.h"

namespace slab::train {

namespace {

struct Fault {
    int rank = 0;
    std::string place, kind;
    std::atomic<int> left{0};  // times, until it happens
};

void happen(const Fault& fault) {
    if (fault.kind == "throw") throw std::runtime_error("a fault at `" + fault.place + "`, as SLABSTREAM_FAULT asks");
    if (fault.kind == "interrupt") (void)kill(getpid(), SIGINT);
    if (fault.kind == "kill") (void)kill(getpid(), SIGKILL);
    while (fault.kind == "hang") std::this_thread::sleep_for(std::chrono::hours(1));
}

}  // namespace

std::function<void(int, CallTag)> fault_point_of_environment() {
    const char* const text = std::getenv("SLABSTREAM_FAULT");
    if (text == nullptr || *text == '\0') return {};
    std::vector<std::string> parts;
    std::stringstream in(text);
    for (std::string part; std::getline(in, part, ':');) parts.push_back(part);
    const auto fault = std::make_shared<Fault>();
    try {
        fault->rank = std::stoi(parts.at(0));
        fault->place = parts.at(1);
        fault->left = std::stoi(parts.at(2));
        fault->kind = parts.at(3);
    } catch (const std::logic_error&) {
        throw data::UserError({.subject = "SLABSTREAM_FAULT=" + std::string(text),
                               .given = "is no fault",
                               .wanted = "RANK:PLACE:TIMES:KIND",
                               .hint = ""});
    }
    return [fault](int rank, CallTag where) {
        if (rank == fault->rank && fault->place == where.what && --fault->left == 0) happen(*fault);
    };
}

}  // namespace slab::train
