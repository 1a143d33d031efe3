// Waits that no visit goes through: of attach, detach and the loading of resident layers.
//
// Each case holds a reader or a copy up, and checks what the wait has to guarantee. The waits are removed one by one in
// a copy (`mutation_test.sh`): these cases must fail, and ThreadSanitizer must report the race. So `ended` is an
// ordinary int. Only the wait in question orders the test after the work that writes it.
#if !defined(SLABSTREAM_CUDA)
#include <doctest/doctest.h>

#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/toy_streaming.h"

using namespace slab;
using namespace slab::offload;

namespace {

void end_late(int& ended) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ended = 1;
}

// A visit whose last kernel is late.
void visit_late(Toy& toy, int layer, int& ended) {
    toy.manager->begin_layer(layer);
    toy.compute.host_function("late", [&ended] { end_late(ended); });
    toy.manager->end_layer(layer);
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("waits: attach frees the layers' memory after their last visit") {
        int ended = 0;
        Toy toy(3);
        toy.make().attach();
        toy.manager->detach();
        visit_late(toy, 1, ended);
        toy.manager->attach();
        CHECK(ended == 1);
    }

    TEST_CASE("waits: detach frees the ring after its last visit") {
        int ended = 0;
        Toy toy(3);
        toy.make().attach();
        visit_late(toy, 1, ended);
        toy.manager->detach();
        CHECK(ended == 1);
    }

    TEST_CASE("waits: layers brought back are there when detach returns") {
        Toy toy(3);
        LayerOffloadManager& m = toy.make({.disturb = [&toy](Stream& stream) {
            if (&stream == &toy.transfer) delay_async(5000, stream);
        }});
        m.attach();
        m.detach();
        toy.visit_all({2, 1, 0});
        CHECK(toy.right());
    }

    TEST_CASE("waits: a resident layer's copy ends before the next layer is read into the same memory") {
        // Three resident layers, of which two are asked for: the buffer stays until the sender goes.
        Toy toy(4, {.resident_layers = {0, 1, 2}});
        std::vector<DeviceBuffer> slabs;
        for (int layer : {0, 1}) {
            const size_t bytes = toy.store.layout(layer).total_bytes();
            slabs.emplace_back(toy.device, bytes, MemoryCategory::ring, "test");
            delay_async(20000, toy.transfer);
            toy.sender.enqueue(layer, slabs.back().data(), toy.transfer);
        }
        toy.transfer.synchronize();
        for (int layer : {0, 1}) {
            std::vector<std::byte> wanted(toy.store.layout(layer).total_bytes());
            toy.store.read(layer, wanted.data());
            CHECK(std::memcmp(slabs[layer].data(), wanted.data(), wanted.size()) == 0);
        }
    }

    TEST_CASE("waits: a resident layer that fails half-way leaves nothing that still reads its memory") {
        int ended = 0;
        Device device({.threads = 1});
        Stream transfer(device, "transfer");
        const RingPlan plan(slab_bytes(toy_layouts(3)), {.resident_layers = {1}});
        const HostStore store = toy_store(device, plan, {.page_lock = false, .staging_chunk_bytes = 256});
        int chunks = 0;
        SlabSender sender(store, device, [&](Stream& staging) {
            if (++chunks > 1) throw std::runtime_error("second chunk");
            staging.host_function("first chunk", [&ended] {
                end_late(ended);
                throw std::runtime_error("first chunk");
            });
        });
        DeviceBuffer slab(device, store.layout(1).total_bytes(), MemoryCategory::ring, "test");
        REQUIRE(slab.bytes() > 256);
        CHECK_THROWS_WITH_AS(sender.enqueue(1, slab.data(), transfer), "second chunk", std::runtime_error);
        CHECK(ended == 1);
        CHECK_THROWS_AS(transfer.synchronize(), DeviceError);
    }
}

#endif  // !SLABSTREAM_CUDA
