// Host slabs: exact bytes, filled once, resident layers without a host copy.
#include <doctest/doctest.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "offload/host_slabs.h"

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

}  // namespace

TEST_SUITE("cpu") {
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
}
