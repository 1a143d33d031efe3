// The central promise of the plugin: streamed gives the bits of resident, whatever the mix and the timing.
//
// Through the toy network of toy_streaming.h; test_offload_copies.cpp shows the copies themselves for both backends.
#if !defined(SLABSTREAM_CUDA)
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/toy_streaming.h"

using namespace slab;
using namespace slab::offload;

TEST_SUITE("cpu") {
    TEST_CASE("offload: every mix of layers, slots, prefetch and residents gives the resident run's bits") {
        for (int L = 1; L <= 6; ++L) {
            const std::vector<int> order = pass_order(L);
            for (int R = 2; R <= std::max(2, L); ++R) {
                for (int P = 1; P <= R - 1; ++P) {
                    for (unsigned residents = 0; residents < 1u << L; ++residents) {
                        INFO("L=" << L << " R=" << R << " P=" << P << " residents=" << residents);
                        const std::vector<int> resident = layers_of(residents);
                        Toy toy(L, {.num_prefetch = P, .num_slots = R, .resident_layers = resident});
                        LayerOffloadManager& m = toy.make();
                        m.attach();
                        const size_t attached_bytes = toy.device.memory().used_bytes();
                        const uint64_t bytes_before = toy.device.traffic().host_to_device_bytes;
                        for (int step = 0; step < 3; ++step) toy.step(order);
                        REQUIRE(toy.right());

                        const int N = L - static_cast<int>(resident.size()), slots = std::min(R, N);
                        const OffloadStats& stats = m.stats();
                        REQUIRE(stats.slabs_in == static_cast<uint64_t>(N == 0 ? 0 : 2 * N - slots + 4 * (N - slots)));
                        REQUIRE(stats.bytes_in == toy.device.traffic().host_to_device_bytes - bytes_before);
                        REQUIRE(stats.slabs_out == 0);
                        REQUIRE(stats.bytes_out == 0);
                        REQUIRE(toy.device.traffic().device_to_host_bytes == 0);
                        REQUIRE(stats.hits == static_cast<uint64_t>(6 * N));
                        REQUIRE(stats.misses == 0);
                        REQUIRE(stats.peak_slots == slots);
                        REQUIRE(stats.untimed == 0);

                        size_t largest = 0;
                        for (int l = 0; l < L; ++l)
                            if ((residents >> l & 1u) == 0u)
                                largest = std::max(largest, toy.store.layout(l).total_bytes());
                        const MemoryAccount& memory = toy.device.memory();
                        REQUIRE(m.plan().ring_bytes() == static_cast<size_t>(slots) * largest);
                        REQUIRE(m.plan().resident_bytes() == bytes_of(toy, resident));
                        REQUIRE(memory.used_bytes(MemoryCategory::ring) == m.plan().ring_bytes());
                        REQUIRE(memory.used_bytes(MemoryCategory::weights_resident) == m.plan().resident_bytes());
                        // Nothing was allocated after attach.
                        REQUIRE(memory.used_bytes() == attached_bytes);
                        REQUIRE(memory.peak_bytes() == attached_bytes);
                    }
                }
            }
        }
    }

    TEST_CASE("offload: random delays in either stream change no bit") {
        std::mt19937 random(11);
        for (unsigned trial = 0; trial < 24; ++trial) {
            const int L = 3 + static_cast<int>(random() % 4), R = 2 + static_cast<int>(random() % 2);
            const int P = 1 + static_cast<int>(random() % static_cast<unsigned>(R - 1));
            const std::vector<int> resident =
                layers_of(trial % 2 == 0 ? 0u : 1u << (random() % static_cast<unsigned>(L)));
            Toy toy(L, {.num_prefetch = P, .num_slots = R, .resident_layers = resident});
            const Stream* only = trial % 3 == 0 ? &toy.compute : trial % 3 == 1 ? &toy.transfer : nullptr;
            toy.make({.disturb = random_delays(trial, only)});
            toy.manager->attach();
            INFO("trial=" << trial << " L=" << L << " R=" << R << " P=" << P);
            for (int step = 0; step < 2; ++step) toy.step(pass_order(L));
            CHECK(toy.right());
        }
    }

    TEST_CASE("offload: late copies are waited for, and late readers") {
        // Every copy late, then every visit late: each of the two waits alone is what keeps the bits.
        for (const bool late_copies : {true, false}) {
            Toy toy(5);
            const Stream* late = late_copies ? &toy.transfer : &toy.compute;
            toy.make({.disturb = [late](Stream& stream) {
                if (&stream == late) delay_async(1500, stream);
            }});
            toy.manager->attach();
            INFO("late " << late->name());
            for (int step = 0; step < 2; ++step) toy.step(pass_order(5));
            CHECK(toy.right());
        }
    }

    TEST_CASE("offload: partial freezing, evaluation and sampling between steps leave the bits of training alone") {
        const int L = 5;
        for (const int K : {1, 3, 5}) {
            std::vector<int> trained_in_full;
            for (int l = K; l < L; ++l) trained_in_full.push_back(l);
            Toy toy(L, {.num_prefetch = 2, .num_slots = 3, .resident_layers = trained_in_full});
            toy.make({.disturb = random_delays(static_cast<unsigned>(K))});
            toy.manager->attach();
            const std::vector<int> training = pass_order(L, K < L ? K : 0);
            std::vector<int> forward(training.begin(), training.begin() + L);
            toy.step(training);
            toy.step(forward);               // evaluation
            toy.manager->pre_step(forward);  // sampling: the order again and again, left in the middle
            toy.visit_all(forward);
            toy.visit_all({0, 1, 2});
            toy.manager->post_step();
            toy.step(training);
            CHECK(toy.right());
            CHECK(toy.manager->stats().misses == 0);
        }
    }

    TEST_CASE("offload: micro-batches go round the announced order") {
        Toy toy(6, {.num_slots = 3});
        LayerOffloadManager& m = toy.make();
        m.attach();
        for (int step = 0; step < 2; ++step) {
            m.pre_step(pass_order(6));
            for (int micro_batch = 0; micro_batch < 3; ++micro_batch) toy.visit_all(pass_order(6));
            m.post_step();
        }
        CHECK(toy.right());
        CHECK(m.stats().slabs_in == 2 * 6 - 3 + 5 * 2 * (6 - 3));
        CHECK(m.stats().misses == 0);
    }

    TEST_CASE("offload: visits that were not announced are served, and counted as misses") {
        std::mt19937 random(5);
        for (unsigned trial = 0; trial < 30; ++trial) {
            const int L = 3 + static_cast<int>(random() % 4), R = 2 + static_cast<int>(random() % 3);
            const int P = 1 + static_cast<int>(random() % static_cast<unsigned>(R - 1));
            Toy toy(L, {.num_prefetch = P, .num_slots = R, .resident_layers = {1}});
            std::function<void(Stream&)> disturb;
            if (trial % 5 == 0) disturb = random_delays(trial);
            LayerOffloadManager& m = toy.make({.disturb = disturb});
            m.attach();
            INFO("trial=" << trial << " L=" << L << " R=" << R << " P=" << P);
            uint64_t misses = 0;
            const auto stray = [&](int expected) {
                while (random() % 3 == 0) {
                    const int layer = static_cast<int>(random() % static_cast<unsigned>(L));
                    if (layer == expected) continue;
                    toy.visit(layer);
                    misses += layer == 1 ? 0 : 1;
                }
            };
            for (int layer : {2, 0, 1, 2, 0}) {  // no order at all yet
                toy.visit(layer);
                misses += layer == 1 ? 0 : 1;
            }
            uint64_t announced = 0;
            for (int step = 0; step < 2; ++step) {
                m.pre_step(pass_order(L));
                for (int layer : pass_order(L)) {
                    stray(layer);
                    toy.visit(layer);
                    announced += layer == 1 ? 0 : 1;
                }
                m.post_step();
            }
            CHECK(toy.right());
            CHECK(m.stats().misses == misses);
            CHECK(m.stats().hits == announced);
        }
    }

    TEST_CASE("offload: detach and attach in the middle of training keep the bits and the account") {
        const int L = 5;
        Toy toy(L, {.num_slots = 3, .resident_layers = {3}});
        LayerOffloadManager& m = toy.make({.disturb = random_delays(99)});
        CHECK(!m.attached());
        m.attach();
        CHECK(m.attached());
        MemoryAccount& memory = toy.device.memory();
        const size_t attached_bytes = memory.used_bytes();
        toy.step(pass_order(L));
        for (int round = 0; round < 2; ++round) {
            m.detach();
            CHECK(!m.attached());
            CHECK(memory.used_bytes(MemoryCategory::ring) == 0);
            CHECK(memory.used_bytes(MemoryCategory::weights_resident) ==
                  m.plan().resident_bytes() + m.plan().streamed_bytes());
            const uint64_t traffic_before = toy.device.traffic().host_to_device_bytes;
            const uint64_t slabs_before = m.stats().slabs_in;
            toy.step(pass_order(L));
            toy.visit(2);
            CHECK(m.stats().slabs_in == slabs_before);
            CHECK(toy.device.traffic().host_to_device_bytes == traffic_before);
            m.attach();
            CHECK(memory.used_bytes() == attached_bytes);
            toy.visit(4);  // before any order is announced again
            toy.step(pass_order(L));
            toy.step(pass_order(L));
        }
        CHECK(toy.right());
        CHECK(toy.device.traffic().device_to_host_bytes == 0);
        // In the middle of a step: the rest of its visits are served, resident and then unannounced.
        m.pre_step(pass_order(L));
        toy.visit_all({0, 1, 2});
        m.detach();
        toy.visit_all({3, 4});
        m.attach();
        toy.visit_all({4, 3, 2, 1, 0});
        m.post_step();
        toy.step(pass_order(L));
        CHECK(toy.right());
        // Another manager on the same slabs: the resident layers are asked for again.
        toy.make_with(RingPlan(slab_bytes(toy_layouts(L)), {.resident_layers = {3}}));
        CHECK(memory.used_bytes() == 0);
        toy.manager->attach();
        toy.step(pass_order(L));
        CHECK(toy.right());
    }

    TEST_CASE("offload: layers without a slab, and nothing to stream at all") {
        Device device({.threads = 1});
        Stream compute(device, "compute"), transfer(device, "transfer");
        std::vector<SlabLayout> layouts = toy_layouts(3);
        layouts[1] = SlabLayout{};
        const RingPlan plan(slab_bytes(layouts), {});
        const HostStore store(device, layouts, plan,
                              [&](int layer, std::byte* dst) { fill_toy(layouts[layer], layer, dst); });
        SlabSender sender(store, device);
        {
            LayerOffloadManager m(sender, plan, compute, transfer, device);
            CHECK(m.plan().streamed_layers() == 2);
            m.attach();
            m.pre_step(pass_order(3));
            for (int layer : pass_order(3)) {
                const LayerView view = m.begin_layer(layer);
                CHECK((view.base == nullptr) == (layer == 1));
                CHECK(view.layout == &store.layout(layer));
                m.end_layer(layer);
            }
            m.post_step();
            CHECK(m.stats().hits == 4);
            CHECK(m.stats().slabs_in == 2);
        }
        LayerOffloadManager m(sender, RingPlan(slab_bytes(layouts), {.resident_layers = {0, 1, 2}}), compute, transfer,
                              device);
        CHECK(m.plan().streamed_layers() == 0);
        CHECK(m.plan().slots() == 0);
        CHECK(m.plan().ring_bytes() == 0);
        CHECK(m.report().rfind("inactive", 0) == 0);
        m.attach();
        m.pre_step(pass_order(3));
        for (int layer : pass_order(3)) {
            CHECK((m.begin_layer(layer).base == nullptr) == (layer == 1));
            m.end_layer(layer);
        }
        m.post_step();
        CHECK(m.stats().slabs_in == 0);
        m.detach();
        m.attach();
    }
}

#endif  // !SLABSTREAM_CUDA
