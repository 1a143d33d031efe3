// The pool: every tile once, the same bits with any number of threads, errors and misuse; and the account that device
// memory is charged to.
#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "kernels/runtime/memory_account.h"
#include "kernels/runtime/thread_pool.h"
#include "tests/temporary_files.h"

using namespace slab;
using slab::test::error_of;
using slab::test::has;

TEST_SUITE("cpu") {
    TEST_CASE("thread pool: each tile exactly once, whatever the number of threads") {
        for (const int threads : {1, 2, 3, 5}) {
            ThreadPool pool(threads);
            CHECK(pool.size() == threads);
            for (const size_t tiles : {0, 1, 2, 3, 64, 1000}) {
                std::vector<std::atomic<int>> runs(tiles);
                pool.parallel_for(tiles, [&](size_t i) { ++runs[i]; });
                for (const auto& n : runs) REQUIRE(n == 1);
            }
        }
        CHECK(ThreadPool(0).size() >= 1);
    }

    TEST_CASE("thread pool: ranges cover all items in the cuts asked for") {
        ThreadPool pool(3);
        for (const size_t items : {0, 1, 7, 8, 9, 100}) {
            std::vector<std::atomic<int>> runs(items);
            pool.parallel_ranges(items, 8, [&](size_t begin, size_t end) {
                if (begin % 8 != 0 || end <= begin || end - begin > 8) return;  // leaves items uncounted
                for (size_t i = begin; i < end; ++i) ++runs[i];
            });
            for (const auto& n : runs) REQUIRE(n == 1);
        }
        CHECK_THROWS_AS(pool.parallel_ranges(3, 0, [](size_t, size_t) {}), std::logic_error);
    }

    TEST_CASE("thread pool: the same bits with any number of threads") {
        const auto sums_with = [](int threads) {
            ThreadPool pool(threads);
            std::vector<float> sums(37);
            pool.parallel_for(sums.size(), [&](size_t tile) {
                float sum = 0;
                for (int k = 1; k < 1000; ++k) sum += 1.0f / static_cast<float>(k + 31 * tile);
                sums[tile] = sum;
            });
            return sums;
        };
        const std::vector<float> one = sums_with(1);
        for (const int threads : {2, 4}) {
            const std::vector<float> many = sums_with(threads);
            CHECK(std::memcmp(one.data(), many.data(), one.size() * sizeof(float)) == 0);
        }
    }

    TEST_CASE("thread pool: an exception in a tile reaches the caller, and the pool goes on") {
        for (const int threads : {1, 4}) {
            ThreadPool pool(threads);
            for (int round = 0; round < 20; ++round) {
                const std::string text = error_of<std::exception>([&] {
                    pool.parallel_for(100, [](size_t i) {
                        if (i % 10 == 3) throw std::runtime_error("tile " + std::to_string(i));
                    });
                });
                REQUIRE(has(text, "tile "));
                std::atomic<int> ran{0};
                pool.parallel_for(10, [&](size_t) { ++ran; });
                REQUIRE(ran == 10);
            }
        }
    }

    TEST_CASE("thread pool: a call from inside a tile is refused, never a hang") {
        for (const int threads : {1, 3}) {
            ThreadPool pool(threads);
            CHECK_THROWS_AS(pool.parallel_for(4, [&](size_t) { pool.parallel_for(2, [](size_t) {}); }),
                            std::logic_error);
            pool.parallel_for(2, [](size_t) {});  // outside it is allowed again
        }
    }

    TEST_CASE("thread pool: two callers take turns") {
        ThreadPool pool(3);
        std::vector<std::atomic<int>> a(100), b(100);
        const auto many = [&](std::vector<std::atomic<int>>& runs) {
            for (int round = 0; round < 100; ++round) pool.parallel_for(runs.size(), [&](size_t i) { ++runs[i]; });
        };
        std::thread other([&] { many(a); });
        many(b);
        other.join();
        for (size_t i = 0; i < 100; ++i) REQUIRE((a[i] == 100 && b[i] == 100));
    }

    TEST_CASE("memory account: the names of the categories differ") {
        std::set<std::string> names;
        for (size_t c = 0; c < kMemoryCategories; ++c) names.insert(name_of(static_cast<MemoryCategory>(c)));
        CHECK(names.size() == kMemoryCategories);
        CHECK_THROWS_AS(name_of(static_cast<MemoryCategory>(99)), std::logic_error);
    }

    TEST_CASE("memory account: what driver and libraries take counts from the start") {
        MemoryAccount account(1000, 400);
        CHECK(account.used_bytes() == 400);
        CHECK(account.peak_bytes() == 400);
        account.charge(MemoryCategory::ring, 600, "ring");
        CHECK_THROWS_AS(account.charge(MemoryCategory::ring, 1, "one more"), OutOfBudget);
        account.release(MemoryCategory::ring, 600);
        CHECK(account.used_bytes() == 400);
        CHECK(account.peak_bytes() == 1000);
        MemoryAccount too_small(300, 400);  // the reserve alone is above the budget
        CHECK(has(error_of<std::exception>([&] { too_small.charge(MemoryCategory::ring, 1, "x"); }), "only 0 bytes"));
    }
}
