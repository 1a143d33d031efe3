// Ranks that meet and exchange. Bytes arrive; nothing is read too early or written over too soon. No failure of one
// rank leaves another waiting. tests/mutation_test.sh removes both waits of LocalComm and runs the cases "comm: late
// ...".
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/ranks.h"

using namespace slab;
using namespace slab::test;
using std::chrono::milliseconds;

namespace {

using Clock = std::chrono::steady_clock;

DeviceBuffer numbers(Device& device, size_t n) {
    return DeviceBuffer(device, n * sizeof(int32_t), MemoryCategory::workspace, "numbers");
}

// As a kernel: what the given numbers are is decided when the stream gets there.
void write_numbers(int32_t* dst, size_t n, int32_t first, Stream& stream) {
    stream.enqueue("write", [=](ThreadPool&) {
        for (size_t i = 0; i < n; ++i) dst[i] = first + static_cast<int32_t>(i);
    });
}
void compare_numbers(const int32_t* got, size_t n, int32_t first, std::atomic<int>& wrong, Stream& stream) {
    stream.enqueue("compare", [=, &wrong](ThreadPool&) {
        for (size_t i = 0; i < n; ++i) wrong += got[i] != first + static_cast<int32_t>(i);
    });
}

// Each rank writes a piece for every rank, gives it away, and writes the next one over it at once. `late`: a rank whose
// stream lags behind the others', by turns before it writes and before it copies.
int wrong_numbers(int size, int rounds, const std::function<void(int rank, int round, Stream& stream)>& before_writing,
                  const std::function<void(int rank, int round, Stream& stream)>& before_copying) {
    constexpr size_t n = 1000;
    RankGroup group(size, kLongTimeout);
    auto ranks = make_ranks(group);
    std::atomic<int> wrong{0};
    const auto first_of = [](int from, int to, int round) { return 100000 * from + 10000 * to + 7 * round; };
    const auto errors = run_ranks(group, [&](int rank) {
        TestRank& mine = *ranks[static_cast<size_t>(rank)];
        const size_t peers = static_cast<size_t>(size);
        const DeviceBuffer given = numbers(mine.device, peers * n), got = numbers(mine.device, peers * n);
        for (int round = 0; round < rounds; ++round) {
            before_writing(rank, round, mine.stream);
            std::vector<SentPiece> sent;
            std::vector<ReceivedPiece> received;
            for (int peer = 0; peer < size; ++peer) {
                const size_t at = static_cast<size_t>(peer) * n;
                write_numbers(given.as<int32_t>() + at, n, first_of(rank, peer, round), mine.stream);
                // Pieces of other sizes each round, and none between some pairs.
                const auto bytes_between = [&](int from, int to) {
                    return (from + to + round) % 5 == 4 ? 0 : (n - static_cast<size_t>(round % 3)) * sizeof(int32_t);
                };
                sent.push_back({given.as<int32_t>() + at, bytes_between(rank, peer)});
                received.push_back({got.as<int32_t>() + at, bytes_between(peer, rank)});
            }
            before_copying(rank, round, mine.stream);
            mine.comm->exchange(sent, received, mine.stream, {"round", round});
            for (int peer = 0; peer < size; ++peer) {
                const size_t at = static_cast<size_t>(peer);
                compare_numbers(got.as<int32_t>() + at * n, received[at].bytes / sizeof(int32_t),
                                first_of(peer, rank, round), wrong, mine.stream);
            }
        }
        mine.stream.synchronize();
        mine.comm->meet({}, {"end"});  // buffers go only when nobody reads them
    });
    for (const std::string& error : errors) CHECK(error == "");
    return wrong;
}

const auto at_once = [](int, int, Stream&) {};

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("comm: a meeting gives everyone all ranks' bytes, in their order, as often as they meet") {
        RankGroup group(4, kLongTimeout);
        auto ranks = make_ranks(group);
        const auto errors = run_ranks(group, [&](int rank) {
            for (int round = 0; round < 500; ++round) {
                const auto all = ranks[static_cast<size_t>(rank)]->comm->meet_values(1000 * round + rank, {"n", round});
                if (all != std::vector<int>{1000 * round, 1000 * round + 1, 1000 * round + 2, 1000 * round + 3})
                    throw std::runtime_error("other bytes");
            }
        });
        for (const std::string& error : errors) CHECK(error == "");
    }

    TEST_CASE("comm: late writers are waited for") {
        for (const int size : {2, 4})
            CHECK(wrong_numbers(
                      size, 8,
                      [&](int rank, int round, Stream& stream) {
                          if (round % size == rank) delay_async(3000, stream);
                      },
                      at_once) == 0);
    }

    TEST_CASE("comm: late readers are waited for before what they read is written over") {
        for (const int size : {2, 4})
            CHECK(wrong_numbers(size, 8, at_once, [&](int rank, int round, Stream& stream) {
                      if (round % size == rank) delay_async(3000, stream);
                  }) == 0);
    }

    TEST_CASE("comm: an exchange with oneself alone is a copy") {
        CHECK(wrong_numbers(1, 4, at_once, at_once) == 0);
    }

    TEST_CASE("comm: ranks at different calls throw on all ranks and name both calls") {
        RankGroup group(3, kLongTimeout);
        auto ranks = make_ranks(group);
        const auto errors = run_ranks(group, [&](int rank) {
            ranks[static_cast<size_t>(rank)]->comm->meet({}, rank == 2 ? CallTag{"gradients", 41} : CallTag{"slab", 5});
        });
        for (const std::string& error : errors) {
            CAPTURE(error);
            CHECK(error.find("rank 0 at slab 5, rank 2 at gradients 41") != std::string::npos);
        }
    }

    TEST_CASE("comm: pieces whose sizes differ throw on all ranks") {
        RankGroup group(2, kLongTimeout);
        auto ranks = make_ranks(group);
        const auto errors = run_ranks(group, [&](int rank) {
            TestRank& mine = *ranks[static_cast<size_t>(rank)];
            const DeviceBuffer buffer = numbers(mine.device, 64);
            const size_t bytes = rank == 0 ? 16 : 32;
            const std::vector<SentPiece> sent(2, {buffer.data(), bytes});
            const std::vector<ReceivedPiece> received(2, {buffer.data() + 64, bytes});
            mine.comm->exchange(sent, received, mine.stream, {"sizes"});
        });
        for (const std::string& error : errors) {
            CAPTURE(error);
            CHECK(error.find("rank 0 gives 16 bytes, rank 1 takes 32") != std::string::npos);
        }
    }

    TEST_CASE("comm: a rank that throws is named to all others, and only its cause is kept") {
        RankGroup group(4, kLongTimeout);
        auto ranks = make_ranks(group);
        const auto errors = run_ranks(group, [&](int rank) {
            LocalComm& comm = *ranks[static_cast<size_t>(rank)]->comm;
            for (int round = 0;; ++round) {
                if (rank == 2 && round == 3) throw std::runtime_error("the disk is gone");
                comm.meet({}, {"round", round});
            }
        });
        for (const int rank : {0, 1, 3}) CHECK(errors[static_cast<size_t>(rank)] == "rank 2: the disk is gone");
        CHECK(errors[2] == "the disk is gone");
        REQUIRE(group.failure());
        CHECK(group.failure()->rank == 2);
        CHECK(group.failure()->why == "the disk is gone");
    }

    TEST_CASE("comm: a rank that stays away is named with its place once the time is over, and not before") {
        RankGroup group(3, milliseconds(300));
        auto ranks = make_ranks(group);
        std::atomic<bool> go{false};
        const Clock::time_point start = Clock::now();
        std::atomic<Clock::rep> waited{0};
        const auto errors = run_ranks(group, [&](int rank) {
            LocalComm& comm = *ranks[static_cast<size_t>(rank)]->comm;
            comm.meet({}, {"start"});
            if (rank == 1) {
                comm.alive({"reading data, step", 41});
                while (!go) std::this_thread::sleep_for(milliseconds(1));
                return;
            }
            try {
                comm.meet({}, {"gradients", 41});
            } catch (const PeerFailed& failed) {
                CHECK(failed.rank == 1);
                waited = (Clock::now() - start).count();
                go = true;
                throw;
            }
        });
        for (const int rank : {0, 2})
            CHECK(errors[static_cast<size_t>(rank)] == "rank 1: has been at `reading data, step 41` for 300 ms");
        CHECK(Clock::duration(waited) >= milliseconds(300));
    }

    TEST_CASE("comm: signs of life keep a slow rank from being given up") {
        RankGroup group(2, milliseconds(400));
        auto ranks = make_ranks(group);
        const auto errors = run_ranks(group, [&](int rank) {
            LocalComm& comm = *ranks[static_cast<size_t>(rank)]->comm;
            if (rank == 1)
                for (int i = 0; i < 60; ++i) {
                    std::this_thread::sleep_for(milliseconds(20));
                    comm.alive({"saving", i});
                }
            comm.meet({}, {"saved"});
        });
        for (const std::string& error : errors) CHECK(error == "");
    }

    TEST_CASE("comm: what a rank's device failed at reaches the peers that copy from it") {
        RankGroup group(2, kLongTimeout);
        auto ranks = make_ranks(group);
        const auto errors = run_ranks(group, [&](int rank) {
            TestRank& mine = *ranks[static_cast<size_t>(rank)];
            const DeviceBuffer buffer = numbers(mine.device, 64);
            if (rank == 0) mine.stream.host_function("break", [] { throw std::runtime_error("the kernel is broken"); });
            const std::vector<SentPiece> sent(2, {buffer.data(), 64});
            const std::vector<ReceivedPiece> received{{buffer.data() + 64, 64}, {buffer.data() + 128, 64}};
            mine.comm->exchange(sent, received, mine.stream, {"pieces"});
            std::string error;
            try {
                mine.stream.synchronize();
            } catch (const DeviceError& e) {
                error = e.what();
            }
            mine.comm->meet({}, {"drained"});
            if (!error.empty()) throw std::runtime_error(error);
        });
        for (const std::string& error : errors) CHECK(error.find("the kernel is broken") != std::string::npos);
    }

    TEST_CASE("comm: a failure reaches those who asked for it, once") {
        RankGroup group(2, kLongTimeout);
        int calls = 0;
        group.on_failure([&] { ++calls; });
        group.fail(1, std::make_exception_ptr(std::runtime_error("first")));
        group.fail(0, std::make_exception_ptr(std::runtime_error("second")));
        CHECK(calls == 1);
        CHECK(group.failure()->why == "first");
        CHECK_THROWS_WITH_AS(group.throw_if_failed(), "rank 1: first", PeerFailed);
        CHECK_THROWS_AS(RankGroup(2, 0, 1, kLongTimeout, nullptr), std::logic_error);
    }
}
