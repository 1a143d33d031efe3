// Slabs that travel encoded, through the toy decoder: whatever the mix and the timing, the bits are those of the
// resident run on decoded slabs.
//
// Slots are poisoned before each copy, and the work slab before each decoding (toy_streaming.h). A decoding that reads
// too early, a slot overwritten too soon and another layer's work slab all show in the bits.
#if !defined(SLABSTREAM_CUDA)
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/toy_streaming.h"

using namespace slab;
using namespace slab::offload;

namespace {

struct EncodedToy : Toy {
    explicit EncodedToy(int L_, const RingOptions& ring = {}, size_t budget_bytes = 0)
        : Toy(L_, ring, budget_bytes, true) {}
};

size_t largest_layer_bytes(int L) {
    size_t largest = 0;
    for (const SlabLayout& layout : toy_layouts(L)) largest = std::max(largest, layout.total_bytes());
    return largest;
}

// Visits that find the layer of the visit before them in the work slab.
uint64_t repeats(const std::vector<int>& visited) {
    uint64_t count = 0;
    for (size_t v = 1; v < visited.size(); ++v) count += visited[v] == visited[v - 1] ? 1 : 0;
    return count;
}

// Whether the event is reached within ten seconds; a wait that should not be there would hold it up for ever.
bool reached(const Event& event) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!event.complete() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    return event.complete();
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("encoded slabs: every mix of layers, slots, prefetch and residents gives the resident run's bits") {
        for (int L = 1; L <= 5; ++L) {
            const std::vector<int> order = pass_order(L);
            for (int R = 2; R <= std::max(2, L); ++R) {
                for (int P = 1; P <= R - 1; ++P) {
                    for (unsigned residents = 0; residents < 1u << L; ++residents) {
                        INFO("L=" << L << " R=" << R << " P=" << P << " residents=" << residents);
                        const std::vector<int> resident = layers_of(residents);
                        EncodedToy toy(L, {.num_prefetch = P, .num_slots = R, .resident_layers = resident});
                        LayerOffloadManager& m = toy.make();
                        m.attach();
                        const size_t attached_bytes = toy.device.memory().used_bytes();
                        for (int step = 0; step < 3; ++step) toy.step(order);
                        REQUIRE(toy.right());

                        const int N = L - static_cast<int>(resident.size()), slots = std::min(R, N);
                        const OffloadStats& stats = m.stats();
                        REQUIRE(stats.slabs_in == static_cast<uint64_t>(N == 0 ? 0 : 2 * N - slots + 4 * (N - slots)));
                        REQUIRE(stats.hits == static_cast<uint64_t>(6 * N));
                        REQUIRE(stats.misses == 0);
                        REQUIRE(stats.untimed == 0);
                        REQUIRE(stats.decodes == toy.visited.size() - repeats(toy.visited));
                        REQUIRE(toy.decoder->enqueued == static_cast<int>(stats.decodes));

                        // Slots and residents are of encoded layers; beside them stands one decoded layer.
                        const MemoryAccount& memory = toy.device.memory();
                        REQUIRE(m.work_slab_bytes() == largest_layer_bytes(L));
                        REQUIRE(m.plan().resident_bytes() == bytes_of(toy, resident));
                        REQUIRE(memory.used_bytes(MemoryCategory::ring) == m.plan().ring_bytes() + m.work_slab_bytes());
                        REQUIRE(memory.used_bytes(MemoryCategory::weights_resident) == m.plan().resident_bytes());
                        REQUIRE(memory.used_bytes() == attached_bytes);
                        REQUIRE(memory.peak_bytes() == attached_bytes);
                    }
                }
            }
        }
    }

    TEST_CASE("encoded slabs: random delays in either stream change no bit") {
        std::mt19937 random(12);
        for (unsigned trial = 0; trial < 24; ++trial) {
            const int L = 3 + static_cast<int>(random() % 4), R = 2 + static_cast<int>(random() % 2);
            const int P = 1 + static_cast<int>(random() % static_cast<unsigned>(R - 1));
            const std::vector<int> resident =
                layers_of(trial % 2 == 0 ? 0u : 1u << (random() % static_cast<unsigned>(L)));
            EncodedToy toy(L, {.num_prefetch = P, .num_slots = R, .resident_layers = resident});
            const Stream* only = trial % 3 == 0 ? &toy.compute : trial % 3 == 1 ? &toy.transfer : nullptr;
            toy.make({.disturb = random_delays(trial, only)});
            toy.manager->attach();
            INFO("trial=" << trial << " L=" << L << " R=" << R << " P=" << P);
            for (int step = 0; step < 2; ++step) toy.step(pass_order(L));
            CHECK(toy.right());
        }
    }

    TEST_CASE("encoded slabs: late copies, late decodings and late visits are waited for") {
        for (const std::string late : {"copies", "decodings", "visits"}) {
            EncodedToy toy(5);
            toy.decoder->late_us = late == "decodings" ? 1500 : 0;
            const Stream* stream_held = late == "copies" ? &toy.transfer : late == "visits" ? &toy.compute : nullptr;
            toy.make({.disturb = [stream_held](Stream& stream) {
                if (&stream == stream_held) delay_async(1500, stream);
            }});
            toy.manager->attach();
            INFO("late " << late);
            for (int step = 0; step < 2; ++step) toy.step(pass_order(5));
            CHECK(toy.right());
        }
    }

    TEST_CASE("encoded slabs: a slot is free while its layer's visit goes on, and over a turn") {
        Gate visit;
        EncodedToy toy(6);
        LayerOffloadManager& m = toy.make();
        m.attach();
        toy.step(pass_order(6));
        Event copied(toy.device);
        m.pre_step(pass_order(6));
        toy.visit_all({0, 1, 2, 3, 4});
        m.begin_layer(5);
        visit.hold(toy.compute);
        m.end_layer(5);
        m.begin_layer(5);  // the turn: nothing to wait for, nothing to decode
        m.end_layer(5);
        m.begin_layer(4);  // asks for layer 3, into the slot that layer 5 was decoded from
        copied.record(toy.transfer);
        const bool copied_early = reached(copied);
        visit.open();  // before the checks: a failed one would leave the streams waiting
        m.end_layer(4);
        CHECK(copied_early);
        toy.visited.insert(toy.visited.end(), {5, 5, 4});
        toy.visit_all({3, 2, 1, 0});
        m.post_step();
        CHECK(m.stats().decodes == toy.visited.size() - repeats(toy.visited));
    }

    TEST_CASE("encoded slabs: visits that were not announced, and the same layer again and again") {
        std::mt19937 random(5);
        for (unsigned trial = 0; trial < 30; ++trial) {
            const int L = 3 + static_cast<int>(random() % 4), R = 2 + static_cast<int>(random() % 3);
            const int P = 1 + static_cast<int>(random() % static_cast<unsigned>(R - 1));
            EncodedToy toy(L, {.num_prefetch = P, .num_slots = R, .resident_layers = {1}});
            LayerOffloadManager& m = toy.make({.disturb = trial % 5 == 0 ? random_delays(trial) : nullptr});
            m.attach();
            INFO("trial=" << trial << " L=" << L << " R=" << R << " P=" << P);
            toy.visit_all({2, 2, 0, 1, 1, 2, 0});  // no order at all yet
            for (int step = 0; step < 2; ++step) {
                m.pre_step(pass_order(L));
                for (int layer : pass_order(L)) {
                    while (random() % 3 == 0) toy.visit(static_cast<int>(random() % static_cast<unsigned>(L)));
                    toy.visit(layer);
                }
                m.post_step();
            }
            CHECK(toy.right());
            CHECK(m.stats().decodes == toy.visited.size() - repeats(toy.visited));
        }
    }

    TEST_CASE("encoded slabs: a layer in the work slab and no longer in the ring is loaded, and not waited for") {
        EncodedToy toy(5, {.resident_layers = {}});
        LayerOffloadManager& m = toy.make();
        m.attach();
        m.pre_step({0, 1, 2, 3, 4});
        toy.visit(0);
        // The order begins anew: slabs of its first visits take the slots, layer 0's too.
        m.pre_step({3, 4, 2, 1});
        toy.visit_all({0, 0, 3, 4, 2, 1, 0});
        m.post_step();
        CHECK(toy.right());
    }

    TEST_CASE("encoded slabs: detach and attach in the middle of training keep the bits and the account") {
        const int L = 5;
        EncodedToy toy(L, {.num_slots = 3, .resident_layers = {3}});
        LayerOffloadManager& m = toy.make({.disturb = random_delays(99)});
        m.attach();
        MemoryAccount& memory = toy.device.memory();
        const size_t attached_bytes = memory.used_bytes();
        toy.step(pass_order(L));
        for (int round = 0; round < 2; ++round) {
            toy.visit(2);  // in the work slab when streaming stops
            m.detach();
            CHECK(memory.used_bytes(MemoryCategory::ring) == m.work_slab_bytes());
            CHECK(memory.used_bytes(MemoryCategory::weights_resident) ==
                  m.plan().resident_bytes() + m.plan().streamed_bytes());
            const uint64_t decoded_before = m.stats().decodes;
            toy.visit_all({2, 2, 4, 3, 3});
            CHECK(m.stats().decodes == decoded_before + 3);
            toy.step(pass_order(L));
            m.attach();
            CHECK(memory.used_bytes() == attached_bytes);
            toy.visit_all({0, 4});
            toy.step(pass_order(L));
            toy.step(pass_order(L));
        }
        CHECK(toy.right());
        m.pre_step(pass_order(L));
        toy.visit_all({0, 1, 2});
        m.detach();
        toy.visit_all({3, 4});
        m.attach();
        toy.visit_all({4, 3, 2, 1, 0});
        m.post_step();
        toy.step(pass_order(L));
        CHECK(toy.right());
    }

    TEST_CASE("encoded slabs: a source or a decoder that fails leaves nothing wrong behind") {
        for (const bool decoder_fails : {false, true}) {
            CAPTURE(decoder_fails);
            EncodedToy toy(5, {.num_prefetch = 2, .num_slots = 3, .resident_layers = {1}});
            LayerOffloadManager& m = toy.make({.trace = true});
            m.attach();
            for (const int failing : decoder_fails ? std::vector<int>{0, 1, 3} : std::vector<int>{0}) {
                CAPTURE(failing);
                toy.step(pass_order(5));
                toy.step({2, 3, 4});  // layer 0 leaves the ring
                int failures = 0;
                (decoder_fails ? toy.decoder->failing_layer : toy.source.failing_layer) = failing;
                try {
                    m.pre_step(pass_order(5));
                    for (int layer : {2, 0, 1, 3, 4}) {
                        m.begin_layer(layer);
                        m.end_layer(layer);  // visits without kernels change no bit
                    }
                } catch (const std::runtime_error&) {
                    ++failures;
                }
                toy.decoder->failing_layer = toy.source.failing_layer = -1;
                CHECK(failures == 1);
                toy.visit_all({failing, 3, failing, 0, 2});
                CHECK(toy.right());
            }
            m.stats();
            CHECK(m.trace().size() > 0);
        }
    }

    TEST_CASE("encoded slabs: layers without a slab are not decoded, and leave the work slab alone") {
        Device device({.threads = 1});
        Stream compute(device, "compute"), transfer(device, "transfer");
        std::vector<SlabLayout> layouts = encoded_toy_layouts(3);
        layouts[2] = SlabLayout{};  // trained in full
        const RingPlan plan(slab_bytes(layouts), {});
        const HostStore store(device, layouts, plan,
                              [&](int layer, std::byte* dst) { fill_encoded_toy(layouts[layer], layer, dst); });
        SlabSender sender(store, device);
        ToyDecoder decoder(3);
        LayerOffloadManager m(sender, plan, compute, transfer, device, {}, &decoder);
        m.attach();
        m.pre_step({0, 1, 2, 2, 1, 0});
        for (int layer : {0, 1, 2, 2, 1, 0}) {
            const LayerView view = m.begin_layer(layer);
            CHECK((view.base == nullptr) == (layer == 2));
            CHECK(view.layout == &decoder.layout(layer));
            m.end_layer(layer);
        }
        m.post_step();
        CHECK(m.stats().decodes == 3);  // layer 1 once for both of its visits
    }

    TEST_CASE("encoded slabs: without layers that stream, and with a budget that lacks the work slab") {
        EncodedToy all(3, {.resident_layers = {0, 1, 2}});
        LayerOffloadManager& m = all.make();
        m.attach();
        CHECK(m.plan().ring_bytes() == 0);
        all.step(pass_order(3));
        CHECK(all.right());
        CHECK(m.stats().decodes == 5);
        CHECK(m.stats().slabs_in == 0);

        const size_t needed = [&] {
            EncodedToy toy(4, {.resident_layers = {1}});
            toy.make().attach();
            return toy.device.memory().used_bytes();
        }();
        EncodedToy enough(4, {.resident_layers = {1}}, needed), small(4, {.resident_layers = {1}}, needed - 1);
        CHECK_NOTHROW(enough.make().attach());
        CHECK_THROWS_AS(small.make().attach(), OutOfBudget);
        CHECK(small.device.memory().used_bytes() == 0);
    }

    TEST_CASE("encoded slabs: the trace has a box for each decoding, between the wait and the visit") {
        using Kind = TraceBox::Kind;
        EncodedToy toy(4);
        LayerOffloadManager& m = toy.make({.trace = true});
        m.attach();
        toy.step(pass_order(4));
        toy.step(pass_order(4));
        std::vector<TraceBox> decodes, visits;
        for (const TraceBox& box : m.trace()) {
            if (box.kind == Kind::decode) decodes.push_back(box);
            if (box.kind == Kind::visit) visits.push_back(box);
        }
        REQUIRE(visits.size() == 16);
        REQUIRE(decodes.size() == 16 - 3);
        CHECK(decodes.size() == m.stats().decodes);
        size_t d = 0;
        for (size_t v = 0; v < visits.size(); ++v) {
            if (v > 0 && visits[v].layer == visits[v - 1].layer) continue;
            CHECK(decodes[d].layer == visits[v].layer);
            CHECK(decodes[d].end_ms <= visits[v].start_ms + 1e-3);
            if (v > 0) CHECK(decodes[d].start_ms >= visits[v - 1].end_ms - 1e-3);
            ++d;
        }
    }
}

#endif  // !SLABSTREAM_CUDA
