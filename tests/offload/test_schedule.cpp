// The ring's policy, exhaustively for small networks.
//
// Every schedule is replayed by a checker of its own. Its number of loads is compared with a search over all choices of
// victims. The search shares nothing with the policy but the rule of what has to be in the ring when.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "offload/stream_schedule.h"

using namespace slab::offload;

namespace {

struct Case {
    std::string name;
    int L, P, R;
    std::vector<int> order;
    std::vector<bool> streamed;

    int N() const { return static_cast<int>(std::count(streamed.begin(), streamed.end(), true)); }
    std::string text() const {
        std::string s =
            name + " L=" + std::to_string(L) + " P=" + std::to_string(P) + " R=" + std::to_string(R) + " streamed=";
        for (bool b : streamed) s += b ? '1' : '0';
        return s;
    }
};

StreamSchedule schedule_of(const std::vector<bool>& streamed, int P, int R) {
    std::vector<size_t> stored_bytes(streamed.begin(), streamed.end());  // 1 or, for what does not stream, 0
    return StreamSchedule(RingPlan(std::move(stored_bytes), {.num_prefetch = P, .num_slots = R}));
}

std::vector<int> training_order(int L, int lowest_backward = 0) {
    std::vector<int> order;
    for (int l = 0; l < L; ++l) order.push_back(l);
    for (int l = L - 1; l >= lowest_backward; --l) order.push_back(l);
    return order;
}

// All networks up to eight layers, the visiting orders of the trainer, several mixes of resident layers.
template <class Body>
void for_each_case(Body body) {
    for (int L = 1; L <= 8; ++L) {
        std::vector<std::vector<bool>> mixes(5, std::vector<bool>(static_cast<size_t>(L), true));
        for (int l = 0; l < L; ++l) {
            const size_t i = static_cast<size_t>(l);
            mixes[1][i] = l != 0;
            mixes[2][i] = l != L - 1;
            mixes[3][i] = l % 2 == 0;
            mixes[4][i] = l < L / 3 || l > L / 2;
        }
        std::sort(mixes.begin(), mixes.end());
        mixes.erase(std::unique(mixes.begin(), mixes.end()), mixes.end());
        std::vector<int> forward, twice;
        for (int l = 0; l < L; ++l) forward.push_back(l);
        for (int round = 0; round < 2; ++round) twice.insert(twice.end(), forward.begin(), forward.end());
        for (int R = 2; R <= std::max(L, 2); ++R) {
            for (int P = 1; P <= R - 1; ++P) {
                for (const std::vector<bool>& mix : mixes) {
                    body(Case{"training", L, P, R, training_order(L), mix});
                    body(Case{"evaluation", L, P, R, forward, mix});
                    body(Case{"sampling", L, P, R, twice, mix});
                }
                for (int K = 1; K < L; ++K) {
                    std::vector<bool> frozen(static_cast<size_t>(L), false);
                    for (int layer = 0; layer < K; ++layer) frozen[layer] = true;
                    body(Case{"freeze-layers " + std::to_string(K), L, P, R, training_order(L, K), frozen});
                }
            }
        }
    }
}

// The next `count` streamed visits of the cyclic order from `position` on, as a set of layers.
unsigned next_streamed(const Case& c, size_t position, int count) {
    unsigned set = 0;
    int found = 0;
    for (size_t i = 0; i < c.order.size() && found < count; ++i) {
        const int layer = c.order[(position + i) % c.order.size()];
        if (!c.streamed[static_cast<size_t>(layer)]) continue;
        set |= 1u << layer;
        ++found;
    }
    return set;
}

// What the ring must hold (required) and may load (allowed) at each moment of `rounds` rounds: the start, then each
// begin.
struct Moment {
    unsigned open, window;
};
std::vector<Moment> moments(const Case& c, int rounds) {
    std::vector<Moment> result{{0, next_streamed(c, 0, c.P)}};
    for (int round = 0; round < rounds; ++round)
        for (size_t v = 0; v < c.order.size(); ++v)
            result.push_back(
                {c.streamed[static_cast<size_t>(c.order[v])] ? 1u << c.order[v] : 0u, next_streamed(c, v + 1, c.P)});
    return result;
}

// Fewest loads from an empty ring, over all choices of what to let go. The ring is a set of layers; best[set] is the
// least number of loads that leads to it. With `must_prefetch` the window is in the ring after each moment; without, a
// load may be put off until its visit begins.
int fewest_loads(const Case& c, int rounds, bool must_prefetch) {
    const unsigned sets = 1u << c.L;
    const int never = 1 << 20, slots = std::min(c.R, c.N());
    std::vector<int> best(sets, never), next(sets);
    best[0] = 0;
    for (const Moment& m : moments(c, rounds)) {
        std::fill(next.begin(), next.end(), never);
        const unsigned required = must_prefetch ? m.open | m.window : m.open;
        for (unsigned had = 0; had < sets; ++had) {
            if (best[had] == never) continue;
            const unsigned reachable = had | m.open | m.window;
            for (unsigned has = reachable;; has = (has - 1) & reachable) {  // every subset
                if ((has & required) == required && __builtin_popcount(has) <= slots)
                    next[has] = std::min(next[has], best[had] + __builtin_popcount(has & ~had));
                if (has == 0) break;
            }
        }
        best.swap(next);
    }
    return *std::min_element(best.begin(), best.end());
}

// Replays the loads of one case, holding every promise of the schedule against an own copy of the ring. Returns the
// loads of each round.
std::vector<int> replay(const Case& c, int rounds) {
    StreamSchedule schedule = schedule_of(c.streamed, c.P, c.R);
    std::vector<int> ring(static_cast<size_t>(schedule.slots()), -1);
    std::vector<int> per_round;
    const auto apply = [&](const std::vector<SlabLoad>& loads, int open_layer, unsigned allowed) {
        for (const SlabLoad& load : loads) {
            REQUIRE(load.slot >= 0);
            REQUIRE(load.slot < static_cast<int>(ring.size()));
            int& slot = ring[static_cast<size_t>(load.slot)];
            REQUIRE((open_layer < 0 || slot != open_layer));                         // nothing in use is overwritten
            REQUIRE((allowed >> load.layer & 1u) == 1u);                             // at most P ahead
            REQUIRE(std::find(ring.begin(), ring.end(), load.layer) == ring.end());  // nothing is loaded twice
            slot = load.layer;
        }
        return static_cast<int>(loads.size());
    };
    const auto holds = [&](unsigned set) {
        for (int l = 0; l < c.L; ++l)
            if ((set >> l & 1u) == 1u && std::find(ring.begin(), ring.end(), l) == ring.end()) return false;
        return true;
    };
    for (int round = 0; round < rounds; ++round) {
        int loads = apply(schedule.start(c.order), -1, next_streamed(c, 0, c.P));
        REQUIRE(holds(next_streamed(c, 0, c.P)));
        for (size_t v = 0; v < c.order.size(); ++v) {
            const int layer = c.order[v];
            const bool streamed = c.streamed[static_cast<size_t>(layer)];
            const unsigned window = next_streamed(c, v + 1, c.P);
            const StreamSchedule::Visit visit = schedule.begin(layer);
            REQUIRE(visit.announced);
            REQUIRE(visit.in_ring);
            REQUIRE((visit.slot >= 0) == streamed);
            if (streamed) REQUIRE(ring[static_cast<size_t>(visit.slot)] == layer);  // loaded before used
            loads += apply(visit.loads, streamed ? layer : -1, window);
            REQUIRE(holds(window));
            if (streamed) REQUIRE(ring[static_cast<size_t>(visit.slot)] == layer);
            schedule.end(layer);
        }
        per_round.push_back(loads);
    }
    return per_round;
}

int sum(const std::vector<int>& values) {
    int total = 0;
    for (int v : values) total += v;
    return total;
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("schedule: every small network keeps every promise with the fewest loads") {
        const int rounds = 3;
        std::map<std::string, int> cases;
        for_each_case([&](const Case& c) {
            INFO(c.text());
            const std::vector<int> loads = replay(c, rounds);
            REQUIRE(sum(loads) == fewest_loads(c, rounds, true));
            if (c.name == "training") {
                const int N = c.N(), R = std::min(c.R, N);
                REQUIRE(loads[0] == 2 * N - R);
                REQUIRE(loads[1] == 2 * (N - R));
                REQUIRE(loads[2] == 2 * (N - R));
                // In this order keeping the prefetch costs nothing: loading later would not save a single slab.
                REQUIRE(sum(loads) == fewest_loads(c, rounds, false));
            }
            ++cases[c.name.substr(0, 6)];
        });
        CHECK(cases.size() == 4);
        CHECK(cases["traini"] > 300);
    }

    TEST_CASE("schedule: the worked example") {
        const std::vector<int> order = training_order(4);
        const StreamSchedule warm = simulate(schedule_of(std::vector<bool>(4, true), 1, 2), order, order).after;
        std::vector<int> ring = warm.ring();
        std::sort(ring.begin(), ring.end());
        REQUIRE(ring == std::vector<int>{0, 1});
        const int slot_of_0 = warm.ring()[0] == 0 ? 0 : 1, slot_of_1 = 1 - slot_of_0;
        const Simulation pass = simulate(warm, order, order);
        CHECK(pass.at_start.empty());
        const std::vector<std::vector<SlabLoad>> wanted{
            {},                // f0: 1 is here
            {{2, slot_of_0}},  // f1: 2 into 0's slot
            {{3, slot_of_1}},  // f2: 3 into 1's slot
            {},                // f3: next is b3
            {},                // b3: next is b2
            {{1, slot_of_1}},  // b2: 1 into 3's slot
            {{0, slot_of_0}},  // b1: 0 into 2's slot
            {},                // b0: next is f0
        };
        REQUIRE(pass.visits.size() == wanted.size());
        for (size_t v = 0; v < wanted.size(); ++v) CHECK(pass.visits[v].loads == wanted[v]);
        CHECK(pass.loads() == 4);
        CHECK(pass.load_bytes({1, 10, 100, 1000}) == 1111);
        CHECK(pass.after.ring() == warm.ring());
    }

    TEST_CASE("schedule: unannounced visits are served, do not advance the order and leave its window valid") {
        std::mt19937 random(7);
        for (int trial = 0; trial < 400; ++trial) {
            const int L = 2 + static_cast<int>(random() % 6), R = 2 + static_cast<int>(random() % 5);
            const int P = 1 + static_cast<int>(random() % static_cast<unsigned>(R - 1));
            Case c{"training", L, P, R, training_order(L), std::vector<bool>(static_cast<size_t>(L), true)};
            c.streamed[random() % static_cast<unsigned>(L)] = random() % 2 == 0;
            INFO(c.text());
            StreamSchedule schedule = schedule_of(c.streamed, P, R);
            schedule.start(c.order);
            for (int round = 0; round < 3; ++round) {
                for (size_t v = 0; v < c.order.size(); ++v) {
                    while (random() % 3 == 0) {
                        const int stray = static_cast<int>(random() % static_cast<unsigned>(L));
                        if (stray == c.order[v]) continue;
                        const bool here = std::count(schedule.ring().begin(), schedule.ring().end(), stray) > 0;
                        const StreamSchedule::Visit visit = schedule.begin(stray);
                        REQUIRE(!visit.announced);
                        if (c.streamed[static_cast<size_t>(stray)]) {
                            REQUIRE(visit.in_ring == here);
                            REQUIRE(visit.loads.size() == (here ? 0u : 1u));
                            REQUIRE(schedule.ring()[static_cast<size_t>(visit.slot)] == stray);
                        } else {
                            REQUIRE(visit.loads.empty());
                        }
                        schedule.end(stray);
                    }
                    const StreamSchedule::Visit visit = schedule.begin(c.order[v]);
                    REQUIRE(visit.announced);
                    REQUIRE(visit.in_ring);
                    for (int l = 0; l < L; ++l)
                        if ((next_streamed(c, v + 1, P) >> l & 1u) == 1u)
                            REQUIRE(std::count(schedule.ring().begin(), schedule.ring().end(), l) == 1);
                    schedule.end(c.order[v]);
                }
            }
        }
    }

    TEST_CASE("schedule: without an order each visit loads for itself, into the slot used longest ago") {
        StreamSchedule schedule = schedule_of(std::vector<bool>(5, true), 1, 3);
        CHECK(schedule.start({}).empty());
        std::vector<int> slots;
        for (int layer : {0, 1, 2, 3, 4, 3, 0}) {
            const StreamSchedule::Visit visit = schedule.begin(layer);
            CHECK(!visit.announced);
            slots.push_back(visit.slot);
            schedule.end(layer);
        }
        CHECK(slots == std::vector<int>{0, 1, 2, 0, 1, 0, 2});
        CHECK(schedule.slots_in_use() == 3);
    }

    TEST_CASE("schedule: a slab whose load failed is loaded again") {
        StreamSchedule schedule = schedule_of(std::vector<bool>(4, true), 1, 2);
        const std::vector<SlabLoad> first = schedule.start(training_order(4));
        REQUIRE(first.size() == 1);
        schedule.forget(first[0].slot);
        const StreamSchedule::Visit visit = schedule.begin(0);
        CHECK(visit.announced);
        CHECK(!visit.in_ring);
        REQUIRE(visit.loads.size() == 2);
        CHECK(visit.loads[0].layer == 0);
        CHECK(visit.loads[1].layer == 1);
    }

    TEST_CASE("schedule: a copy goes on as the original") {
        StreamSchedule a = schedule_of(std::vector<bool>(6, true), 2, 4);
        a.start(training_order(6));
        for (int l = 0; l < 4; ++l) a.begin(l), a.end(l);
        StreamSchedule b = a;
        for (int l : {4, 5, 5, 2, 4, 3, 2, 1, 0}) {
            const std::vector<SlabLoad> of_a = a.begin(l).loads;
            a.end(l);
            CHECK(of_a == b.begin(l).loads);
            b.end(l);
        }
        CHECK(a.ring() == b.ring());
    }

    TEST_CASE("schedule: a slot let go is the visit's no more, though the visit stays open") {
        StreamSchedule schedule = schedule_of(std::vector<bool>(4, true), 1, 2);
        schedule.start(training_order(4));
        CHECK_THROWS_AS(schedule.let_go(0), std::logic_error);
        const int slot = schedule.begin(0).slot;
        CHECK(schedule.open_slot() == slot);
        CHECK_THROWS_AS(schedule.let_go(1), std::logic_error);
        schedule.let_go(0);
        CHECK(schedule.open_slot() == -1);
        CHECK(schedule.open_layer() == 0);
        CHECK_THROWS_AS(schedule.let_go(0), std::logic_error);
        CHECK_THROWS_AS(schedule.begin(1), std::logic_error);
        schedule.end(0);
        CHECK(schedule.open_layer() == -1);
        CHECK_THROWS_AS(schedule.let_go(0), std::logic_error);
        schedule.begin(1);
        schedule.end(1);  // lets it go as well
        CHECK(schedule.open_slot() == -1);
        CHECK_NOTHROW(schedule.begin(2));
        CHECK_NOTHROW(schedule.let_go(2));
    }

    TEST_CASE("schedule: misuse is refused") {
        StreamSchedule schedule = schedule_of(std::vector<bool>(4, true), 1, 2);
        CHECK_THROWS_AS(schedule.start({0, 4}), std::logic_error);
        CHECK_THROWS_AS(schedule.start({-1}), std::logic_error);
        CHECK_THROWS_AS(schedule.begin(4), std::logic_error);
        CHECK_THROWS_AS(schedule.end(0), std::logic_error);
        schedule.begin(0);
        CHECK_THROWS_AS(schedule.begin(1), std::logic_error);
        CHECK_THROWS_AS(schedule.end(1), std::logic_error);
        CHECK_THROWS_AS(schedule.start({0}), std::logic_error);
        CHECK_NOTHROW(schedule.end(0));
    }

    TEST_CASE("critical path: a step worked out by hand") {
        // Four layers through two slots, forward 2 ms, backward 4 ms, a copy 3 ms, head 5 ms, optimizer 1 ms. Forward:
        // f0 0-2, f1 2-4; copy of 2 waits for f0: 2-5, of 3 for the link: 5-8; f2 5-7, f3 8-10; head 10-15. Backward:
        // b3 15-19, b2 19-23; copy of 1 19-22, of 0 waits for b2: 23-26; b1 23-27, b0 27-31; optimizer 31-32.
        const std::vector<int> order = training_order(4);
        const StreamSchedule cold = schedule_of(std::vector<bool>(4, true), 1, 2);
        const VisitTimes times{{2, 2, 2, 2, 4, 4, 4, 4}, {0, 0, 0, 5, 0, 0, 0, 1}, {3, 3, 3, 3}};
        const std::vector<double> rounds = round_ms(cold, order, times, 3);
        REQUIRE(rounds.size() == 3);
        CHECK(rounds[0] > 32);  // begins with an empty ring
        CHECK(rounds[1] == doctest::Approx(32));
        CHECK(rounds[2] == doctest::Approx(32));
        CHECK(floor_ms({8, 2, 2, 16, 4, 4, 3, 5, 1}, 4, 2) == doctest::Approx(32));
        CHECK_THROWS_AS(round_ms(cold, order, {{1}, {}, {3, 3, 3, 3}}, 1), std::logic_error);
    }

    TEST_CASE("critical path: equals the floor with equal layers, and is never below it") {
        std::mt19937 random(3);
        const auto draw_ms = [&] { return 0.5 + (random() % 1000) / 250.0; };
        for (int L = 2; L <= 8; ++L) {
            for (int R = 2; R <= L; ++R) {
                for (int P = 1; P <= R - 1; ++P) {
                    const StreamSchedule cold = schedule_of(std::vector<bool>(static_cast<size_t>(L), true), P, R);
                    const std::vector<int> order = training_order(L);
                    const size_t n = order.size(), half = n / 2;
                    for (int trial = 0; trial < 8; ++trial) {
                        INFO("L=" << L << " R=" << R << " P=" << P << " trial=" << trial);
                        const double f = draw_ms(), b = draw_ms(), c = draw_ms() * (1 + trial % 3), head = draw_ms();
                        VisitTimes times{std::vector<double>(n, f), std::vector<double>(n, 0),
                                         std::vector<double>(static_cast<size_t>(L), c)};
                        std::fill(times.visit_ms.begin() + L, times.visit_ms.end(), b);
                        times.then_ms[half - 1] = head;
                        times.then_ms[n - 1] = 1;
                        const PassTimes equal{L * f, f, f, L * b, b, b, c, head, 1};
                        CHECK(round_ms(cold, order, times, 4).back() == doctest::Approx(floor_ms(equal, L, R)));

                        PassTimes mixed{0, 0, 0, 0, 0, 0, c, head, 1};
                        for (size_t v = 0; v < n; ++v) {
                            times.visit_ms[v] = draw_ms();
                            (v < half ? mixed.forward_ms : mixed.backward_ms) += times.visit_ms[v];
                        }
                        mixed.forward_first_ms = times.visit_ms[0];
                        mixed.forward_last_ms = times.visit_ms[half - 1];
                        mixed.backward_first_ms = times.visit_ms[half];
                        mixed.backward_last_ms = times.visit_ms[n - 1];
                        CHECK(round_ms(cold, order, times, 4).back() >= floor_ms(mixed, L, R) - 1e-9);
                    }
                }
            }
        }
    }
}
