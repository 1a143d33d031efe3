// Streaming on whichever backend the build has. Every visit copies its slab, on the compute stream, to a record in
// device memory. The record must be the slabs in the order of the visits.
//
// With no mathematics in it the same source checks the protocol on a GPU. Slots are poisoned before each copy. Either
// stream is held up at random. Slabs are so big that a reader which did not wait sees a copy in flight.
#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <vector>

#include "offload/host_store.h"
#include "offload/layer_offload_manager.h"
#include "offload/slab_sender.h"
#include "tests/poisoning_source.h"

using namespace slab;
using namespace slab::offload;

namespace {

constexpr int L = 6;

// largest_bytes: of a slab; the layers' sizes differ.
void stream_and_record(size_t largest_bytes, int P, int R, const std::vector<int>& resident, unsigned seed) {
    Device device({.threads = 1});
    Stream compute(device, "compute"), transfer(device, "transfer");
    std::vector<SlabLayout> layouts(L);
    for (int l = 0; l < L; ++l) {
        layouts[static_cast<size_t>(l)].add("a", largest_bytes / 2 - static_cast<size_t>(l) * 1001);
        layouts[static_cast<size_t>(l)].add("b", largest_bytes / 2);
    }
    const RingPlan plan(slab_bytes(layouts), {.num_prefetch = P, .num_slots = R, .resident_layers = resident});
    const HostStore store(device, layouts, plan, [&](int layer, std::byte* dst) {
        for (const SlabTensor& tensor : layouts[layer].tensors())
            for (size_t i = 0; i < tensor.bytes; ++i)
                dst[tensor.offset_bytes + i] =
                    static_cast<std::byte>((i * 31 + i / 251 + 57 * static_cast<size_t>(layer)) % 251);
    });
    SlabSender sender(store, device);
    PoisoningSource source(sender);
    std::mt19937 random(seed);
    LayerOffloadManager m(source, plan, compute, transfer, device, {.disturb = [&random](Stream& stream) {
                              if (random() % 3 == 0) delay_async(static_cast<int>(random() % 3000), stream);
                          }});
    m.attach();
    std::vector<int> visits;
    for (int l = 0; l < L; ++l) visits.push_back(l);
    for (int l = L - 1; l >= 0; --l) visits.push_back(l);

    const size_t place_bytes = (largest_bytes + 511) / 256 * 256;
    const size_t record_bytes = place_bytes * visits.size();
    const DeviceBuffer record(device, record_bytes, MemoryCategory::activations, "record");
    PinnedBuffer seen(device, record_bytes, "record");
    for (int step = 0; step < 3; ++step) {
        m.pre_step(visits);
        for (size_t v = 0; v < visits.size(); ++v) {
            const LayerView view = m.begin_layer(visits[v]);
            copy_async(record.data() + v * place_bytes, view.base, view.layout->total_bytes(),
                       CopyKind::device_to_device, compute);
            m.end_layer(visits[v]);
        }
        m.post_step();
        CHECK(device.traffic().device_to_host_bytes == static_cast<uint64_t>(step) * record_bytes);
        copy_async(seen.data(), record.data(), record_bytes, CopyKind::device_to_host, compute);
        compute.synchronize();
        for (size_t v = 0; v < visits.size(); ++v) {
            INFO("P=" << P << " R=" << R << " step=" << step << " visit=" << v << " layer=" << visits[v]);
            for (const SlabTensor& tensor : store.layout(visits[v]).tensors()) {
                size_t wrong = 0;
                for (size_t i = 0; i < tensor.bytes; ++i)
                    wrong += seen.data()[v * place_bytes + tensor.offset_bytes + i] !=
                             static_cast<std::byte>((i * 31 + i / 251 + 57 * static_cast<size_t>(visits[v])) % 251);
                REQUIRE(wrong == 0);
            }
        }
    }
    const int N = L - static_cast<int>(resident.size()), slots = plan.slots();
    CHECK(m.stats().slabs_in == static_cast<uint64_t>(2 * N - slots + 4 * (N - slots)));
    CHECK(m.stats().misses == 0);
    CHECK(m.stats().wait_ms >= 0);
    m.detach();
    CHECK(!m.attached());
}

}  // namespace

#if defined(SLABSTREAM_CUDA)
TEST_SUITE("gpu") {
    TEST_CASE("offload: what visits see on the GPU is their layer, whatever the timing") {
        for (int R = 2; R <= L; ++R)
            for (int P = 1; P <= R - 1; ++P) stream_and_record(8 << 20, P, R, {}, static_cast<unsigned>(10 * R + P));
        stream_and_record(64 << 20, 1, 2, {0, 3}, 1);
    }
}
#else
TEST_SUITE("cpu") {
    TEST_CASE("offload: what visits see is their layer, whatever the timing") {
        for (int R = 2; R <= 4; ++R) stream_and_record(100000, 1, R, {}, static_cast<unsigned>(R));
        stream_and_record(300000, 2, 3, {0, 3}, 1);
    }
}
#endif
