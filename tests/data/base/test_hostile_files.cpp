// Hundreds of broken safetensors, token, tokenizer.json and record files. Each is read or ends in a UserError that
// names it: no crash, no hang, no memory out of proportion to the file. (GGUF: test_gguf_hostile.cpp.)
#include <doctest/doctest.h>

#include "data/base/error.h"
#include "data/prepare.h"
#include "data/token_file.h"
#include "data/tokenizer/tokenizer.h"
#include "tests/fake_tokenizer.h"
#include "tests/limited_memory.h"
#include "tests/mutations.h"
#include "tests/temporary_files.h"
#include "tests/token_files.h"
#include "train/files/safetensors.h"
#include "train/files/safetensors_writer.h"

namespace {
namespace fs = std::filesystem;
using namespace slab::data;
using namespace slab::test;

constexpr size_t limit_bytes = size_t{16} << 20;  // the files have a few KiB

// spoil(number) writes the broken file, read() reads it all; `part` stands in every error.
template <typename Spoil, typename Read>
void try_broken(size_t count, const std::string& part, const Spoil& spoil, const Read& read) {
    size_t refused = 0, fine = 0;
    const LimitedMemory limit(limit_bytes);
    for (size_t i = 0; i < count; ++i) {
        CAPTURE(i);
        spoil(i);
        try {
            read();
            ++fine;
        } catch (const slab::data::UserError& error) {
            ++refused;
            INFO(std::string(error.what()));
            CHECK(has(error.what(), part));
        } catch (const std::exception& error) {
            FAIL_CHECK("mutation " << i << ": " << error.what());
        }
        if (!limit.kept()) FAIL("mutation " << i << " took more memory than " << limit_bytes << " bytes at once");
    }
    // Neither is everything accepted, nor does everything fail at the first check.
    CHECK(refused > count / 5);
    CHECK(fine > count / 50);
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("safetensors: broken files are read or refused by name") {
        using namespace slab::train;
        const FreshDirectory dir;
        const fs::path path = dir.path / "broken.safetensors";
        const std::vector<float> wide(48, 0.5f);
        const std::vector<slab::bf16> narrow(15, slab::to_bf16(2));
        const std::vector<int32_t> ids(7, 3);
        SafetensorsWriter writer;
        writer.add("model.layers.0.matrix", {6, 8}, wide.data());
        writer.add("model.layers.1.odd", {3, 5}, narrow.data());
        writer.add("half", DType::f16, {7}, narrow.data());
        writer.add("ids", {7}, ids.data());
        writer.add("scalar", {}, wide.data());
        writer.add("empty", {0, 4}, wide.data());
        writer.write(path);
        const std::string whole = content(path);
        const size_t header_bytes =
            8 + static_cast<unsigned char>(whole[0]) + 256u * static_cast<unsigned char>(whole[1]);
        const auto read = [&] {
            const SafetensorsFile file(path);
            for (const SafetensorsEntry& entry : file.entries()) {
                std::vector<std::byte> raw(entry.bytes);
                file.read_raw(entry.name, entry.dtype, raw.data());
                if (entry.dtype != DType::f32 && entry.dtype != DType::f16 && entry.dtype != DType::bf16) continue;
                std::vector<float> values(entry.elems);
                file.read_as(entry.name, values.data());
                if (entry.shape.size() == 2) file.read_as(entry.name, values.data(), {.transposed = true});
            }
        };
        CHECK_NOTHROW(read());
        const auto spoil = [&](size_t number) {
            Spoiler spoiler(number);
            const bool length = spoiler.below(6) == 0;  // the header's length, else mostly the header's text
            put_anew(path, spoiler.spoilt(whole, length ? 8 : header_bytes, !length));
        };
        try_broken(mutations(600), path.string(), spoil, read);
    }

    TEST_CASE("token files: broken pairs are read or refused by name") {
        const FreshDirectory dir;
        const fs::path path = dir.path / "broken.bin", mask_path = mask_path_for(path);
        std::string wholes[2][2];  // [uint16, uint32][tokens, mask]
        for (const uint32_t largest : {300u, 70000u}) {
            TokenFileWriter writer(path, largest, true, 16);
            for (uint32_t i = 0; i < 65; ++i) writer.append(i * 4, i % 16 == 0 ? 2 : i % 2);
            writer.commit();
            wholes[largest > 65535][0] = content(path);
            wholes[largest > 65535][1] = content(mask_path);
        }
        const auto spoil = [&](size_t number) {
            Spoiler spoiler(number);
            const auto& whole = wholes[spoiler.below(2)];
            const bool tokens = spoiler.below(2) == 0;
            put_anew(path, tokens ? spoiler.spoilt(whole[0], 16, false) : whole[0]);
            put_anew(mask_path, tokens ? whole[1] : spoiler.spoilt(whole[1], spoiler.below(2) ? 16 : 1100, false));
        };
        const auto read = [&] {
            const TokenFile file(path);
            REQUIRE(file.size() <= content(path).size());
            uint64_t sum = file.content_hash();
            for (size_t i = 0; i < file.size(); ++i) {
                const uint32_t token = token_at(file, i);
                sum += token + mask_at(file, i);
                REQUIRE(token <= file.max_token());
            }
            REQUIRE(file.target_count() <= file.size());
        };
        try_broken(mutations(600), (dir.path / "broken.").string(), spoil, read);
    }

    TEST_CASE("tokenizer.json: broken files are read or refused by name") {
        const FreshDirectory dir;
        const fs::path path = dir.path / "tokenizer.json";
        std::vector<std::string> wholes;
        for (const char* kind : {"gpt2", "llama3", "qwen2", "smollm"})
            wholes.push_back(content(fs::path("tests/tokenizers") / kind / "tokenizer.json"));
        put(dir.path / "tokenizer_config.json", R"({"eos_token": "<|endoftext|>"})");
        const auto spoil = [&](size_t number) {
            const std::string& whole = wholes[number % wholes.size()];
            Spoiler spoiler(number);  // half of them in what is not the vocabulary
            put_anew(path, spoiler.spoilt(whole, spoiler.below(2) == 0 ? whole.find("\"vocab\"") : whole.size(), true));
        };
        const auto read = [&] {
            const auto tokenizer = open_tokenizer(dir.path);
            const auto ids = tokenizer->encode("It's <|endoftext|> 12 \n\n x\u0301\xff", SpecialTokens::parse);
            for (const uint32_t id : ids) REQUIRE(id < tokenizer->vocabulary_size());
            tokenizer->decode(ids, true);
        };
        try_broken(mutations(500), "token", spoil, read);
    }

    TEST_CASE("records: broken files are read or refused by name") {
        const FreshDirectory dir;
        const fs::path path = dir.path / "broken.jsonl";
        const std::string wholes[] = {
            R"({"messages": [{"role": "user", "content": "h\u00e9llo é"}, {"role": "assistant", "content": [{"type": "text", "text": "x"}]}], "id": -1.5e3})"
            "\r\n"
            R"({"messages": [{"role": "system", "content": ""}, {"role": "assistant", "content": "\ud83d\ude00"}], "tools": null})"
            "\n",
            R"({"instruction": "Add", "input": "1, 2", "output": "3"})"
            "\n\n"
            R"({"instruction": "Add", "output": "0", "meta": [[1], {"a": 2}]})"};
        const auto spoil = [&](size_t number) {
            Spoiler spoiler(number);
            const std::string& whole = wholes[spoiler.below(2)];
            put_anew(path, spoiler.spoilt(whole, whole.size(), true));
        };
        const FakeTokenizer tokenizer = chatml_tokenizer();
        const auto read = [&] {
            PreparedRecords records(tokenizer, {});
            const size_t bytes = records.add_file(path, 1, [](size_t done, size_t all) { REQUIRE(done <= all); });
            REQUIRE(bytes == fs::file_size(path));
        };
        try_broken(mutations(600), path.string(), spoil, read);
    }

    TEST_CASE("records: millions of short lines take memory in proportion to the file") {
        const FreshDirectory dir;
        const fs::path path = dir.path / "short.jsonl";
        const FakeTokenizer tokenizer;
        const auto refusal_of = [&](size_t lines, const std::string& line, const std::string& last) {
            std::string all;
            for (size_t i = 0; i < lines; ++i) all += line;
            put(path, all + last);
            all = {};
            const LimitedMemory limited(size_t{256} << 20);
            const std::string error = error_of([&] {
                PreparedRecords records(tokenizer, {});
                records.add_file(path, 2);
                CHECK(records.records() == 0);
            });
            CHECK(limited.kept());
            return error;
        };
        CHECK(refusal_of(size_t{4} << 20, "\n", "").empty());
        CHECK(has(refusal_of(size_t{4} << 20, "1\n", ""), "short.jsonl, line 1: found 1; wanted a JSON object"));
        // The first of many, also when its batch is not the file's first and another's fault is found before.
        CHECK(has(refusal_of(40000, "{\"text\":\"\"}\n",
                             "{\"prompt\":\"\",\"completion\":\"\"}\n" + std::string(20000, '\n') + "1\n1\n"),
                  "short.jsonl, line 40001: the record has \"prompt and completion\""));
    }
}
