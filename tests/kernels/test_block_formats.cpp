// Block formats against the fixtures of tests/blocks (dev/reference/make_blocks.py): values of the gguf package, and
// NF4 by bitsandbytes' rules. Then the encoders, the check of scales, and whole layers through decode_slab.
#include <doctest/doctest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/block_formats.h"
#include "kernels/decode_slab.h"
#include "kernels/half.h"
#include "tests/block_bytes.h"
#include "tests/kernel_checks.h"

using namespace slab;
using slab::test::random_blocks;
using slab::test::same_bits;

namespace {

constexpr BlockFormat kEncoded[] = {BlockFormat::q8_0, BlockFormat::q4_0, BlockFormat::q4_1,
                                    BlockFormat::q5_0, BlockFormat::q5_1, BlockFormat::q4_k,
                                    BlockFormat::q5_k, BlockFormat::q6_k, BlockFormat::nf4};

std::vector<std::byte> fixture(const std::string& name) {
    std::ifstream file("tests/blocks/" + name, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    REQUIRE(!text.empty());
    std::vector<std::byte> bytes(text.size());
    std::memcpy(bytes.data(), text.data(), text.size());
    return bytes;
}

std::vector<float> fixture_values(const std::string& name) {
    const std::vector<std::byte> bytes = fixture(name + ".values");
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
}

std::string file_name(BlockFormat format) {
    std::string name = block_info(format).name;
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    return name;
}

std::vector<std::byte> encode(BlockFormat format, const std::vector<float>& values) {
    std::vector<std::byte> bytes(encoded_bytes(format, values.size()));
    CHECK(!encode_blocks(format, values.data(), bytes.data(), values.size()));
    return bytes;
}

std::vector<float> decode(BlockFormat format, const std::vector<std::byte>& bytes) {
    std::vector<float> values(bytes.size() / block_info(format).bytes * block_info(format).values);
    ref::decode_blocks(format, bytes.data(), values.data(), values.size());
    return values;
}

double relative_error(BlockFormat format, const std::vector<float>& values) {
    return test::norm_error(decode(format, encode(format, values)), values);
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("block formats: every format decodes to the fixtures' bits, whole and from any block on") {
        for (const BlockFormat format : kEncoded) {
            const BlockInfo& info = block_info(format);
            INFO(std::string(info.name));
            CHECK(info.format == format);
            const std::vector<std::byte> blocks = fixture(file_name(format) + ".blocks");
            const std::vector<float> want = fixture_values(file_name(format));
            REQUIRE(blocks.size() == encoded_bytes(format, want.size()));
            CHECK(same_bits(decode(format, blocks), want));
            std::vector<float> one(info.values);
            const size_t last = want.size() / info.values - 1;
            ref::decode_blocks(format, blocks.data() + last * info.bytes, one.data(), one.size());
            CHECK(std::memcmp(one.data(), want.data() + last * info.values, one.size() * sizeof(float)) == 0);
            // As bf16: the float32 value, rounded once.
            std::vector<bf16> narrow(want.size());
            ref::decode_blocks(format, blocks.data(), narrow.data(), narrow.size());
            size_t different = 0;
            for (size_t i = 0; i < want.size(); ++i) different += narrow[i].bits != to_bf16(want[i]).bits;
            CHECK(different == 0);
            CHECK(!first_block_not_finite(format, blocks.data(), want.size()));
        }
    }

    TEST_CASE("block formats: q8_0 and nf4 encode to the fixtures' bytes") {
        const std::vector<float> weights = fixture_values("weights");
        for (const BlockFormat format : {BlockFormat::q8_0, BlockFormat::nf4}) {
            INFO(std::string(block_info(format).name));
            CHECK(same_bits(encode(format, weights), fixture(file_name(format) + ".encoded")));
            // Piece by piece: the bytes are a function of the weights alone.
            std::vector<std::byte> pieces(encoded_bytes(format, weights.size()));
            for (size_t at = 0; at < weights.size(); at += 64)
                encode_blocks(format, weights.data() + at, pieces.data() + encoded_bytes(format, at), 64);
            CHECK(same_bits(pieces, encode(format, weights)));
        }
    }

    TEST_CASE("block formats: what was decoded encodes to the same bytes") {
        std::mt19937_64 random(5);
        std::normal_distribution<float> normal(0, 0.02f);
        std::student_t_distribution<float> heavy(5);
        for (const BlockFormat format : {BlockFormat::q8_0, BlockFormat::nf4}) {
            INFO(std::string(block_info(format).name));
            std::vector<float> weights(64 * 4096);
            for (size_t i = 0; i < weights.size(); ++i) weights[i] = i % 2 == 0 ? normal(random) : heavy(random);
            std::fill_n(weights.begin(), 64, 0.0f);
            const std::vector<std::byte> encoded = encode(format, weights);
            CHECK(same_bits(encode(format, decode(format, encoded)), encoded));
        }
    }

    TEST_CASE("block formats: the error of Gaussian weights and of heavy tails is the formats' own") {
        std::mt19937_64 random(6);
        std::normal_distribution<float> normal;
        std::student_t_distribution<float> heavy(5);
        std::vector<float> gaussian(64 << 12), tailed(64 << 12);
        for (float& x : gaussian) x = normal(random);
        for (float& x : tailed) x = heavy(random);
        CHECK(relative_error(BlockFormat::q8_0, gaussian) == doctest::Approx(0.0056).epsilon(0.05));
        CHECK(relative_error(BlockFormat::q8_0, tailed) == doctest::Approx(0.0069).epsilon(0.05));
        CHECK(relative_error(BlockFormat::nf4, gaussian) == doctest::Approx(0.092).epsilon(0.05));
        CHECK(relative_error(BlockFormat::nf4, tailed) == doctest::Approx(0.105).epsilon(0.05));
    }

    TEST_CASE("block formats: the smallest numbers become zeros, a scale beyond its type names its block") {
        std::vector<float> tiny(64, 1e-41f);
        tiny[1] = -0.0f;
        for (const BlockFormat format : {BlockFormat::q8_0, BlockFormat::nf4})
            for (const float value : decode(format, encode(format, tiny))) CHECK(value == 0);
        std::vector<std::byte> bytes(encoded_bytes(BlockFormat::q8_0, 128));
        std::vector<float> large(128, 1.0f);
        large[70] = -65519.0f * 127;  // d rounds to F16's largest
        CHECK(!encode_blocks(BlockFormat::q8_0, large.data(), bytes.data(), large.size()));
        large[70] = -65520.0f * 127;
        large[127] = 1e30f;
        CHECK(encode_blocks(BlockFormat::q8_0, large.data(), bytes.data(), large.size()) == size_t{2});
        large[127] = 3.4e38f;  // finite in float32, infinite in bf16
        CHECK(encode_blocks(BlockFormat::nf4, large.data(), bytes.data(), large.size()) == size_t{1});
        CHECK_THROWS_AS(encode_blocks(BlockFormat::q4_k, large.data(), bytes.data(), 0), std::logic_error);
        CHECK_THROWS_AS(encoded_bytes(BlockFormat::q4_k, 128), std::logic_error);
        CHECK(encoded_bytes(BlockFormat::q4_k, 512) == 288);
    }

    TEST_CASE("block formats: a block whose scale is no finite number is found, in every place of a scale") {
        struct Place {
            BlockFormat format;
            size_t offset;
        };
        for (const Place& place :
             {Place{BlockFormat::q8_0, 0}, Place{BlockFormat::q4_0, 0}, Place{BlockFormat::q4_1, 0},
              Place{BlockFormat::q4_1, 2}, Place{BlockFormat::q5_0, 0}, Place{BlockFormat::q5_1, 0},
              Place{BlockFormat::q5_1, 2}, Place{BlockFormat::q4_k, 0}, Place{BlockFormat::q4_k, 2},
              Place{BlockFormat::q5_k, 0}, Place{BlockFormat::q5_k, 2}, Place{BlockFormat::q6_k, 208}}) {
            const BlockInfo& info = block_info(place.format);
            INFO(std::string(info.name));
            CAPTURE(place.offset);
            for (const uint16_t half : {0x7c00, 0xfc00, 0x7e01, 0x7bff}) {  // infinities, NaN, the largest number
                std::vector<std::byte> blocks = random_blocks(place.format, 5 * info.values, 3);
                REQUIRE(!first_block_not_finite(place.format, blocks.data(), 5 * info.values));
                std::memcpy(blocks.data() + 3 * info.bytes + place.offset, &half, sizeof half);
                const auto found = first_block_not_finite(place.format, blocks.data(), 5 * info.values);
                CHECK(found.has_value() == (half != 0x7bff));
                if (found) CHECK(*found == 3);
            }
        }
        for (const float absmax : {std::numeric_limits<float>::infinity(), std::nanf(""), 3.4e38f, 3.38e38f}) {
            std::vector<std::byte> blocks = random_blocks(BlockFormat::nf4, 5 * 64, 3);
            std::memcpy(blocks.data() + 2 * 36, &absmax, sizeof absmax);
            CHECK(first_block_not_finite(BlockFormat::nf4, blocks.data(), 5 * 64).has_value() == (absmax != 3.38e38f));
        }
        std::vector<real> plain(9, to_real(1));
        const auto* bytes = reinterpret_cast<const std::byte*>(plain.data());
        CHECK(!first_block_not_finite(BlockFormat::plain, bytes, plain.size()));
        plain[7] = to_real(std::nanf(""));
        CHECK(first_block_not_finite(BlockFormat::plain, bytes, plain.size()) == size_t{7});
    }

    TEST_CASE("block formats: F16 there and back, every number") {
        for (uint32_t bits = 0; bits < 0x10000; ++bits) {
            const float value = widen_f16(static_cast<uint16_t>(bits));
            if (std::isnan(value)) continue;
            REQUIRE(narrow_f16(value) == bits);
        }
    }

#if !defined(SLABSTREAM_CUDA)
    TEST_CASE("decode_slab: pieces of mixed formats, with any number of threads") {
        std::vector<std::vector<std::byte>> blocks;
        std::vector<size_t> elems;
        for (size_t i = 0; i < kMostDecodePieces; ++i) {
            const auto format = static_cast<BlockFormat>(i % kBlockFormats);
            elems.push_back(i == 5 ? 0 : block_info(format).values * (1 + 700 * i / block_info(format).values));
            blocks.push_back(random_blocks(format, elems[i], static_cast<unsigned>(i)));
        }
        elems[1] = 40000 / 32 * 32;  // several tiles
        blocks[1] = random_blocks(BlockFormat::q8_0, elems[1], 99);
        for (const int threads : {1, 2, 5}) {
            Device device({.threads = threads});
            Stream stream(device, "compute");
            std::vector<DeviceBuffer> src, dst;
            std::vector<DecodePiece> pieces;
            for (size_t i = 0; i < kMostDecodePieces; ++i) {
                src.emplace_back(device, std::max<size_t>(1, blocks[i].size()), MemoryCategory::workspace, "test");
                dst.emplace_back(device, elems[i] * sizeof(real) + 16, MemoryCategory::workspace, "test");
                if (!blocks[i].empty()) std::memcpy(src[i].data(), blocks[i].data(), blocks[i].size());
                std::memset(dst[i].data(), 0xD5, dst[i].bytes());
                pieces.push_back(
                    {static_cast<BlockFormat>(i % kBlockFormats), src[i].data(), dst[i].as<real>(), elems[i]});
            }
            {
                const std::vector<DecodePiece> short_lived = pieces;
                decode_slab(short_lived, stream);
            }
            stream.synchronize();
            for (size_t i = 0; i < kMostDecodePieces; ++i) {
                CAPTURE(i);
                std::vector<real> want(elems[i]);
                ref::decode_blocks(pieces[i].format, blocks[i].data(), want.data(), elems[i]);
                CHECK((elems[i] == 0 || std::memcmp(dst[i].data(), want.data(), elems[i] * sizeof(real)) == 0));
                const std::vector<std::byte> guard(16, std::byte{0xD5});
                CHECK(std::memcmp(dst[i].data() + elems[i] * sizeof(real), guard.data(), guard.size()) == 0);
            }
        }
    }

    TEST_CASE("decode_slab: misuse is refused before anything is enqueued") {
        Device device({.threads = 1});
        Stream stream(device, "compute");
        const DeviceBuffer memory(device, 4096, MemoryCategory::workspace, "test");
        std::byte* src = memory.data();
        real* dst = memory.as<real>() + 512;
        const auto refused = [&](const std::vector<DecodePiece>& pieces) {
            CHECK_THROWS_AS(decode_slab(pieces, stream), std::logic_error);
        };
        refused(std::vector<DecodePiece>(kMostDecodePieces + 1, {BlockFormat::q8_0, src, dst, 0}));
        refused({{BlockFormat::q8_0, src + 8, dst, 32}});
        refused({{BlockFormat::q8_0, src, dst + 1, 32}});
        refused({{BlockFormat::q8_0, src, dst, 33}});
        refused({{BlockFormat::plain, src + 1, dst, 3}});
        decode_slab(std::vector<DecodePiece>{{BlockFormat::plain, src + sizeof(real), dst + 1, 3}}, stream);
        decode_slab({}, stream);
        stream.synchronize();
    }
#endif
}
