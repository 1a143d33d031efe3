// Host slabs: exact bytes, filled once, resident layers without a host copy; and what becomes of them where the system
// does not lock memory.
#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "offload/host_slabs.h"
#include "offload/layer_offload_manager.h"

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
HostSlabs::Fill filler(const HostSlabs& slabs, std::vector<int>& filled) {
    return [&slabs, &filled](int layer, std::byte* dst) {
        filled.push_back(layer);
        for (const SlabTensor& tensor : slabs.layout(layer).tensors())
            std::memset(dst + tensor.offset_bytes, static_cast<int>(value_of(layer)), tensor.bytes);
    };
}

std::vector<std::byte> wanted_bytes(const HostSlabs& slabs, int layer) {
    std::vector<std::byte> bytes(slabs.layout(layer).total_bytes(), std::byte{0});
    for (const SlabTensor& tensor : slabs.layout(layer).tensors())
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

std::vector<std::byte> varied_bytes(const HostSlabs& slabs, int layer) {
    std::vector<std::byte> bytes(slabs.layout(layer).total_bytes());
    fill_varied(slabs.layout(layer), layer, bytes.data());
    return bytes;
}

HostSlabs::Fill varied_filler(const HostSlabs& slabs) {
    return [&slabs](int layer, std::byte* dst) { fill_varied(slabs.layout(layer), layer, dst); };
}

// What arrives on the device, all layers enqueued one after the other, with the transfer stream held up now and then.
void check_arrival(Device& device, HostSlabs& slabs, std::mt19937& random) {
    Stream transfer(device, "transfer");
    std::vector<DeviceBuffer> arrived;
    std::vector<std::vector<std::byte>> got;
    for (int layer = 0; layer < slabs.layers(); ++layer) {
        const size_t bytes = slabs.layout(layer).total_bytes();
        arrived.emplace_back(device, bytes, MemoryCategory::ring, "test");
        got.emplace_back(bytes);
        if (random() % 2 == 0) delay_async(static_cast<int>(random() % 2000), transfer);
        slabs.enqueue(layer, arrived.back().data(), transfer);
    }
    for (size_t l = 0; l < got.size(); ++l)
        copy_async(got[l].data(), arrived[l].data(), got[l].size(), CopyKind::device_to_host, transfer);
    transfer.synchronize();
    for (int layer = 0; layer < slabs.layers(); ++layer) {
        INFO("layer " << layer);
        REQUIRE(got[static_cast<size_t>(layer)] == varied_bytes(slabs, layer));
    }
}

#if defined(SLABSTREAM_CUDA)
#define SLABS_SUITE "gpu"
#else
#define SLABS_SUITE "cpu"
#endif

}  // namespace

TEST_SUITE(SLABS_SUITE) {
    TEST_CASE("host slabs: exact bytes, gaps zeroed, progress to the last byte") {
        Device device({.threads = 1});
        HostSlabs slabs(device, three_layouts(), {});
        CHECK(slabs.streamed_bytes() == 768 + 5120 + 256);
        CHECK(device.host_pinned_bytes() == 0);
        std::vector<int> filled;
        std::vector<std::pair<size_t, size_t>> progress;
        slabs.load(filler(slabs, filled), [&](size_t done, size_t total) { progress.push_back({done, total}); });
        CHECK(filled == std::vector<int>{0, 1, 2});
        CHECK(device.host_pinned_bytes() == slabs.streamed_bytes());
        CHECK(progress == std::vector<std::pair<size_t, size_t>>{{768, 6144}, {5888, 6144}, {6144, 6144}});
        for (int layer = 0; layer < 3; ++layer) {
            const std::vector<std::byte> wanted = wanted_bytes(slabs, layer);
            CHECK(std::memcmp(slabs.host(layer), wanted.data(), wanted.size()) == 0);
        }
        CHECK(slabs.host(3) == nullptr);
        CHECK_THROWS_AS(slabs.load(filler(slabs, filled)), std::logic_error);
    }

    TEST_CASE("host slabs: a checksum sees every byte") {
        Device device({.threads = 1});
        HostSlabs slabs(device, three_layouts(), {});
        std::vector<int> filled;
        slabs.load(filler(slabs, filled));
        const uint64_t before = slabs.checksum(0);
        CHECK(before == slabs.checksum(0));
        std::byte* bytes = const_cast<std::byte*>(slabs.host(0));
        for (size_t i = 0; i < slabs.layout(0).total_bytes(); ++i) {
            bytes[i] ^= std::byte{1};
            CHECK(slabs.checksum(0) != before);
            bytes[i] ^= std::byte{1};
        }
        CHECK(slabs.checksum(0) == before);
        CHECK_THROWS_AS(slabs.checksum(3), std::logic_error);
    }

    TEST_CASE("host slabs: a resident layer passes through a staging buffer that goes again") {
        Device device({.threads = 1});
        Stream transfer(device, "transfer");
        HostSlabs slabs(device, three_layouts(), {0, 1});
        CHECK(slabs.streamed_bytes() == 256);
        CHECK(slabs.staging_bytes() == 5120);
        std::vector<int> filled;
        CHECK_THROWS_AS(slabs.enqueue(0, nullptr, transfer), std::logic_error);
        slabs.load(filler(slabs, filled));
        CHECK(filled == std::vector<int>{2});
        CHECK(slabs.host(0) == nullptr);
        for (int round = 0; round < 2; ++round) {
            for (int layer : {0, 1, 2}) {
                const std::vector<std::byte> wanted = wanted_bytes(slabs, layer);
                std::vector<std::byte> got(wanted.size());
                const DeviceBuffer slab(device, wanted.size(), MemoryCategory::ring, "test");
                slabs.enqueue(layer, slab.data(), transfer);
                copy_async(got.data(), slab.data(), got.size(), CopyKind::device_to_host, transfer);
                transfer.synchronize();
                CHECK(got == wanted);
                CHECK(device.host_pinned_bytes() == 256u + (layer == 0 ? 5120u : 0u));
            }
        }
        CHECK(filled == std::vector<int>{2, 0, 1, 0, 1});
    }

    TEST_CASE("host slabs: a loader that fails leaves nothing") {
        Device device({.threads = 1});
        HostSlabs slabs(device, three_layouts(), {});
        CHECK_THROWS_WITH_AS(slabs.load([](int layer, std::byte*) {
            if (layer == 1) throw std::runtime_error("file cut short");
        }),
                             "file cut short", std::runtime_error);
        CHECK(device.host_pinned_bytes() == 0);
        CHECK_THROWS_AS(HostSlabs(device, three_layouts(), {4}), std::runtime_error);
        std::vector<int> filled;
        CHECK_NOTHROW(slabs.load(filler(slabs, filled)));
    }

    TEST_CASE("host slabs: pageable ones arrive through the ring, whichever stream is late") {
        std::mt19937 random(5);
        for (int round = 0; round < 4; ++round) {
            Device device({.threads = 1});
            const auto late = [&random](Stream& stream) {
                if (random() % 4 == 0) delay_async(static_cast<int>(random() % 1000), stream);
            };
            HostSlabs slabs(device, varied_layouts(), {},
                            {.page_lock = false, .staging_chunk_bytes = kChunkBytes, .disturb = late});
            slabs.load(varied_filler(slabs));
            CHECK(slabs.locked_bytes() == 0);
            CHECK(slabs.ring_bytes() == 3 * kChunkBytes);
            CHECK(device.host_pinned_bytes() == 3 * kChunkBytes);
            check_arrival(device, slabs, random);
            CHECK(device.traffic().host_to_device_bytes == slabs.streamed_bytes());
            const std::string staged = memory_text(slabs.streamed_bytes()) + " staged through ";
            CHECK(slabs.report().find(staged + "12.0 KiB") != std::string::npos);
        }
    }

    TEST_CASE("host slabs: where the system refuses, the rest is staged, room is left, and it is said once") {
        size_t all_bytes = 0;
        for (const SlabLayout& layout : varied_layouts()) all_bytes += layout.total_bytes();
        std::mt19937 random(6);
        bool mixed = false;
        for (size_t limit_bytes : {size_t{13000}, size_t{20000}, size_t{80000}, all_bytes - 1, all_bytes}) {
            INFO("limit " << limit_bytes << " of " << all_bytes);
            Device device({.threads = 1, .pinned_limit_bytes = limit_bytes});
            std::vector<std::string> warnings;
            HostSlabs slabs(device, varied_layouts(), {},
                            {.staging_chunk_bytes = kChunkBytes,
                             .warn = [&](const std::string& text) { warnings.push_back(text); }});
            slabs.load(varied_filler(slabs));
            CHECK(device.host_pinned_bytes() == slabs.locked_bytes() + slabs.ring_bytes());
            CHECK(device.host_pinned_bytes() <= limit_bytes);
            if (limit_bytes == all_bytes) {
                CHECK(warnings.empty());
                CHECK(slabs.locked_bytes() == all_bytes);
                CHECK(slabs.report().find("staged") == std::string::npos);
            } else {
                REQUIRE(warnings.size() == 1);
                CHECK(warnings[0].find("ulimit -l") != std::string::npos);
                CHECK(warnings[0].find("staged through") != std::string::npos);
                CHECK(slabs.locked_bytes() < all_bytes);
                CHECK(slabs.report().find("staged through") != std::string::npos);
                mixed |= slabs.locked_bytes() > 0;
            }
            check_arrival(device, slabs, random);
        }
        CHECK(mixed);  // some locked, some staged
    }

    TEST_CASE("host slabs: a limit that does not hold the ring is an error, and leaves nothing") {
        Device device({.threads = 1, .pinned_limit_bytes = 3 * kChunkBytes - 1});
        HostSlabs slabs(device, varied_layouts(), {}, {.staging_chunk_bytes = kChunkBytes});
        CHECK_THROWS_AS(slabs.load(varied_filler(slabs)), PinnedLimit);
        CHECK(device.host_pinned_bytes() == 0);
        CHECK(slabs.host(0) == nullptr);
    }

    TEST_CASE("host slabs: a resident layer passes through the ring too, and slabs give way to it") {
        // The streamed layers fit the limit; the passage of layer 6 does not fit beside them.
        Device device({.threads = 1, .pinned_limit_bytes = 90000});
        std::vector<std::string> warnings;
        HostSlabs slabs(
            device, varied_layouts(), {1, 6},
            {.staging_chunk_bytes = kChunkBytes, .warn = [&](const std::string& text) { warnings.push_back(text); }});
        slabs.load(varied_filler(slabs));
        CHECK(slabs.locked_bytes() == slabs.streamed_bytes());
        CHECK(warnings.empty());
        std::mt19937 random(7);
        for (int round = 0; round < 2; ++round) {
            check_arrival(device, slabs, random);
            CHECK(warnings.size() == 1);
            CHECK(device.host_pinned_bytes() == slabs.locked_bytes() + slabs.ring_bytes());
            CHECK(slabs.locked_bytes() < slabs.streamed_bytes());
        }
    }

    TEST_CASE("host slabs: an attach that failed in a resident layer leaves nothing, and the next is as the first") {
        Device device({.threads = 1});
        Stream compute(device, "compute"), transfer(device, "transfer");
        HostSlabs slabs(device, varied_layouts(), {1, 6}, {.staging_chunk_bytes = kChunkBytes});
        int failures = 1;
        slabs.load([&](int layer, std::byte* dst) {
            if (layer == 6 && failures-- > 0) throw std::runtime_error("unreadable");
            fill_varied(slabs.layout(layer), layer, dst);
        });
        LayerOffloadManager m(slabs, {.resident_layers = {1, 6}}, compute, transfer, device);
        CHECK_THROWS_AS(m.attach(), std::runtime_error);
        CHECK(device.host_pinned_bytes() == slabs.locked_bytes());
        m.attach();
        CHECK(device.host_pinned_bytes() == slabs.locked_bytes());  // the passage has gone again
        for (const int layer : {1, 6}) {
            const std::vector<std::byte> wanted = varied_bytes(slabs, layer);
            std::vector<std::byte> got(wanted.size());
            copy_async(got.data(), m.begin_layer(layer).base, got.size(), CopyKind::device_to_host, compute);
            compute.synchronize();
            m.end_layer(layer);
            CHECK(got == wanted);
        }
    }

    TEST_CASE("host slabs: staged slabs stream through the manager like locked ones") {
        std::mt19937 random(8);
        const auto late = [&random](Stream& stream) {
            if (random() % 3 == 0) delay_async(static_cast<int>(random() % 1000), stream);
        };
        Device device({.threads = 1});
        Stream compute(device, "compute"), transfer(device, "transfer");
        HostSlabs slabs(device, varied_layouts(), {2},
                        {.page_lock = false, .staging_chunk_bytes = kChunkBytes, .disturb = late});
        slabs.load(varied_filler(slabs));
        LayerOffloadManager m(slabs, {.num_prefetch = 2, .num_slots = 3, .resident_layers = {2}, .disturb = late},
                              compute, transfer, device);
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
                const std::vector<std::byte> wanted = varied_bytes(slabs, visits[v]);
                REQUIRE(std::memcmp(seen.data() + v * place_bytes, wanted.data(), wanted.size()) == 0);
            }
        }
        m.detach();
    }
}
