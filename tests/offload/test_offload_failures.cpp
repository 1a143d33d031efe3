// A source that fails at the first of several loads, and what reset_stats leaves of times that were not taken.
#if !defined(SLABSTREAM_CUDA)
#include <doctest/doctest.h>

#include <stdexcept>
#include <vector>

#include "tests/toy_streaming.h"

using namespace slab;
using namespace slab::offload;

TEST_SUITE("cpu") {
    TEST_CASE("offload: when the first of several loads fails, every layer of them is loaded again at its visit") {
        const int L = 8;
        // The ring is full of other layers, and every event recorded: what is not loaded again shows in the bits alone.
        int failures = 0;
        for (const int P : {2, 3})
            for (int failing = 0; failing < P; ++failing) {
                CAPTURE(P);
                CAPTURE(failing);
                Toy toy(L, {.num_prefetch = P, .num_slots = least_slots(P)});
                LayerOffloadManager& m = toy.make();
                m.attach();
                toy.step(pass_order(L));
                toy.step({7, 6, 5, 4});
                toy.source.failing_layer = failing;
                try {
                    m.pre_step(pass_order(L));  // loads layers 0 to P - 1
                } catch (const std::runtime_error&) {
                    ++failures;
                }
                toy.source.failing_layer = -1;
                for (int layer = P; layer >= 0; --layer) toy.visit(layer);
                CHECK(toy.right());
                toy.step(pass_order(L));
                CHECK(toy.right());
            }
        CHECK(failures == 2 + 3);
    }

    TEST_CASE("offload: two loads at once of which the first fails") {
        Toy toy(4, {.num_prefetch = 2, .num_slots = 3});
        LayerOffloadManager& m = toy.make();
        m.attach();
        toy.source.failing_layer = 0;
        CHECK_THROWS_WITH_AS(m.pre_step({0, 1, 2, 3}), "the source fails", std::runtime_error);
        toy.source.failing_layer = -1;
        toy.visit_all({1, 2, 0, 3});
        CHECK(toy.right());
    }

    TEST_CASE("offload: after reset_stats no time counts as not taken") {
        Gate work;
        Toy toy(3);
        LayerOffloadManager& m = toy.make();
        m.attach();
        work.hold(toy.compute);
        m.pre_step(pass_order(3));
        for (int round = 0; round < 200; ++round) toy.visit_all(pass_order(3));
        m.post_step();
        const uint64_t untimed = m.stats().untimed;
        m.reset_stats();
        const uint64_t untimed_after_reset = m.stats().untimed;
        work.open();  // before the checks: a failed one would leave the streams waiting
        CHECK(untimed > 0);
        CHECK(untimed_after_reset == 0);
        CHECK(toy.right());
        toy.step(pass_order(3));
        CHECK(m.stats().untimed == 0);
    }
}

#endif  // !SLABSTREAM_CUDA
