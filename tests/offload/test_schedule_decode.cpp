// The critical path and the floor of slabs that travel encoded, by hand and by simulation.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "offload/stream_schedule.h"

using namespace slab::offload;

namespace {

StreamSchedule cold_ring(int L, int P, int R, std::vector<int> resident = {}) {
    return StreamSchedule(RingPlan(std::vector<size_t>(static_cast<size_t>(L), 256),
                                   {.num_prefetch = P, .num_slots = R, .resident_layers = std::move(resident)}));
}

std::vector<int> training_order(int L) {
    std::vector<int> order;
    for (int l = 0; l < L; ++l) order.push_back(l);
    for (int l = L - 1; l >= 0; --l) order.push_back(l);
    return order;
}

// Equal layers: forward f, backward b, a copy c, a decoding d.
struct Equal {
    double f, b, c, d, head, optimizer;

    VisitTimes visits(int L) const {
        const size_t n = static_cast<size_t>(L);
        VisitTimes times{std::vector<double>(2 * n, f), std::vector<double>(2 * n, 0), std::vector<double>(n, c),
                         std::vector<double>(n, d)};
        std::fill(times.visit_ms.begin() + L, times.visit_ms.end(), b);
        times.then_ms[n - 1] = head;
        times.then_ms[2 * n - 1] = optimizer;
        return times;
    }
    PassTimes pass(int L) const { return {L * f, f, f, L * b, b, b, c, head, optimizer, d, L * d}; }
};

double steady_ms(int L, int P, int R, const VisitTimes& times, std::vector<int> resident = {}) {
    return round_ms(cold_ring(L, P, R, std::move(resident)), training_order(L), times, 5).back();
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("critical path with decoding: steps worked out by hand") {
        // Four layers through two slots, forward 2 ms, backward 4 ms, decoding 1 ms, head 5 ms, optimizer 1 ms. A copy
        // of 3 ms hides: compute alone is 8 + 5 + 16 + 1, and six of eight visits decode.
        CHECK(steady_ms(4, 1, 2, Equal{2, 4, 3, 1, 5, 1}.visits(4)) == doctest::Approx(36));
        // A copy of 10 ms, from the end of layer 0's decoding in the backward pass on. Copies of 2 and 3 take 0-20, the
        // decoding of 3 20-21. Its slot is free, so the copy of 1 takes 21-31. On compute follow f3 21-23, head 23-28,
        // b3 28-32 and the decoding of 2, 32-33. That slot is free: the copy of 0 takes 33-43. Its decoding ends at 44,
        // where the next round begins.
        const Equal slow{2, 4, 10, 1, 5, 1};
        CHECK(steady_ms(4, 1, 2, slow.visits(4)) == doctest::Approx(44));
        CHECK(floor_ms(slow.pass(4), 4, 2) == doctest::Approx(44));
        VisitTimes broken = slow.visits(4);
        broken.decode_ms.pop_back();
        CHECK_THROWS_AS(steady_ms(4, 1, 2, broken), std::logic_error);
    }

    TEST_CASE("critical path with decoding: a resident layer is decoded too, and one without a slab is not") {
        // Nothing streams: f 2 x 2, b 2 x 4, both layers decoded, and once less at each turn.
        const Equal equal{2, 4, 10, 1, 0, 0};
        CHECK(steady_ms(2, 1, 2, equal.visits(2), {0, 1}) == doctest::Approx(14));
        VisitTimes times = equal.visits(3);
        times.decode_ms[2] = 0;  // trained in full: layer 1 stays in the work slab over its visits
        CHECK(steady_ms(3, 1, 2, times, {0, 1, 2}) == doctest::Approx(6 + 12 + 2));
    }

    TEST_CASE("critical path with decoding: equals the floor with equal layers, and is never below it") {
        std::mt19937 random(4);
        const auto draw_ms = [&] { return 0.5 + (random() % 1000) / 250.0; };
        int link_bound = 0, compute_bound = 0;
        for (int L = 2; L <= 9; ++L) {
            for (int R = 2; R <= L; ++R) {
                for (int P = 1; P <= R - 1; ++P) {
                    for (int trial = 0; trial < 12; ++trial) {
                        INFO("L=" << L << " R=" << R << " P=" << P << " trial=" << trial);
                        const Equal equal{draw_ms(),       draw_ms(), draw_ms() * (1 + trial % 4),
                                          draw_ms() * 0.3, draw_ms(), draw_ms()};
                        const PassTimes pass = equal.pass(L);
                        const double floor = floor_ms(pass, L, R);
                        CHECK(steady_ms(L, P, R, equal.visits(L)) == doctest::Approx(floor));
                        const double compute = pass.forward_ms + pass.backward_ms + pass.head_ms + pass.optimizer_ms +
                                               2 * (pass.pass_decode_ms - pass.decode_ms);
                        ++(floor > compute + 1e-9 ? link_bound : compute_bound);

                        VisitTimes times = equal.visits(L);
                        PassTimes mixed = pass;
                        mixed.forward_ms = mixed.backward_ms = 0;
                        const size_t n = times.visit_ms.size(), half = n / 2;
                        for (size_t v = 0; v < n; ++v) {
                            times.visit_ms[v] = draw_ms();
                            (v < half ? mixed.forward_ms : mixed.backward_ms) += times.visit_ms[v];
                        }
                        mixed.forward_first_ms = times.visit_ms[0];
                        mixed.forward_last_ms = times.visit_ms[half - 1];
                        mixed.backward_first_ms = times.visit_ms[half];
                        mixed.backward_last_ms = times.visit_ms[n - 1];
                        CHECK(steady_ms(L, P, R, times) >= floor_ms(mixed, L, R) - 1e-9);
                        // A resident layer between streamed ones: one copy less, the same visits and decodings.
                        if (L < 4 || R > L - 1) continue;
                        const int middle = 1 + static_cast<int>(random() % static_cast<unsigned>(L - 2));
                        CHECK(steady_ms(L, P, R, times, {middle}) >= floor_ms(mixed, L - 1, R) - 1e-9);
                    }
                }
            }
        }
        CHECK(link_bound > 100);
        CHECK(compute_bound > 100);
    }
}
