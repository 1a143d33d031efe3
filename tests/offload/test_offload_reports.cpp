// The trace, the measure of waiting, the report before a run.
#if !defined(SLABSTREAM_CUDA)
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/toy_streaming.h"

using namespace slab;
using namespace slab::offload;

namespace {

using Kind = LayerOffloadManager::TraceBox::Kind;

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("offload: trace boxes say what happened, in an order that the protocol allows") {
        const int L = 5;
        Toy toy(L, {.resident_layers = {2}});
        LayerOffloadManager& m = toy.make({.trace = true, .disturb = random_delays(3)});
        m.attach();
        for (int step = 0; step < 3; ++step) {
            m.set_trace_step(step + 7);
            toy.step(pass_order(L));
        }
        std::vector<LayerOffloadManager::TraceBox> boxes = m.trace(), copies, visits, waits;
        for (const auto& box : boxes) {
            CHECK(box.end_ms >= box.start_ms);
            (box.kind == Kind::copy ? copies : box.kind == Kind::visit ? visits : waits).push_back(box);
        }
        const OffloadStats& stats = m.stats();
        CHECK(copies.size() == stats.slabs_in);
        REQUIRE(visits.size() == toy.visited.size());
        CHECK(waits.size() == stats.hits);
        size_t copied_bytes = 0;
        for (size_t i = 0; i < copies.size(); ++i) {
            copied_bytes += copies[i].bytes;
            CHECK(copies[i].bytes == toy.store.layout(copies[i].layer).total_bytes());
            if (i > 0) CHECK(copies[i].start_ms >= copies[i - 1].end_ms - 1e-3);
        }
        CHECK(copied_bytes == stats.bytes_in);
        // The n-th load of a layer ends before the visits that read it begin.
        for (size_t v = 0; v < visits.size(); ++v) {
            CHECK(visits[v].layer == toy.visited[v]);
            CHECK(visits[v].step == static_cast<int64_t>(7 + v / (2 * L)));
            if (v > 0) CHECK(visits[v].start_ms >= visits[v - 1].end_ms - 1e-3);
            if (visits[v].layer == 2) continue;
            const bool arrived = std::any_of(copies.begin(), copies.end(), [&](const auto& copy) {
                return copy.layer == visits[v].layer && copy.end_ms <= visits[v].start_ms + 1e-3;
            });
            CHECK(arrived);
            for (const auto& copy : copies)  // no copy of a layer runs while the layer is visited
                if (copy.layer == visits[v].layer)
                    CHECK((copy.end_ms <= visits[v].start_ms + 1e-3 || copy.start_ms >= visits[v].end_ms - 1e-3));
        }
        double wait_ms = 0, stall_ms = 0;
        for (const auto& wait : waits) wait_ms += wait.end_ms - wait.start_ms;
        for (double ms : stats.stall_ms) stall_ms += ms;
        CHECK(stats.wait_ms == doctest::Approx(wait_ms).epsilon(1e-3));
        CHECK(stats.wait_ms == doctest::Approx(stall_ms));
        CHECK(stats.stall_ms[2] == 0);
        CHECK(stats.untimed == 0);

        m.set_trace(false);
        toy.step(pass_order(L));
        CHECK(m.trace().size() == boxes.size());
        m.set_trace(true);
        CHECK(m.trace().empty());
        toy.step(pass_order(L));
        CHECK(m.trace().size() == 2 * L + 2 * 4 + 2 * (4 - 2));
        CHECK(toy.right());
    }

    TEST_CASE("offload: waiting is measured when the copies are late") {
        Gate copies, compute_came;
        Toy toy(4);
        LayerOffloadManager& m = toy.make({.disturb = [&](Stream& stream) {
            if (&stream == &toy.transfer) copies.hold(stream);
        }});
        m.attach();
        toy.compute.host_function("came", [&compute_came] { compute_came.open(); });
        toy.step(pass_order(4));
        compute_came.pass();
        std::this_thread::sleep_for(std::chrono::milliseconds(40));
        copies.open();
        toy.compute.synchronize();
        CHECK(m.stats().wait_ms > 1.0);
        CHECK(m.stats().stall_ms[0] > 1.0);
        CHECK(toy.right());
        m.reset_stats();
        CHECK(m.stats().wait_ms == 0);
        CHECK(m.stats().stall_ms == std::vector<double>(4, 0.0));
        CHECK(m.stats().slabs_in == 0);
    }

    TEST_CASE("offload: a host far ahead leaves times out rather than wait or allocate") {
        Gate work;
        Toy toy(3);
        LayerOffloadManager& m = toy.make();
        m.attach();
        work.hold(toy.compute);
        m.pre_step(pass_order(3));
        for (int round = 0; round < 250; ++round) toy.visit_all(pass_order(3));
        m.post_step();
        CHECK(m.stats().untimed == 1500 - 1024);
        work.open();
        CHECK(toy.right());
        toy.step(pass_order(3));
        CHECK(m.stats().untimed == 1500 - 1024);
        CHECK(toy.right());
    }

    TEST_CASE("offload: the report says what is streamed and what is spared") {
        const std::vector<size_t> bytes = slab_bytes(toy_layouts(6));
        const RingPlan plan(bytes, {.num_slots = 3, .resident_layers = {0}});
        CHECK(plan.report().find("streams 5 of 6 layers through 3 slots") != std::string::npos);
        CHECK(plan.report().find(" of device memory") != std::string::npos);
        const RingPlan wide(bytes, {.num_slots = 9, .resident_layers = {0}});
        CHECK(wide.slots() == 5);
        CHECK(wide.report().find("holds every streamed layer") != std::string::npos);
        CHECK(wide.report().find("9 slots were asked for") != std::string::npos);
    }
}

#endif  // !SLABSTREAM_CUDA
