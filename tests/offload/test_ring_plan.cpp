// The ring's plan: which layers stream, through how many slots of which size, and which options are refused.
#include <doctest/doctest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "offload/ring_plan.h"

using namespace slab::offload;

TEST_SUITE("cpu") {
    TEST_CASE("ring plan: layers with a slab stream unless they are resident, and the largest one sizes the slots") {
        const RingPlan plan({100, 0, 700, 300, 900}, {.num_prefetch = 2, .num_slots = 3, .resident_layers = {4, 4}});
        CHECK(plan.layers() == 5);
        CHECK(plan.streamed() == std::vector<int>{0, 2, 3});
        CHECK(plan.streamed_layers() == 3);
        for (int layer = 0; layer < 5; ++layer) CHECK(plan.streams(layer) == (layer != 1 && layer != 4));
        CHECK(plan.prefetch() == 2);
        CHECK(plan.slots() == 3);
        CHECK(plan.slot_bytes() == 700);
        CHECK(plan.ring_bytes() == 2100);
        CHECK(plan.streamed_bytes() == 1100);
        CHECK(plan.resident_bytes() == 900);
        CHECK(plan.stored_bytes(3) == 300);
    }

    TEST_CASE("ring plan: no more slots are made than layers stream") {
        const RingPlan plan({10, 20}, {.num_slots = 7});
        CHECK(plan.slots() == 2);
        CHECK(plan.slots_asked() == 7);
        const RingPlan none({10, 20}, {.resident_layers = {0, 1}});
        CHECK(none.slots() == 0);
        CHECK(none.slot_bytes() == 0);
        CHECK(none.ring_bytes() == 0);
        CHECK(none.streamed().empty());
        CHECK(RingPlan().layers() == 0);
    }

    TEST_CASE("ring plan: options that do not fit are refused, and the least is accepted") {
        const auto refused = [](const RingOptions& options) {
            CHECK_THROWS_AS(RingPlan({1, 1, 1}, options), std::invalid_argument);
        };
        refused({.num_prefetch = 0});
        refused({.num_prefetch = -1});
        refused({.num_prefetch = 2, .num_slots = 2});
        refused({.num_slots = 0});
        refused({.num_prefetch = 2147483647, .num_slots = 2147483647});
        refused({.resident_layers = {3}});
        refused({.resident_layers = {-1}});
        for (const int P : {1, 2, 5}) {
            CHECK_NOTHROW(RingPlan({1, 1, 1}, {.num_prefetch = P, .num_slots = least_slots(P)}));
            refused({.num_prefetch = P, .num_slots = least_slots(P) - 1});
        }
    }
}
