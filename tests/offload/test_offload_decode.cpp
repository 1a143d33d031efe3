// Encoded slabs on whichever backend the build has, through the formats' own kernels. Every visit copies what it sees
// to a record in device memory. The record must be the reference's decoding of each layer, in the order of the visits.
//
// Slots are poisoned with 0xFF before each copy, which makes every scale a NaN. The work slab is poisoned before each
// decoding. Either stream is held up at random, and slabs are so big that a decoding which did not wait sees a copy in
// flight.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/block_formats.h"
#include "kernels/decode_slab.h"
#include "offload/host_store.h"
#include "offload/layer_offload_manager.h"
#include "offload/slab_decoder.h"
#include "offload/slab_sender.h"
#include "tests/block_bytes.h"
#include "tests/poisoning_source.h"

using namespace slab;
using namespace slab::offload;

namespace {

constexpr int L = 5;

// Layers of three tensors in formats of their own, encoded and as the reference decodes them.
class MixedLayers final : public SlabDecoder {
  public:
    explicit MixedLayers(size_t elems) : encoded_layouts(L), encoded_(L), wanted_(L), layouts_(L), formats_(L) {
        for (size_t l = 0; l < L; ++l) {
            formats_[l] = {static_cast<BlockFormat>(1 + l % 9), static_cast<BlockFormat>(1 + (l + 4) % 9),
                           BlockFormat::plain};
            const size_t sizes[] = {elems, elems / 2 - 256 * l, 129 + l};
            for (size_t t = 0; t < 3; ++t) {
                const std::string name(1, static_cast<char>('a' + t));
                encoded_layouts[l].add(name, encoded_bytes(formats_[l][t], sizes[t]));
                layouts_[l].add(name, sizes[t] * sizeof(real));
            }
            encoded_[l].resize(encoded_layouts[l].total_bytes());
            wanted_[l].resize(layouts_[l].total_bytes());
            for (size_t t = 0; t < 3; ++t) {
                const auto blocks = test::random_blocks(formats_[l][t], sizes[t], static_cast<unsigned>(3 * l + t));
                std::memcpy(encoded_[l].data() + encoded_layouts[l].offset_bytes(t), blocks.data(), blocks.size());
                ref::decode_blocks(formats_[l][t], blocks.data(),
                                   reinterpret_cast<real*>(wanted_[l].data() + layouts_[l].offset_bytes(t)), sizes[t]);
            }
        }
    }

    const SlabLayout& layout(int layer) const override { return layouts_[static_cast<size_t>(layer)]; }
    void enqueue(int layer, const std::byte* encoded, std::byte* work, Stream& compute) override {
        const size_t l = static_cast<size_t>(layer);
        fill_async(work, 0xFF, layouts_[l].total_bytes(), compute);
        std::vector<DecodePiece> pieces;
        for (size_t t = 0; t < 3; ++t)
            pieces.push_back({formats_[l][t], encoded + encoded_layouts[l].offset_bytes(t),
                              reinterpret_cast<real*>(work + layouts_[l].offset_bytes(t)),
                              layouts_[l].tensors()[t].bytes / sizeof(real)});
        decode_slab(pieces, compute);
    }

    void fill(int layer, std::byte* dst) const {
        const std::vector<std::byte>& bytes = encoded_[static_cast<size_t>(layer)];
        std::memcpy(dst, bytes.data(), bytes.size());
    }
    // Whether the tensors at `seen` are the reference's; the gaps between them are of no interest.
    bool right(int layer, const std::byte* seen) const {
        const size_t l = static_cast<size_t>(layer);
        for (const SlabTensor& tensor : layouts_[l].tensors())
            if (std::memcmp(seen + tensor.offset_bytes, wanted_[l].data() + tensor.offset_bytes, tensor.bytes) != 0)
                return false;
        return true;
    }
    size_t largest_bytes() const { return layouts_[0].total_bytes() + 4096; }

    std::vector<SlabLayout> encoded_layouts;  // [L]

  private:
    std::vector<std::vector<std::byte>> encoded_, wanted_;  // [L]
    std::vector<SlabLayout> layouts_;                       // [L] decoded
    std::vector<std::vector<BlockFormat>> formats_;         // [L][3]
};

void stream_and_record(MixedLayers& layers, int P, int R, const std::vector<int>& resident, unsigned seed) {
    Device device({.threads = 2});
    Stream compute(device, "compute"), transfer(device, "transfer");
    const RingPlan plan(slab_bytes(layers.encoded_layouts),
                        {.num_prefetch = P, .num_slots = R, .resident_layers = resident});
    const HostStore store(device, layers.encoded_layouts, plan,
                          [&](int layer, std::byte* dst) { layers.fill(layer, dst); });
    SlabSender sender(store, device);
    PoisoningSource source(sender);
    std::mt19937 random(seed);
    LayerOffloadManager m(source, plan, compute, transfer, device,
                          {.disturb =
                               [&random](Stream& stream) {
                                   if (random() % 3 == 0) delay_async(static_cast<int>(random() % 3000), stream);
                               }},
                          &layers);
    m.attach();
    std::vector<int> visits;
    for (int l = 0; l < L; ++l) visits.push_back(l);
    for (int l = L - 1; l >= 0; --l) visits.push_back(l);
    const size_t place_bytes = layers.largest_bytes() / 256 * 256, record_bytes = place_bytes * visits.size();
    const DeviceBuffer record(device, record_bytes, MemoryCategory::activations, "record");
    PinnedBuffer seen(device, record_bytes, "record");
    for (int step = 0; step < 4; ++step) {
        if (step == 3) m.detach();  // every layer resident, and still encoded
        m.pre_step(visits);
        for (size_t v = 0; v < visits.size(); ++v) {
            const LayerView view = m.begin_layer(visits[v]);
            REQUIRE(view.layout->total_bytes() <= place_bytes);
            copy_async(record.data() + v * place_bytes, view.base, view.layout->total_bytes(),
                       CopyKind::device_to_device, compute);
            m.end_layer(visits[v]);
        }
        m.post_step();
        copy_async(seen.data(), record.data(), record_bytes, CopyKind::device_to_host, compute);
        compute.synchronize();
        for (size_t v = 0; v < visits.size(); ++v) {
            INFO("P=" << P << " R=" << R << " step=" << step << " visit=" << v << " layer=" << visits[v]);
            REQUIRE(layers.right(visits[v], seen.data() + v * place_bytes));
        }
    }
    // One a step less for the turn at the head, and for each turn between two steps; but for the one at detach().
    CHECK(m.stats().decodes == 4 * (2 * L - 1) - 2);
    CHECK(m.stats().misses == 0);
}

}  // namespace

#if defined(SLABSTREAM_CUDA)
TEST_SUITE("gpu") {
    TEST_CASE("encoded slabs: what visits see on the GPU is their layer decoded, whatever the timing") {
        MixedLayers layers(4 << 20);
        for (int R = 2; R <= L; ++R)
            for (int P = 1; P <= R - 1; ++P) stream_and_record(layers, P, R, {}, static_cast<unsigned>(10 * R + P));
        stream_and_record(layers, 1, 2, {0, 3}, 1);
    }
}
#else
TEST_SUITE("cpu") {
    TEST_CASE("encoded slabs: what visits see is their layer decoded, whatever the timing") {
        MixedLayers layers(32 << 10);
        for (int R = 2; R <= 4; ++R) stream_and_record(layers, 1, R, {}, static_cast<unsigned>(R));
        stream_and_record(layers, 2, 3, {0, 3}, 1);
    }
}
#endif
