// The device's decoding against the reference, in bits: every format, mixes of pieces, and lengths around the tiles.
//
// Outputs start as NaN, the memory between and around them holds guard bytes, and each launch runs twice.
#if defined(SLABSTREAM_CUDA)
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/decode_slab.h"
#include "tests/block_bytes.h"
#include "tests/gpu_compare.h"

using namespace slab;
using namespace slab::test;

namespace {

constexpr size_t kTile = 8192;       // values that a block of the kernel decodes
constexpr size_t kGuardBytes = 256;  // between pieces
constexpr std::byte kGuard{0xD5}, kPoison{0xFF};

struct Wanted {
    BlockFormat format;
    size_t elems;
    size_t offset_elems = 0;  // of a plain piece's addresses
};

// Encoded bytes of all pieces, one after another, with guards; likewise what they decode to.
struct Pieces {
    std::vector<std::byte> encoded, expected;
    std::vector<size_t> from, to;  // [pieces] where each begins

    explicit Pieces(const std::vector<Wanted>& wanted) {
        unsigned seed = 1;
        for (const Wanted& w : wanted) {
            const size_t skipped = kGuardBytes + w.offset_elems * sizeof(real);
            const std::vector<std::byte> blocks = random_blocks(w.format, w.elems, seed++);
            std::vector<real> values(w.elems);
            ref::decode_blocks(w.format, blocks.data(), values.data(), w.elems);
            from.push_back(append(encoded, skipped, blocks.data(), blocks.size()));
            to.push_back(append(expected, skipped, values.data(), values.size() * sizeof(real)));
        }
        append(encoded, kGuardBytes, nullptr, 0);
        append(expected, kGuardBytes, nullptr, 0);
    }

    static size_t append(std::vector<std::byte>& all, size_t skipped, const void* bytes, size_t count) {
        const size_t at = (all.size() + kGuardBytes - 1) / kGuardBytes * kGuardBytes + skipped;
        all.resize(at + count, kGuard);
        if (count > 0) std::memcpy(all.data() + at, bytes, count);
        return at;
    }
};

// Decodes on the device, twice; the whole output with its guards must have the expected bits.
void check_on_device(Gpu& gpu, const std::vector<Wanted>& wanted) {
    const Pieces pieces(wanted);
    const DeviceBuffer src = to_device(gpu.stream, pieces.encoded);
    std::vector<std::byte> start = pieces.expected;
    for (size_t i = 0; i < wanted.size(); ++i)
        std::fill_n(start.begin() + static_cast<std::ptrdiff_t>(pieces.to[i]), wanted[i].elems * sizeof(real), kPoison);
    for (int round = 0; round < 2; ++round) {
        const DeviceBuffer dst = to_device(gpu.stream, start);
        std::vector<DecodePiece> launched;
        for (size_t i = 0; i < wanted.size(); ++i)
            launched.push_back({wanted[i].format, src.data() + pieces.from[i],
                                reinterpret_cast<real*>(dst.data() + pieces.to[i]), wanted[i].elems});
        decode_slab(launched, gpu.stream);
        std::vector<std::byte> got(start.size());
        copy_async(got.data(), dst.data(), got.size(), CopyKind::device_to_host, gpu.stream);
        gpu.stream.synchronize();
        const auto differs = std::mismatch(got.begin(), got.end(), pieces.expected.begin());
        const size_t first_difference = static_cast<size_t>(differs.first - got.begin());
        CAPTURE(first_difference);
        CHECK(differs.first == got.end());
    }
}

constexpr BlockFormat kEncoded[] = {BlockFormat::q8_0, BlockFormat::q4_0, BlockFormat::q4_1,
                                    BlockFormat::q5_0, BlockFormat::q5_1, BlockFormat::q4_k,
                                    BlockFormat::q5_k, BlockFormat::q6_k, BlockFormat::nf4};

}  // namespace

TEST_SUITE("gpu") {
    TEST_CASE("decode_slab on the device: every format, from one block to three tiles and one") {
        Gpu gpu;
        for (const BlockFormat format : kEncoded) {
            const BlockInfo& info = block_info(format);
            INFO(std::string(info.name));
            const size_t block = info.values;
            for (const size_t elems : {block, 2 * block, 7 * block, 8 * block, 9 * block, kTile - block, kTile,
                                       kTile + block, 2 * kTile, 3 * kTile - block, 3 * kTile + block}) {
                CAPTURE(elems);
                check_on_device(gpu, {{format, elems}});
            }
        }
    }

    TEST_CASE("decode_slab on the device: plain numbers of any length and alignment") {
        Gpu gpu;
        for (const size_t elems : {1, 3, 7, 8, 9, 1000, 8191, 8192, 8193, 3 * 8192 + 1})
            for (const size_t offset : {0, 1, 4}) {
                CAPTURE(elems);
                CAPTURE(offset);
                check_on_device(gpu, {{BlockFormat::plain, elems, offset}});
            }
    }

    TEST_CASE("decode_slab on the device: 1 to 24 pieces of mixed formats in one launch") {
        Gpu gpu;
        std::mt19937 random(7);
        for (size_t count = 1; count <= kMostDecodePieces; ++count) {
            CAPTURE(count);
            std::vector<Wanted> wanted;
            for (size_t i = 0; i < count; ++i) {
                const auto format = static_cast<BlockFormat>((i + count) % kBlockFormats);
                const size_t blocks = 1 + random() % (3 * kTile / block_info(format).values + 1);
                // A piece without elements here and there.
                wanted.push_back({format, random() % 7 == 0 ? 0 : blocks * block_info(format).values});
            }
            check_on_device(gpu, wanted);
        }
    }

    TEST_CASE("decode_slab on the device: a matrix as large as a layer's") {
        Gpu gpu;
        for (const BlockFormat format : {BlockFormat::q8_0, BlockFormat::q6_k, BlockFormat::nf4}) {
            INFO(std::string(block_info(format).name));
            check_on_device(gpu, {{format, size_t{4096} * 2816}});
        }
    }

    TEST_CASE("decode_slab on the device: nothing to do, and misuse") {
        Gpu gpu;
        decode_slab({}, gpu.stream);
        gpu.stream.synchronize();
        const DeviceBuffer memory(gpu.device, 4096, MemoryCategory::workspace, "test");
        real* dst = memory.as<real>();
        const std::vector<DecodePiece> many(kMostDecodePieces + 1, {BlockFormat::plain, memory.data(), dst, 0});
        CHECK_THROWS_AS(decode_slab(many, gpu.stream), std::logic_error);
        const std::vector<DecodePiece> shifted{{BlockFormat::q8_0, memory.data() + 2, dst, 32}};
        CHECK_THROWS_AS(decode_slab(shifted, gpu.stream), std::logic_error);
        const std::vector<DecodePiece> broken{{BlockFormat::q8_0, memory.data(), dst, 33}};
        CHECK_THROWS_AS(decode_slab(broken, gpu.stream), std::logic_error);
    }
}

#endif  // SLABSTREAM_CUDA
