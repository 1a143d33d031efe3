// The GGUF parser: what it reads, and each kind of false length, count, offset and type.
//
// The tests look into the messages: a hostile file must end in an error that names the file and the place.
#include <doctest/doctest.h>

#include "data/gguf/gguf.h"
#include "tests/gguf_builder.h"
#include "tests/temporary_files.h"

using namespace slab::data;
using slab::test::error_of;
using slab::test::FreshDirectory;
using slab::test::gguf_text;
using slab::test::GgufBuilder;
using slab::test::has;
using slab::test::put;
using slab::test::raw;
namespace fs = std::filesystem;

namespace {

std::string error_opening(const std::string& bytes) {
    const FreshDirectory dir;
    const fs::path path = dir.path / "hostile.gguf";
    put(path, bytes);
    const std::string error = error_of([&] { GgufFile file(path); });
    if (!error.empty()) CHECK(has(error, path.string()));
    return error;
}

GgufBuilder small() {
    GgufBuilder b;
    b.set("general.architecture", "llama");
    b.set("llama.block_count", uint32_t{2});
    b.set("llama.rope.freq_base", 10000.0f);
    b.set("tokenizer.ggml.add_bos_token", true);
    b.set("tokenizer.ggml.tokens", std::vector<std::string>{"a", "", "\xff\x01"});
    b.set("tokenizer.ggml.token_type", std::vector<int32_t>{1, -2, 3});
    b.tensor("first", GgmlType::f32, {3, 2}, std::string(24, 'x'));
    b.tensor("second", GgmlType::q8_0, {32, 3}, std::string(34, '1') + std::string(34, '2') + std::string(34, '3'));
    return b;
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("GGUF: values and tensors come back, v2 and v3") {
        const FreshDirectory dir;
        for (const uint32_t version : {2u, 3u}) {
            GgufBuilder b = small();
            b.version = version;
            b.value("i8", 1, raw<int8_t>(-5));
            b.value("u8", 0, raw<uint8_t>(200));
            b.value("i16", 3, raw<int16_t>(-500));
            b.value("u16", 2, raw<uint16_t>(50000));
            b.value("i64", 11, raw<int64_t>(-1234567890123));
            b.value("u64", 10, raw<uint64_t>(INT64_MAX));
            b.value("f64", 12, raw(0.1));
            b.value("floats", 9, raw<uint32_t>(6) + raw<uint64_t>(2) + raw(0.5f) + raw(-2.0f));
            b.value("bools", 9, raw<uint32_t>(7) + raw<uint64_t>(2) + raw<uint8_t>(1) + raw<uint8_t>(0));
            put(dir.path / "a.gguf", b.file());
            const GgufFile file(dir.path / "a.gguf");
            CHECK(is_gguf_file(dir.path / "a.gguf"));
            CHECK(file.text("general.architecture") == "llama");
            CHECK(file.text("absent", "else") == "else");
            CHECK(file.integer("llama.block_count") == 2);
            CHECK(file.integer("absent", 7) == 7);
            CHECK(file.number("llama.rope.freq_base") == 10000);
            CHECK(file.boolean("tokenizer.ggml.add_bos_token"));
            CHECK(*file.texts("tokenizer.ggml.tokens") == std::vector<std::string>{"a", "", "\xff\x01"});
            CHECK(*file.integers("tokenizer.ggml.token_type") == std::vector<int64_t>{1, -2, 3});
            CHECK(file.texts("absent") == nullptr);
            CHECK(file.integer("i8") == -5);
            CHECK(file.integer("u8") == 200);
            CHECK(file.integer("i16") == -500);
            CHECK(file.integer("u16") == 50000);
            CHECK(file.integer("i64") == -1234567890123);
            CHECK(file.integer("u64") == INT64_MAX);
            CHECK(file.number("f64") == 0.1);
            CHECK(std::get<std::vector<double>>(file.metadata().find("floats")->second) ==
                  std::vector<double>{0.5, -2});
            CHECK(*file.integers("bools") == std::vector<int64_t>{1, 0});

            REQUIRE(file.tensors().size() == 2);
            const GgufTensor* second = file.find("second");
            REQUIRE(second != nullptr);
            CHECK(file.find("third") == nullptr);
            CHECK(second->shape == std::vector<size_t>{3, 32});
            CHECK(second->elems == 96);
            CHECK(second->bytes == 3 * 34);
            CHECK(info_of(second->type).name == std::string("Q8_0"));
            std::string row(34, ' ');
            file.read(*second, 34, row.data(), 34);
            CHECK(row == std::string(34, '2'));
            CHECK_THROWS_AS(file.read(*second, 69, row.data(), 34), std::out_of_range);
        }
    }

    TEST_CASE("GGUF: a value of another kind, or none, is an error that names the key") {
        const FreshDirectory dir;
        put(dir.path / "a.gguf", small().file());
        const GgufFile file(dir.path / "a.gguf");
        const auto names = [&](const std::string& error, const char* key, const char* what) {
            INFO(error);
            return has(error, file.path().string()) && has(error, key) && has(error, what);
        };
        CHECK(names(error_of([&] { file.integer("general.architecture"); }), "general.architecture", "is a text"));
        CHECK(names(error_of([&] { file.text("llama.block_count"); }), "llama.block_count", "is a whole number"));
        CHECK(names(error_of([&] { file.number("llama.block_count", 1); }), "llama.block_count", "wanted a float"));
        CHECK(names(error_of([&] { file.texts("tokenizer.ggml.token_type"); }), "token_type", "list of whole numbers"));
        CHECK(names(error_of([&] { file.integers("tokenizer.ggml.tokens"); }), "tokens", "is a list of texts"));
        CHECK(names(error_of([&] { file.boolean("absent"); }), "absent", "has no"));
    }

    TEST_CASE("GGUF: files that lie are refused") {
        CHECK(error_opening(small().file()).empty());
        CHECK(has(error_opening(""), "begins with \"GGUF\""));
        CHECK(has(error_opening("GGUF"), "the version"));
        CHECK(has(error_opening("version https://git-lfs"), "git lfs pull"));
        const FreshDirectory dir;
        put(dir.path / "pointer.gguf", "version https://git-lfs");
        put(dir.path / "other", "version https://git-lfs");
        CHECK(is_gguf_file(dir.path / "pointer.gguf"));
        CHECK(!is_gguf_file(dir.path / "other"));
        CHECK(!is_gguf_file(dir.path / "none.gguf"));
        CHECK(!is_gguf_file(dir.path));
        const auto with = [&](auto change) {
            GgufBuilder b = small();
            change(b);
            return error_opening(b.file());
        };
        CHECK(has(with([](auto& b) { b.version = 1; }), "GGUF version 1"));
        CHECK(has(with([](auto& b) { b.version = 3u << 24; }), "big-endian"));
        CHECK(has(with([](auto& b) { b.values.push_back(b.values[0]); }), "is there twice"));
        CHECK(has(with([](auto& b) { b.tensors.push_back(b.tensors[0]); }), "is there twice"));
        CHECK(has(with([](auto& b) { b.value("x", 13, ""); }), "value type 13"));
        CHECK(has(with([](auto& b) { b.value("x", 9, raw<uint32_t>(9) + raw<uint64_t>(0)); }), "list of lists"));
        CHECK(has(with([](auto& b) { b.value("x", 10, raw<uint64_t>(uint64_t{1} << 63)); }), "less than 2^63"));
        CHECK(has(with([](auto& b) { b.value("x", 7, raw<uint8_t>(2)); }), "wanted 0 or 1"));
        CHECK(has(with([](auto& b) { b.value("x", 8, raw(uint64_t{1} << 60)); }), "left of the file"));
        for (const uint32_t type : {0u, 5u, 6u, 8u, 10u, 12u}) {
            CHECK(has(with([&](auto& b) { b.value("x", 9, raw(type) + raw<uint64_t>(1000)); }), "1000 elements"));
            CHECK(has(with([&](auto& b) { b.value("x", 9, raw(type) + raw<uint64_t>(UINT64_MAX)); }), "elements"));
        }
        for (const uint32_t alignment : {0u, 24u, 0xffffffffu})
            CHECK(has(with([&](auto& b) { b.set("general.alignment", alignment); }), "power of two"));
        CHECK(has(with([](auto& b) { b.set("general.alignment", uint32_t{1} << 31); }), "beyond the file's end"));
        CHECK(has(with([](auto& b) { b.set("general.alignment", "32"); }), "general.alignment"));
        CHECK(has(with([](auto& b) { b.set("general.alignment", uint32_t{64}); }), "multiple of the alignment, 64"));
        const auto with_tensor = [&](auto change) { return with([&](auto& b) { change(b.tensors[1]); }); };
        CHECK(has(with_tensor([](auto& t) { t.shape = {}; }), "0 dimensions"));
        CHECK(has(with_tensor([](auto& t) { t.shape = {1, 1, 1, 1, 1}; }), "5 dimensions"));
        CHECK(has(with_tensor([](auto& t) { t.shape = {32, 0}; }), "dimension of 0"));
        CHECK(has(with_tensor([](auto& t) { t.shape = {33, 3}; }), "whole blocks of 32"));
        CHECK(has(with_tensor([](auto& t) { t.shape = {32, 300}; }), "reach beyond the file's end"));
        CHECK(has(with_tensor([](auto& t) { t.shape = {uint64_t{1} << 33, uint64_t{1} << 33}; }), "fits 64 bits"));
        CHECK(has(with_tensor([](auto& t) { t.shape = {uint64_t{1} << 59}; }), "reach beyond the file's end"));
        CHECK(has(with_tensor([](auto& t) { t.type = 10; }), "stored as Q2_K"));
        CHECK(has(with_tensor([](auto& t) { t.type = 999; }), "stored as type 999"));
        CHECK(has(with_tensor([](auto& t) { t.name.assign(70000, 'n'); }), "at most 65535"));
        GgufBuilder overlapping = small();
        overlapping.tensors[0].bytes.clear();
        CHECK(has(error_opening(overlapping.file()), "do not overlap"));
    }
}
