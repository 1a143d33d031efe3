// Ranks as threads of a test: each runs the same function, and what one throws fails the group, as in a run.
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/runtime/local_comm.h"
#include "kernels/runtime/rank_group.h"
#include "kernels/runtime/runtime.h"

namespace slab::test {

inline constexpr std::chrono::milliseconds kLongTimeout{60000};

// Runs f(rank) on a thread for each rank. Returns what each threw, "" for nothing.
inline std::vector<std::string> run_ranks(RankGroup& group, const std::function<void(int)>& f) {
    std::vector<std::string> errors(static_cast<size_t>(group.local()));
    std::vector<std::thread> threads;
    for (int i = 0; i < group.local(); ++i)
        threads.emplace_back([&, i] {
            try {
                f(group.first_rank() + i);
            } catch (const std::exception& e) {
                errors[static_cast<size_t>(i)] = e.what();
                group.fail(group.first_rank() + i, std::current_exception());
            }
        });
    for (std::thread& thread : threads) thread.join();
    return errors;
}

// A rank with its device, stream and end of the exchange; made before the threads, and outliving them.
struct TestRank {
    Device device{DeviceOptions{.threads = 1}};
    Stream stream{device, "compute"};
    std::unique_ptr<LocalComm> comm;
};
inline std::vector<std::unique_ptr<TestRank>> make_ranks(RankGroup& group) {
    std::vector<std::unique_ptr<TestRank>> ranks;
    for (int r = 0; r < group.size(); ++r) {
        ranks.push_back(std::make_unique<TestRank>());
        ranks.back()->comm = std::make_unique<LocalComm>(group, r, ranks.back()->device);
    }
    return ranks;
}

}  // namespace slab::test
