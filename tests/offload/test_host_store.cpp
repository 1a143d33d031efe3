// The host store and its senders: exact bytes, filled once, resident layers without a host copy, several devices over
// one store, and a system that does not lock all memory.
#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "offload/host_store.h"
#include "offload/layer_offload_manager.h"
#include "offload/slab_sender.h"

using namespace slab;
using namespace slab::offload;

namespace {

std::vector<SlabLayout> three_layouts() {
    std::vector<SlabLayout> layouts(4);  // the last one is trained in full: no slab
    layouts[0].add("a", 100);
    layouts[0].add("b", 300);
    layouts[1].add("a", 5000);
    layouts[2].add("a", 10);
    return layouts;
}

std::byte value_of(int layer) {
    return static_cast<std::byte>(17 * (layer + 1));
}

// Writes the tensors alone, as a loader does.
HostStore::Fill filler(std::vector<int>& filled) {
    return [layouts = three_layouts(), &filled](int layer, std::byte* dst) {
        filled.push_back(layer);
        for (const SlabTensor& tensor : layouts[layer].tensors())
            std::memset(dst + tensor.offset_bytes, static_cast<int>(value_of(layer)), tensor.bytes);
    };
}

RingPlan three_plan(const std::vector<int>& resident = {}) {
    return RingPlan(slab_bytes(three_layouts()), {.resident_layers = resident});
}

std::vector<std::byte> wanted_bytes(const HostStore& store, int layer) {
    std::vector<std::byte> bytes(store.layout(layer).total_bytes(), std::byte{0});
    for (const SlabTensor& tensor : store.layout(layer).tensors())
        std::memset(bytes.data() + tensor.offset_bytes, static_cast<int>(value_of(layer)), tensor.bytes);
    return bytes;
}

// Sizes around the chunk's, and several times round the ring of three chunks; none is a multiple of another.
constexpr size_t kChunkBytes = 4096;
constexpr size_t kSizes[] = {100, 4096, 4097, 3 * 4096, 3 * 4096 + 1, 40000, 65000, 8192};
constexpr int kLayers = 8;

std::vector<SlabLayout> varied_layouts() {
    std::vector<SlabLayout> layouts(kLayers);
    for (int l = 0; l < kLayers; ++l) layouts[static_cast<size_t>(l)].add("a", kSizes[l]);
    return layouts;
}

// Bytes that differ from chunk to chunk and from layer to layer.
void fill_varied(const SlabLayout& layout, int layer, std::byte* dst) {
    for (const SlabTensor& tensor : layout.tensors())
        for (size_t i = 0; i < tensor.bytes; ++i)
            dst[tensor.offset_bytes + i] = static_cast<std::byte>((i * 31 + i / 251 + 57 * (layer + 1)) % 251 + 1);
}

std::vector<std::byte> varied_bytes(int layer) {
    const SlabLayout layout = varied_layouts()[layer];
    std::vector<std::byte> bytes(layout.total_bytes());
    fill_varied(layout, layer, bytes.data());
    return bytes;
}

RingPlan varied_plan(const RingOptions& options) {
    return RingPlan(slab_bytes(varied_layouts()), options);
}

HostStore varied_store(Device& device, const std::vector<int>& resident, HostStoreOptions options = {}) {
    const auto fill = [layouts = varied_layouts()](int layer, std::byte* dst) {
        fill_varied(layouts[layer], layer, dst);
    };
    return HostStore(device, varied_layouts(), varied_plan({.resident_layers = resident}), fill, std::move(options));
}

// What arrives on the device, all layers enqueued one after the other, with the transfer stream held up now and then.
void check_arrival(Device& device, SlabSender& sender, std::mt19937& random) {
    Stream transfer(device, "transfer");
    std::vector<DeviceBuffer> arrived;
    std::vector<std::vector<std::byte>> got;
    for (int layer = 0; layer < sender.layers(); ++layer) {
        const size_t bytes = sender.layout(layer).total_bytes();
        arrived.emplace_back(device, bytes, MemoryCategory::ring, "test");
        got.emplace_back(bytes);
        if (random() % 2 == 0) delay_async(static_cast<int>(random() % 2000), transfer);
        sender.enqueue(layer, arrived.back().data(), transfer);
    }
    for (size_t l = 0; l < got.size(); ++l)
        copy_async(got[l].data(), arrived[l].data(), got[l].size(), CopyKind::device_to_host, transfer);
    transfer.synchronize();
    for (int layer = 0; layer < sender.layers(); ++layer) {
        INFO("layer " << layer);
        REQUIRE(got[static_cast<size_t>(layer)] == varied_bytes(layer));
    }
}

#if defined(SLABSTREAM_CUDA)
#define SLABS_SUITE "gpu"
#else
#define SLABS_SUITE "cpu"
#endif

}  // namespace

TEST_SUITE(SLABS_SUITE) {
    TEST_CASE("host store: exact bytes, gaps zeroed, progress to the last byte") {
        Device device({.threads = 1});
        std::vector<int> filled;
        std::vector<std::pair<size_t, size_t>> progress;
        const HostStore store(device, three_layouts(), three_plan(), filler(filled),
                              {.progress = [&](size_t done, size_t total) {
                                  progress.push_back({done, total});
                              }});
        CHECK(store.streamed_bytes() == 768 + 5120 + 256);
        CHECK(filled == std::vector<int>{0, 1, 2});
        CHECK(device.host_pinned_bytes() == store.streamed_bytes());
        CHECK(progress == std::vector<std::pair<size_t, size_t>>{{768, 6144}, {5888, 6144}, {6144, 6144}});
        for (int layer = 0; layer < 3; ++layer) {
            const std::vector<std::byte> wanted = wanted_bytes(store, layer);
            CHECK(std::memcmp(store.host(layer), wanted.data(), wanted.size()) == 0);
        }
        CHECK(store.host(3) == nullptr);
    }

    TEST_CASE("host store: a checksum sees every byte") {
        Device device({.threads = 1});
        std::vector<int> filled;
        const HostStore store(device, three_layouts(), three_plan(), filler(filled));
        const uint64_t before = store.checksum(0);
        CHECK(before == store.checksum(0));
        std::byte* bytes = const_cast<std::byte*>(store.host(0));
        for (size_t i = 0; i < store.layout(0).total_bytes(); ++i) {
            bytes[i] ^= std::byte{1};
            CHECK(store.checksum(0) != before);
            bytes[i] ^= std::byte{1};
        }
        CHECK(store.checksum(0) == before);
        CHECK_THROWS_AS(store.checksum(3), std::logic_error);
    }

    TEST_CASE("host store: a resident layer passes through a staging buffer that goes again") {
        Device device({.threads = 1});
        Stream transfer(device, "transfer");
        std::vector<int> filled;
        const HostStore store(device, three_layouts(), three_plan({0, 1}), filler(filled));
        CHECK(store.streamed_bytes() == 256);
        CHECK(store.resident_staging_bytes() == 5120);
        SlabSender sender(store, device);
        CHECK(sender.asynchronous(2));
        CHECK(!sender.asynchronous(0));
        CHECK(filled == std::vector<int>{2});
        CHECK(store.host(0) == nullptr);
        for (int round = 0; round < 2; ++round) {
            for (int layer : {0, 1, 2}) {
                const std::vector<std::byte> wanted = wanted_bytes(store, layer);
                std::vector<std::byte> got(wanted.size());
                const DeviceBuffer slab(device, wanted.size(), MemoryCategory::ring, "test");
                sender.enqueue(layer, slab.data(), transfer);
                copy_async(got.data(), slab.data(), got.size(), CopyKind::device_to_host, transfer);
                transfer.synchronize();
                CHECK(got == wanted);
                CHECK(device.host_pinned_bytes() == 256u + (layer == 0 ? 5120u : 0u));
            }
        }
        CHECK(filled == std::vector<int>{2, 0, 1, 0, 1});
    }

    TEST_CASE("host store: a loader that fails leaves nothing") {
        Device device({.threads = 1});
        const auto failing = [](int layer, std::byte*) {
            if (layer == 1) throw std::runtime_error("file cut short");
        };
        CHECK_THROWS_WITH_AS(HostStore(device, three_layouts(), three_plan(), failing), "file cut short",
                             std::runtime_error);
        CHECK(device.host_pinned_bytes() == 0);
        std::vector<int> filled;
        CHECK_NOTHROW(HostStore(device, three_layouts(), three_plan(), filler(filled)));
    }

    TEST_CASE("host store: a plan of other layers or sizes is refused") {
        Device device({.threads = 1});
        std::vector<int> filled;
        for (const std::vector<size_t>& bytes :
             {std::vector<size_t>{768, 5120, 256}, std::vector<size_t>{768, 5120, 512, 0}})
            CHECK_THROWS_AS(HostStore(device, three_layouts(), RingPlan(bytes, {}), filler(filled)),
                            std::invalid_argument);
        CHECK(filled.empty());
    }

    TEST_CASE("host store: a manager whose plan streams a layer without a host copy is refused") {
        Device device({.threads = 1});
        Stream compute(device, "compute"), transfer(device, "transfer");
        std::vector<int> filled;
        const HostStore store(device, three_layouts(), three_plan({1}), filler(filled));
        SlabSender sender(store, device);
        const auto make = [&](const RingPlan& plan) { LayerOffloadManager(sender, plan, compute, transfer, device); };
        CHECK_THROWS_WITH_AS(make(three_plan()), doctest::Contains("streams layer 1"), std::invalid_argument);
        CHECK_THROWS_WITH_AS(make(three_plan({0})), doctest::Contains("streams layer 1"), std::invalid_argument);
        CHECK_NOTHROW(make(three_plan({1})));
        CHECK_NOTHROW(make(three_plan({0, 1})));
        CHECK_THROWS_AS(make(RingPlan({768, 5120, 512, 0}, {.resident_layers = {1}})), std::invalid_argument);
        CHECK_THROWS_AS(make(RingPlan({768, 5120}, {.resident_layers = {1}})), std::invalid_argument);
    }

    TEST_CASE("host store: pageable ones arrive through the ring, whichever stream is late") {
        std::mt19937 random(5);
        for (int round = 0; round < 4; ++round) {
            Device device({.threads = 1});
            const auto late = [&random](Stream& stream) {
                if (random() % 4 == 0) delay_async(static_cast<int>(random() % 1000), stream);
            };
            const HostStore store = varied_store(device, {}, {.page_lock = false, .staging_chunk_bytes = kChunkBytes});
            SlabSender sender(store, device, late);
            CHECK(store.locked_bytes() == 0);
            CHECK(sender.ring_bytes() == 3 * kChunkBytes);
            CHECK(device.host_pinned_bytes() == 3 * kChunkBytes);
            check_arrival(device, sender, random);
            CHECK(device.traffic().host_to_device_bytes == store.streamed_bytes());
            const std::string staged = memory_text(store.streamed_bytes()) + " staged through ";
            CHECK(store.report().find(staged + "12.0 KiB") != std::string::npos);
        }
    }

    TEST_CASE("host store: where the system refuses, the rest is staged, room is left, and one warning says so") {
        size_t all_bytes = 0;
        for (const SlabLayout& layout : varied_layouts()) all_bytes += layout.total_bytes();
        std::mt19937 random(6);
        bool mixed = false;
        for (size_t limit_bytes : {size_t{13000}, size_t{20000}, size_t{80000}, all_bytes - 1, all_bytes}) {
            INFO("limit " << limit_bytes << " of " << all_bytes);
            Device device({.threads = 1, .pinned_limit_bytes = limit_bytes});
            std::vector<std::string> warnings;
            const auto warn = [&](const std::string& text) { warnings.push_back(text); };
            const HostStore store = varied_store(device, {}, {.staging_chunk_bytes = kChunkBytes, .warn = warn});
            SlabSender sender(store, device);
            CHECK(device.host_pinned_bytes() == store.locked_bytes() + sender.ring_bytes());
            CHECK(device.host_pinned_bytes() <= limit_bytes);
            if (limit_bytes == all_bytes) {
                CHECK(warnings.empty());
                CHECK(store.locked_bytes() == all_bytes);
                CHECK(store.report().find("staged") == std::string::npos);
            } else {
                REQUIRE(warnings.size() == 1);
                CHECK(warnings[0].find("ulimit -l") != std::string::npos);
                CHECK(warnings[0].find("staged through") != std::string::npos);
                CHECK(store.locked_bytes() < all_bytes);
                CHECK(store.report().find("staged through") != std::string::npos);
                mixed |= store.locked_bytes() > 0;
            }
            check_arrival(device, sender, random);
        }
        CHECK(mixed);  // some locked, some staged
    }

    TEST_CASE("host store: a limit that does not hold the ring is an error, and leaves nothing") {
        Device device({.threads = 1, .pinned_limit_bytes = 3 * kChunkBytes - 1});
        CHECK_THROWS_AS(varied_store(device, {}, {.staging_chunk_bytes = kChunkBytes}), PinnedLimit);
        CHECK(device.host_pinned_bytes() == 0);
    }

    TEST_CASE("host store: slabs give way to the staging of resident layers while loading, never later") {
        // The streamed layers fit the limit; the staging of layer 6 does not fit beside them.
        Device device({.threads = 1, .pinned_limit_bytes = 90000});
        std::vector<std::string> warnings;
        const auto warn = [&](const std::string& text) { warnings.push_back(text); };
        const HostStore store = varied_store(device, {1, 6}, {.staging_chunk_bytes = kChunkBytes, .warn = warn});
        CHECK(warnings.size() == 1);
        const size_t locked_bytes = store.locked_bytes();
        CHECK(locked_bytes < store.streamed_bytes());
        SlabSender sender(store, device);
        std::mt19937 random(7);
        for (int round = 0; round < 2; ++round) {
            check_arrival(device, sender, random);
            CHECK(warnings.size() == 1);
            CHECK(store.locked_bytes() == locked_bytes);
            CHECK(device.host_pinned_bytes() == locked_bytes + sender.ring_bytes());
        }
    }

    TEST_CASE("host store: resident layers are staged where others took the room that was left for them") {
        Device device({.threads = 1, .pinned_limit_bytes = 160000});
        const HostStore store = varied_store(device, {1, 6}, {.staging_chunk_bytes = kChunkBytes});
        CHECK(store.locked_bytes() == store.streamed_bytes());
        const PinnedBuffer others(device, 60000, "others");
        SlabSender sender(store, device);
        CHECK(sender.ring_bytes() == 0);
        std::mt19937 random(9);
        check_arrival(device, sender, random);
        CHECK(sender.ring_bytes() == 3 * kChunkBytes);
        CHECK(store.locked_bytes() == store.streamed_bytes());
    }

    TEST_CASE("host store: two devices stream from one store, which is locked once") {
        Device first({.threads = 1}), second({.threads = 1});
        std::mt19937 random(10);
        for (const bool page_lock : {true, false}) {
            const HostStore store =
                varied_store(first, {2}, {.page_lock = page_lock, .staging_chunk_bytes = kChunkBytes});
            SlabSender to_first(store, first), to_second(store, second);
            CHECK(first.host_pinned_bytes() == (page_lock ? store.streamed_bytes() : 3 * kChunkBytes));
            CHECK(second.host_pinned_bytes() == (page_lock ? 0 : 3 * kChunkBytes));
            for (int round = 0; round < 2; ++round) {
                check_arrival(first, to_first, random);
                check_arrival(second, to_second, random);
            }
        }
    }

    TEST_CASE("host store: an attach that failed in a resident layer leaves nothing, and the next is as the first") {
        Device device({.threads = 1});
        Stream compute(device, "compute"), transfer(device, "transfer");
        int failures = 1;
        const std::vector<SlabLayout> layouts = varied_layouts();
        const RingPlan plan = varied_plan({.resident_layers = {1, 6}});
        const auto fill = [&](int layer, std::byte* dst) {
            if (layer == 6 && failures-- > 0) throw std::runtime_error("unreadable");
            fill_varied(layouts[layer], layer, dst);
        };
        const HostStore store(device, layouts, plan, fill, {.staging_chunk_bytes = kChunkBytes});
        SlabSender sender(store, device);
        LayerOffloadManager m(sender, plan, compute, transfer, device);
        CHECK_THROWS_AS(m.attach(), std::runtime_error);
        CHECK(device.host_pinned_bytes() == store.locked_bytes());
        m.attach();
        CHECK(device.host_pinned_bytes() == store.locked_bytes());  // the staging buffer has gone again
        for (const int layer : {1, 6}) {
            const std::vector<std::byte> wanted = varied_bytes(layer);
            std::vector<std::byte> got(wanted.size());
            copy_async(got.data(), m.begin_layer(layer).base, got.size(), CopyKind::device_to_host, compute);
            compute.synchronize();
            m.end_layer(layer);
            CHECK(got == wanted);
        }
    }

    TEST_CASE("host store: staged slabs stream through the manager like locked ones") {
        std::mt19937 random(8);
        const auto late = [&random](Stream& stream) {
            if (random() % 3 == 0) delay_async(static_cast<int>(random() % 1000), stream);
        };
        Device device({.threads = 1});
        Stream compute(device, "compute"), transfer(device, "transfer");
        const HostStore store = varied_store(device, {2}, {.page_lock = false, .staging_chunk_bytes = kChunkBytes});
        SlabSender sender(store, device, late);
        LayerOffloadManager m(sender, varied_plan({.num_prefetch = 2, .num_slots = 3, .resident_layers = {2}}), compute,
                              transfer, device, {.disturb = late});
        m.attach();
        std::vector<int> visits;
        for (int l = 0; l < kLayers; ++l) visits.push_back(l);
        for (int l = kLayers - 1; l >= 0; --l) visits.push_back(l);
        const size_t place_bytes = 65536;
        const DeviceBuffer record(device, place_bytes * visits.size(), MemoryCategory::activations, "record");
        std::vector<std::byte> seen(record.bytes());
        for (int step = 0; step < 3; ++step) {
            m.pre_step(visits);
            for (size_t v = 0; v < visits.size(); ++v) {
                const LayerView view = m.begin_layer(visits[v]);
                copy_async(record.data() + v * place_bytes, view.base, view.layout->total_bytes(),
                           CopyKind::device_to_device, compute);
                m.end_layer(visits[v]);
            }
            m.post_step();
            copy_async(seen.data(), record.data(), seen.size(), CopyKind::device_to_host, compute);
            compute.synchronize();
            for (size_t v = 0; v < visits.size(); ++v) {
                INFO("step " << step << ", visit " << v);
                const std::vector<std::byte> wanted = varied_bytes(visits[v]);
                REQUIRE(std::memcmp(seen.data() + v * place_bytes, wanted.data(), wanted.size()) == 0);
            }
        }
        m.detach();
    }
}
