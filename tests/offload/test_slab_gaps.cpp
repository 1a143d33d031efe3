// The bytes between a slab's tensors. They are zeros wherever the slab came from: what a device holds is a function of
// the model alone.
#if !defined(SLABSTREAM_CUDA)
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>

#include "tests/toy_streaming.h"

using namespace slab;
using namespace slab::offload;

namespace {

size_t nonzero_gap_bytes(const std::byte* slab, const SlabLayout& layout) {
    size_t end_bytes = 0, nonzero = 0;
    const auto count_up_to = [&](size_t offset_bytes) {
        for (; end_bytes < offset_bytes; ++end_bytes) nonzero += slab[end_bytes] != std::byte{0};
    };
    for (const SlabTensor& tensor : layout.tensors()) {
        count_up_to(tensor.offset_bytes);
        end_bytes = tensor.offset_bytes + tensor.bytes;
    }
    count_up_to(layout.total_bytes());
    return nonzero;
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("slabs: the gaps of resident layers hold nothing of the layer that took their way before") {
        const int L = 6;
        Toy toy(L, {.resident_layers = {0, 1, 2, 4, 5}});
        LayerOffloadManager& m = toy.make();
        m.attach();
        for (int layer = 0; layer < L; ++layer) {
            CAPTURE(layer);
            const LayerView view = m.begin_layer(layer);
            toy.compute.synchronize();
            CHECK(nonzero_gap_bytes(view.base, *view.layout) == 0);
            m.end_layer(layer);
        }
    }
}

#endif  // !SLABSTREAM_CUDA
