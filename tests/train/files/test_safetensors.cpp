// The safetensors reader and writer: each kind of false header, values that are no weights, and conversions of all
// halves.
//
// A hostile file must end in an error that names the file and, where there is one, the tensor. So the tests read the
// message: a wrong one would send the user to the wrong place.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "data/base/json_file.h"
#include "tests/temporary_files.h"
#include "train/files/safetensors.h"
#include "train/files/safetensors_writer.h"

using namespace slab::train;
using slab::test::content;
using slab::test::error_of;
using slab::test::FreshDirectory;
using slab::test::has;
using slab::test::put;
namespace fs = std::filesystem;

namespace {

// A file from a header text and data, with an honest length unless another is given.
std::string file_of(const std::string& header, const std::string& data, uint64_t length_bytes) {
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length_bytes, 8);
    return bytes + header + data;
}
std::string file_of(const std::string& header, const std::string& data = "") {
    return file_of(header, data, header.size());
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape, uint64_t begin,
                  uint64_t end) {
    return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":[" +
           std::to_string(begin) + "," + std::to_string(end) + "]}";
}

// The error of opening a file with these bytes; it must name the file.
std::string error_opening(const FreshDirectory& dir, const std::string& bytes) {
    const fs::path path = dir.path / "hostile.safetensors";
    put(path, bytes);
    const std::string error = error_of([&] { SafetensorsFile file(path); });
    if (!error.empty()) CHECK(has(error, path.string()));
    return error;
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// A half's value by its definition, in arithmetic independent of the reader's.
double half_value(uint16_t half) {
    const int exponent = (half >> 10) & 31, fraction = half & 1023;
    const double magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    return half & 0x8000 ? -magnitude : magnitude;
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("safetensors: what is written is read back, in the order added, aligned, with metadata") {
        FreshDirectory dir;
        const std::vector<float> matrix = {1, 2, 3, 4, 5, 6};
        const std::vector<slab::bf16> odd = {slab::to_bf16(7), slab::to_bf16(8), slab::to_bf16(9)};
        const std::vector<int32_t> ids = {-1, 2};
        const float scalar = 0.5f;
        SafetensorsWriter writer;
        writer.add("z.odd", {3}, odd.data());
        writer.add("a.matrix", {2, 3}, matrix.data());
        writer.add("ids", {2}, ids.data());
        writer.add("scalar", {}, &scalar);
        writer.add("empty", {0, 4}, matrix.data());
        CHECK_THROWS_AS(writer.add("ids", {2}, ids.data()), std::logic_error);
        const fs::path path = dir.path / "model.safetensors";
        writer.write(path);
        writer.write(path);  // replaces, and is deterministic
        CHECK(slab::test::names_in(dir.path) == std::vector<std::string>{"model.safetensors"});

        const std::string bytes = content(path);
        uint64_t header_bytes = 0;
        std::memcpy(&header_bytes, bytes.data(), 8);
        CHECK(header_bytes % 8 == 0);
        const std::string header = bytes.substr(8, header_bytes);
        CHECK(header.starts_with("{\"__metadata__\":{\"format\":\"pt\"},\"z.odd\":"));
        CHECK(header.find("a.matrix") < header.find("ids"));

        const SafetensorsFile file(path);
        REQUIRE(file.names().size() == 5);
        CHECK(file.find("missing") == nullptr);
        CHECK(has(error_of([&] { file.at("missing"); }), "\"missing\""));
        CHECK(file.at("a.matrix").shape == std::vector<size_t>{2, 3});
        CHECK(file.at("scalar").elems == 1);
        for (const SafetensorsEntry& e : file.entries()) CHECK(e.offset_bytes % dtype_bytes(e.dtype) == 0);

        std::vector<float> got(6);
        const ReadReport report = file.read_as("a.matrix", got.data());
        CHECK(got == matrix);
        CHECK(report.elems == 6);
        CHECK(report.inexact_elems == 0);
        file.read_as("z.odd", got.data());
        CHECK(got[2] == 9);
        file.read_as("scalar", got.data());
        CHECK(got[0] == 0.5f);
        CHECK(file.read_as("empty", got.data()).elems == 0);
        std::vector<int32_t> got_ids(2);
        file.read_raw("ids", DType::i32, got_ids.data());
        CHECK(got_ids == ids);
        CHECK(has(error_of([&] { file.read_raw("ids", DType::f32, got.data()); }), "\"ids\" is I32; wanted F32"));
        CHECK(has(error_of([&] { file.read_as("ids", got.data()); }), "\"ids\" is I32; wanted F32, F16 or BF16"));
    }

    TEST_CASE("safetensors: a write that fails leaves the old file") {
        FreshDirectory dir;
        const std::vector<float> values(100000, 1.0f);
        const fs::path path = dir.path / "model.safetensors";
        put(path, "old");
        SafetensorsWriter writer;
        writer.add("big", {values.size()}, values.data());
        {
            slab::test::SmallDisk disk(50000);
            CHECK(has(error_of([&] { writer.write(path); }), path.string()));
        }
        CHECK(content(path) == "old");
    }

    TEST_CASE("safetensors: rows, and rows of the transposed") {
        FreshDirectory dir;
        // Wider than the reader's buffer in one case, many rows to a buffer in the other.
        for (const auto& [rows, cols] : {std::pair<size_t, size_t>{3, 40000}, {700, 130}, {5, 1}, {1, 7}}) {
            CAPTURE(rows);
            std::vector<float> stored(rows * cols);
            std::iota(stored.begin(), stored.end(), 1.0f);
            SafetensorsWriter writer;
            writer.add("w", {rows, cols}, stored.data());
            writer.write(dir.path / "w.safetensors");
            const SafetensorsFile file(dir.path / "w.safetensors");

            std::vector<float> got(rows * cols, -1.0f);
            CHECK(file.read_as("w", got.data(), {.first_row = rows / 2, .rows = 1}).elems == cols);
            CHECK(std::equal(got.begin(), got.begin() + cols, stored.begin() + rows / 2 * cols));
            CHECK((cols == got.size() || got[cols] == -1.0f));

            const size_t first = cols / 3, count = cols - first;
            std::fill(got.begin(), got.end(), -1.0f);
            CHECK(file.read_as("w", got.data(), {.transposed = true, .first_row = first}).elems == count * rows);
            bool same = true;
            for (size_t c = 0; c < count; ++c) {
                for (size_t r = 0; r < rows; ++r) same &= got[c * rows + r] == stored[r * cols + first + c];
            }
            CHECK(same);
            CHECK((first == 0 || got[count * rows] == -1.0f));

            std::vector<slab::bf16> narrow(rows * cols);
            file.read_as("w", narrow.data(), {.transposed = true});
            CHECK(slab::to_float(narrow[rows - 1]) == slab::to_float(slab::to_bf16(stored[(rows - 1) * cols])));

            CHECK_THROWS_AS(file.read_as("w", got.data(), {.first_row = rows + 1}), std::out_of_range);
            CHECK_THROWS_AS(file.read_as("w", got.data(), {.first_row = 1, .rows = rows}), std::out_of_range);
            CHECK_THROWS_AS(file.read_as("w", got.data(), {.first_row = 1, .rows = SIZE_MAX - 1}), std::out_of_range);
        }
        const std::vector<float> vector(4);
        SafetensorsWriter writer;
        writer.add("v", {4}, vector.data());
        writer.write(dir.path / "v.safetensors");
        std::vector<float> got(4);
        const SafetensorsFile file(dir.path / "v.safetensors");
        CHECK(has(error_of([&] { file.read_as("v", got.data(), {.transposed = true}); }), "wanted a matrix"));
    }

    TEST_CASE("safetensors: every half becomes the float it is; bf16 loses what it must, and says so") {
        FreshDirectory dir;
        std::vector<uint16_t> halves;
        for (uint32_t h = 0; h < 65536; ++h) {
            if ((h & 0x7c00) != 0x7c00) halves.push_back(static_cast<uint16_t>(h));
        }
        put(dir.path / "h.safetensors",
            file_of("{" + entry("h", "F16", "[" + std::to_string(halves.size()) + "]", 0, 2 * halves.size()) + "}",
                    bytes_of(halves)));
        const SafetensorsFile file(dir.path / "h.safetensors");
        std::vector<float> wide(halves.size());
        CHECK(file.read_as("h", wide.data()).inexact_elems == 0);
        std::vector<slab::bf16> narrow(halves.size());
        const size_t inexact = file.read_as("h", narrow.data()).inexact_elems;
        size_t wrong = 0, wrong_narrow = 0, lost = 0;
        for (size_t i = 0; i < halves.size(); ++i) {
            const double value = half_value(halves[i]);
            wrong += wide[i] != value || std::signbit(wide[i]) != std::signbit(value);
            wrong_narrow += std::abs(slab::to_float(narrow[i]) - value) > std::abs(value) / 256;
            lost += slab::to_float(narrow[i]) != value;
        }
        CHECK(wrong == 0);
        CHECK(wrong_narrow == 0);
        CHECK(inexact == lost);
        CHECK(lost > 0);
    }

    TEST_CASE("safetensors: NaN and infinity are named by tensor, element and offset") {
        FreshDirectory dir;
        const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
        std::vector<float> values(100000, 0.25f);
        std::vector<float> got(values.size());
        std::vector<slab::bf16> narrow(values.size());
        const auto error_with = [&](float value, bool transposed = false) {
            values[70001] = value;
            SafetensorsWriter writer;
            writer.add("w", {1000, 100}, values.data());
            writer.write(dir.path / "w.safetensors");
            const SafetensorsFile file(dir.path / "w.safetensors");
            return error_of([&] { file.read_as("w", got.data(), {.transposed = transposed}); });
        };
        const std::string error = error_with(nan);
        CHECK(has(error, "w.safetensors"));
        CHECK(has(error, "tensor \"w\""));
        CHECK(has(error, "weights contain NaN at element 70001"));
        CHECK(has(error_with(nan, true), "NaN at element 70001"));
        CHECK(has(error_with(-inf), "an infinity at element 70001"));
        CHECK(error_with(3.4e38f) == "");
        const SafetensorsFile file(dir.path / "w.safetensors");
        CHECK(has(error_of([&] { file.read_as("w", narrow.data()); }), "too large for BF16"));
        for (const uint16_t bits : {uint16_t{0x7c00}, uint16_t{0x7c01}, uint16_t{0xfe00}}) {
            put(dir.path / "h.safetensors",
                file_of("{" + entry("h", "F16", "[1]", 0, 2) + "}", bytes_of(std::vector<uint16_t>{bits})));
            const SafetensorsFile half(dir.path / "h.safetensors");
            CHECK(has(error_of([&] { half.read_as("h", got.data()); }), "weights contain"));
        }
    }

    TEST_CASE("safetensors: cut short anywhere, a file is refused") {
        FreshDirectory dir;
        const std::string whole =
            file_of("{" + entry("a", "F32", "[2,2]", 0, 16) + "," + entry("b", "F16", "[3]", 16, 22) + "}",
                    std::string(22, '\1'));
        CHECK(error_opening(dir, whole) == "");
        for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
            CAPTURE(bytes);
            CHECK(error_opening(dir, whole.substr(0, bytes)) != "");
        }
        CHECK(has(error_opening(dir, whole + "x"), "wanted nothing after"));
        CHECK(has(error_opening(dir, ""), "0 bytes"));
    }

    TEST_CASE("safetensors: any byte of the header changed gives a file or an error, never a crash") {
        FreshDirectory dir;
        const std::string whole =
            file_of("{" + entry("a", "F32", "[2,2]", 0, 16) + "," + entry("b", "F16", "[3]", 16, 22) + "}",
                    std::string(22, '\1'));
        std::mt19937 random(1);
        size_t refused = 0;
        for (size_t at = 0; at < whole.size() - 22; ++at) {
            for (int round = 0; round < 4; ++round) {
                std::string bytes = whole;
                bytes[at] = static_cast<char>(random());
                refused += error_opening(dir, bytes) != "";
            }
        }
        CHECK(refused > 200);
    }

    TEST_CASE("safetensors: lengths that lie are refused before memory is asked for") {
        FreshDirectory dir;
        const std::string header = "{" + entry("a", "F32", "[1]", 0, 4) + "}";
        for (const uint64_t length : {uint64_t{header.size() + 5}, uint64_t{1} << 40, uint64_t{1} << 63, UINT64_MAX}) {
            const std::string error = error_opening(dir, file_of(header, "1234", length));
            CHECK(has(error, "offset 0"));
            CHECK(has(error, std::to_string(length)));
        }
        CHECK(has(error_opening(dir, file_of(header, "1234", 0)), "JSON"));
        CHECK(has(error_opening(dir, file_of(header, "1234", header.size() - 1)), "JSON"));
        CHECK(has(error_opening(dir, "version https://git-lfs.github.com/spec/v1\n"), "git lfs pull"));
        CHECK(has(error_opening(dir, "PK\3\4 and so on, long enough"), "PyTorch"));
        CHECK(has(error_opening(dir, "GGUF\3\1\1\1 and so on, long enough"), "GGUF"));
        // A sparse file of more than the header limit, all of it "header".
        put(dir.path / "hostile.safetensors", file_of("", "", slab::data::kMaxJsonBytes + 1));
        fs::resize_file(dir.path / "hostile.safetensors", slab::data::kMaxJsonBytes + 100);
        const std::string error = error_of([&] { SafetensorsFile file(dir.path / "hostile.safetensors"); });
        CHECK(has(error, "wanted at most"));
    }

    TEST_CASE("safetensors: a header that contradicts itself is refused by tensor name") {
        FreshDirectory dir;
        const std::string data(64, '\0');
        const auto error_with = [&](const std::string& entries) {
            return error_opening(dir, file_of("{" + entries + "}", data));
        };
        CHECK(error_with(entry("a", "F32", "[16]", 0, 64)) == "");
        CHECK(error_with(entry("a", "F32", "[]", 0, 4) + "," + entry("b", "U8", "[60]", 4, 64)) == "");

        const struct {
            std::string entries, message;
        } cases[] = {
            {entry("a", "F32", "[8]", 0, 64), "\"a\": has data_offsets [0,64], 64 bytes; wanted 32 bytes"},
            {entry("a", "F32", "[17]", 0, 64), "wanted 68 bytes for F32 [17]"},
            {entry("a", "F16", "[16]", 0, 64), "wanted 32 bytes for F16 [16]"},
            {entry("a", "F33", "[16]", 0, 64), "has dtype \"F33\"; wanted one of BOOL"},
            {entry("a", "f32", "[16]", 0, 64), "has dtype \"f32\""},
            {entry("a", "F32", "[18]", 0, 72), "end <= 64"},
            {entry("a", "F32", "[16]", 64, 0), "begin <= end"},
            {entry("a", "F32", "[16]", 1ull << 63, (1ull << 63) + 64), "end <= 64"},
            {entry("a", "F32", "[-16]", 0, 64), "none negative"},
            {entry("a", "F32", "[16.0]", 0, 64), "whole numbers"},
            {entry("a", "F32", "[\"16\"]", 0, 64), "whole numbers"},
            {entry("a", "F32", "16", 0, 64), "a list of at most"},
            {entry("a", "F32", "[1,1,1,1,1,1,1,1,16]", 0, 64), "at most 8 sizes"},
            {entry("a", "F32", "[4294967296,4294967296,4294967296]", 0, 64), "fits 64 bits"},
            {entry("a", "F32", "[4611686018427387904]", 0, 0), "fits 64 bits"},
            {entry("a", "F32", "[4611686018427387920]", 0, 64), "fits 64 bits"},
            {entry("a", "F32", "[18446744073709551616]", 0, 64), "whole numbers"},
            {entry("a", "F32", "[8]", 0, 32) + "," + entry("b", "F32", "[9]", 28, 64), "neither overlap"},
            {entry("a", "F32", "[16]", 0, 64) + "," + entry("b", "F32", "[16]", 0, 64), "neither overlap"},
            {entry("a", "F32", "[4]", 0, 16) + "," + entry("b", "F32", "[8]", 32, 64), "nor leave a hole"},
            {entry("a", "F32", "[15]", 4, 64), "the header ends"},
            {entry("a", "F32", "[15]", 0, 60), "its tensors end at offset"},
            {entry("a", "F32", "[16]", 0, 64) + "," + entry("e", "F32", "[0]", 32, 32), "neither overlap"},
            {entry("a", "F32", "[16]", 0, 64) + "," + entry("a", "F32", "[16]", 0, 64), "\"a\" is given twice"},
            {R"("a":{"dtype":"F32","dtype":"F16","shape":[16],"data_offsets":[0,64]})", "\"dtype\" is given twice"},
            {R"("a":{"dtype":"F32","shape":[16]})", "lacks \"data_offsets\""},
            {R"("a":{"dtype":"F32","data_offsets":[0,64]})", "lacks \"shape\""},
            {R"("a":{"shape":[16],"data_offsets":[0,64]})", "lacks \"dtype\""},
            {R"("a":{"dtype":"F32","shape":[16],"data_offsets":[0,64],"more":1})", "a key \"more\""},
            {R"("a":{"dtype":1,"shape":[16],"data_offsets":[0,64]})", "has dtype 1"},
            {R"("a":{"dtype":"F32","shape":[16],"data_offsets":[64]})", "wanted [begin, end]"},
            {R"("a":{"dtype":"F32","shape":[16],"data_offsets":[0,64,64]})", "wanted [begin, end]"},
            {R"("a":{"dtype":"F32","shape":[16],"data_offsets":[0.0,64.0]})", "wanted [begin, end]"},
            {R"("a":{"dtype":"F32","shape":[16],"data_offsets":[-4,60]})", "wanted [begin, end]"},
            {R"("a":[0,64])", "wanted an object"},
            {R"("a":null)", "wanted an object"},
            {R"("__metadata__":3)", "__metadata__"},
            {R"("__metadata__":{"a":3})", "__metadata__"},
        };
        for (const auto& c : cases) {
            CAPTURE(c.entries);
            const std::string error = error_with(c.entries);
            CAPTURE(error);
            CHECK(has(error, c.message));
        }
        CHECK(has(error_opening(dir, file_of("[1,2]", "")), "no JSON object"));
        CHECK(has(error_opening(dir, file_of("{\"a\":" + std::string(100000, '['), "")), "nested deeper"));
        CHECK(has(error_opening(dir, file_of("{\"\xff\":1}", "")), "JSON"));
        // Names are foreign text: what reaches the terminal is harmless and short.
        const std::string nasty = error_with(entry("\\u001b[2J" + std::string(5000, 'n'), "F33", "[16]", 0, 64));
        CHECK(has(nasty, "\\x1b[2J"));
        CHECK(nasty.size() < 700);
    }

    TEST_CASE("safetensors: huge sizes of an empty tensor cost nothing") {
        FreshDirectory dir;
        put(dir.path / "e.safetensors", file_of("{" + entry("a", "F32", "[1152921504606846976,0]", 0, 0) + "," +
                                                entry("b", "F32", "[0,1152921504606846976]", 0, 0) + "}"));
        const SafetensorsFile file(dir.path / "e.safetensors");
        float none = 3;
        for (const char* name : {"a", "b"}) {
            for (const bool transposed : {false, true}) {
                CHECK(file.read_as(name, &none, {.transposed = transposed}).elems == 0);
            }
        }
        CHECK(none == 3);
    }

    TEST_CASE("safetensors: tensors made while writing give the same file, one in memory at a time") {
        FreshDirectory dir;
        const std::vector<float> wide = {1, 2, 3, 4, 5, 6};
        const std::vector<slab::bf16> narrow = {slab::to_bf16(7), slab::to_bf16(8)};
        SafetensorsWriter held, made;
        held.add("narrow", {2}, narrow.data());
        held.add("wide", {2, 3}, wide.data());
        std::vector<std::string> order;
        const auto fill = [&](const std::string& name, const void* from, size_t bytes) {
            return [&order, name, from, bytes](std::byte* dst) {
                order.push_back(name);
                std::memcpy(dst, from, bytes);
            };
        };
        made.add("narrow", DType::bf16, {2}, fill("narrow", narrow.data(), 4));
        made.add("wide", DType::f32, {2, 3}, fill("wide", wide.data(), 24));
        held.write(dir.path / "held");
        made.write(dir.path / "made");
        CHECK(content(dir.path / "made") == content(dir.path / "held"));
        CHECK(order == std::vector<std::string>{"wide", "narrow"});
        // A tensor that cannot be made leaves no file.
        made.add("bad", DType::f32, {1}, [](std::byte*) { throw std::runtime_error("cannot be read"); });
        CHECK(has(error_of([&] { made.write(dir.path / "failed"); }), "cannot be read"));
        CHECK(slab::test::names_in(dir.path) == std::vector<std::string>{"held", "made"});
    }

    TEST_CASE("safetensors: every half survives float, and what lies between two goes to the nearer, or the even") {
        std::vector<float> values;
        std::vector<uint16_t> want;
        const auto expect = [&](double value, uint16_t half) {
            values.push_back(static_cast<float>(value));
            want.push_back(half);
        };
        for (uint32_t half = 0; half < 0x7c00; ++half) {
            for (const uint32_t sign : {0u, 0x8000u}) expect(half_value(half | sign), half | sign);
            const double here = half_value(half), next = half_value(half + 1), middle = (here + next) / 2;
            expect(middle, half + (half & 1));  // the even one
            expect(std::nextafter(static_cast<float>(middle), 0.0f), half);
            expect(-std::nextafter(static_cast<float>(middle), 1e9f), (half + 1) | 0x8000);
        }
        expect(1e-12, 0);
        expect(-1e-42, 0x8000);
        std::vector<uint16_t> got(values.size());
        const size_t beyond =
            values.size();  // of those above, only what rounds up from the largest half is out of range
        CHECK_FALSE(store_as(DType::f16, values.data(), beyond, reinterpret_cast<std::byte*>(got.data())));
        CHECK(got == want);
        std::byte two[2];
        for (const float fits : {65504.0f, -65519.0f}) CHECK(store_as(DType::f16, &fits, 1, two));
        for (const float large : {65520.0f, -1e30f}) CHECK_FALSE(store_as(DType::f16, &large, 1, two));
        const float largest = std::numeric_limits<float>::max(), infinite = HUGE_VALF;
        CHECK_FALSE(store_as(DType::bf16, &largest, 1, two));
        CHECK(store_as(DType::bf16, &infinite, 1, two));
        const float third = 1.0f / 3;
        float same = 0;
        CHECK(store_as(DType::f32, &third, 1, reinterpret_cast<std::byte*>(&same)));
        CHECK(same == third);
    }

    TEST_CASE("safetensors: a file that shrinks after it was opened is an error at the read") {
        FreshDirectory dir;
        const std::vector<float> values(1000, 1.0f);
        SafetensorsWriter writer;
        writer.add("w", {1000}, values.data());
        writer.write(dir.path / "w.safetensors");
        const SafetensorsFile file(dir.path / "w.safetensors");
        fs::resize_file(dir.path / "w.safetensors", 2000);
        std::vector<float> got(1000);
        const std::string error = error_of([&] { file.read_as("w", got.data()); });
        CHECK(has(error, "shorter since it was opened"));
        CHECK(has(error, "tensor \"w\""));
        CHECK(has(error, "offset 2000"));
    }

    TEST_CASE("safetensors: what is no regular file is refused") {
        FreshDirectory dir;
        CHECK(has(error_of([&] { SafetensorsFile file(dir.path); }), "is a directory"));
        CHECK(has(error_of([&] { SafetensorsFile file(dir.path / "none"); }), "No such file"));
        REQUIRE(mkfifo((dir.path / "fifo").c_str(), 0600) == 0);
        CHECK(has(error_of([&] { SafetensorsFile file(dir.path / "fifo"); }), "no regular file"));
    }
}
