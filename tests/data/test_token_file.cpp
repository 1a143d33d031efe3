// Token files and masks: both widths written and read back. Hostile and broken files are refused with place and cause.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "data/token_file.h"
#include "tests/temporary_files.h"
#include "tests/token_files.h"

namespace {
namespace fs = std::filesystem;
using namespace slab::data;
using namespace slab::test;

// A file built word by word, apart from the writer under test.
std::string raw_file(int32_t magic, int32_t version, int32_t count, const std::string& payload) {
    std::vector<int32_t> header(256);
    header[0] = magic;
    header[1] = version;
    header[2] = count;
    return std::string(reinterpret_cast<const char*>(header.data()), 1024) + payload;
}

std::string raw_uint16(int32_t count) {
    std::string payload;
    for (int32_t i = 0; i < count; ++i) payload += {static_cast<char>(i), static_cast<char>(1)};  // 256 + i
    return raw_file(20240520, 1, count, payload);
}

std::string reading_error(const fs::path& path) {
    return error_of([&] { TokenFile file(path); });
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("token file: the bytes on disk are llm.c's") {
        FreshDirectory dir;
        const fs::path path = dir.path / "t.bin";
        write_token_file(path, std::vector<uint32_t>{256, 257, 258});
        CHECK(content(path) == raw_uint16(3));
        write_token_file(path, std::vector<uint32_t>{1, 0x01020304});
        CHECK(content(path) == raw_file(20240801, 7, 2, std::string("\1\0\0\0\4\3\2\1", 8)));
        CHECK(names_in(dir.path) == std::vector<std::string>{"t.bin"});
        write_token_file(path, std::vector<uint32_t>{7, 8}, std::vector<uint8_t>{3, 0});
        CHECK(content(dir.path / "t.mask") == raw_file(0x6d626c73, 1, 2, std::string("\3\0", 2)));
        CHECK(content(dir.path / "t.mask").substr(0, 4) == "slbm");
    }

    TEST_CASE("token file: round trips, the width following the largest id") {
        FreshDirectory dir;
        const fs::path path = dir.path / "t.bin";
        for (const uint32_t largest : {0u, 65535u, 65536u, 0xffffffffu}) {
            for (const size_t count : {0, 1, 600000}) {  // the last: several buffers
                std::vector<uint32_t> tokens(count);
                std::vector<uint8_t> mask(count);
                for (size_t i = 0; i < count; ++i) {
                    tokens[i] = static_cast<uint32_t>(i * 2654435761u % (uint64_t{largest} + 1));
                    mask[i] = static_cast<uint8_t>(i * 7 % 11 & 3);
                }
                if (count > 0) tokens[count / 2] = largest;
                for (const bool masked : {true, false}) {
                    write_token_file(path, tokens,
                                     masked ? std::span<const uint8_t>(mask) : std::span<const uint8_t>());
                    const TokenFile file(path);
                    CHECK(file.size() == count);
                    CHECK(file.token_bytes() == (count > 0 && largest > 65535 ? 4 : 2));
                    CHECK(file.max_token() == (count > 0 ? largest : 0));
                    if (count > 0) CHECK(token_at(file, file.max_token_index()) == largest);
                    CHECK(file.has_mask() == (masked && count > 0));
                    std::vector<uint32_t> got(count);
                    std::vector<uint8_t> bits(count);
                    file.read(0, count, got.data(), bits.data());
                    if (count > 0) {
                        CHECK(token_at(file, count - 1) == got.back());
                        CHECK(mask_at(file, count - 1) == bits.back());
                    }
                    size_t wrong = 0, targets = 0;
                    for (size_t i = 0; i < count; ++i) {
                        const bool target = !masked || (mask[i] & 1), start = masked ? (mask[i] & 2) != 0 : i == 0;
                        wrong += got[i] != tokens[i] || bits[i] != target * kMaskTarget + start * kMaskDocumentStart;
                        targets += target;
                    }
                    CHECK(wrong == 0);
                    CHECK(file.target_count() == targets);
                }
            }
        }
    }

    TEST_CASE("token file: an open file outlives its replacement, and copies and moves read the same") {
        FreshDirectory dir;
        const fs::path path = dir.path / "t.bin";
        write_token_file(path, std::vector<uint32_t>{1, 2, 3});
        TokenFile first(path);
        write_token_file(path, std::vector<uint32_t>{9});
        const TokenFile copy = first;
        const TokenFile moved = std::move(first);
        CHECK(token_at(copy, 2) == 3);
        CHECK(token_at(moved, 1) == 2);
        CHECK(token_at(TokenFile(path), 0) == 9);
    }

    TEST_CASE("token file: one that is cut short or written to in place is an error at the next read, not a crash") {
        FreshDirectory dir;
        const fs::path path = dir.path / "t.bin";
        for (const bool mask : {false, true}) {
            CAPTURE(mask);
            const std::vector<uint32_t> tokens(300000, 70000);  // longer than a piece of a scan
            write_token_file(path, tokens, std::vector<uint8_t>(tokens.size(), kMaskTarget | kMaskDocumentStart));
            const TokenFile file(path);
            CHECK(token_at(file, 299999) == 70000);
            CHECK(is_target(file, 299999));
            const fs::path changed = mask ? dir.path / "t.mask" : path;
            fs::resize_file(changed, 1024 + 1000);
            std::vector<uint32_t> got(tokens.size());
            std::vector<uint8_t> bits(tokens.size());
            const std::string error = error_of([&] { file.read(0, tokens.size(), got.data(), bits.data()); });
            CHECK(has(error, changed.string() + (mask ? ": mask: " : ": tokens: ")));
            CHECK(has(error, "stopped at offset 2024: the file has become shorter since it was opened"));
            CHECK(has(error_of([&] { file.content_hash(); }), "become shorter"));
        }
    }

    TEST_CASE("token file: cut at every length around the header, and longer than it says") {
        FreshDirectory dir;
        const fs::path path = dir.path / "t.bin";
        const std::string whole = raw_uint16(5);
        put(path, whole);
        CHECK(token_at(TokenFile(path), 4) == 260);
        size_t accepted = 0;
        std::vector<size_t> lengths = {0, 1, 2, 3, 4, 7, 8, 11, 12, 13, 512};
        for (size_t length = 1000; length < whole.size(); ++length) lengths.push_back(length);
        for (const size_t length : lengths) {
            put(path, std::string_view(whole).substr(0, length));
            const std::string message = reading_error(path);
            accepted += message.empty();
            CHECK(
                has(message, path.string() + ": at offset " + std::to_string(length) + ": found the end of the file"));
            CHECK(has(message, length < 1024 ? "a header of 1024 bytes" : "1034 bytes in all"));
            CHECK(has(message, "make it with build/tokenize"));
        }
        CHECK(accepted == 0);
        put(path, whole + "x");
        CHECK(has(reading_error(path), "at offset 1034: found 1 byte more; wanted 1034 bytes in all"));
    }

    TEST_CASE("token file: lying headers") {
        FreshDirectory dir;
        const fs::path path = dir.path / "t.bin";
        const auto message = [&](int32_t magic, int32_t version, int32_t count) {
            put(path, raw_file(magic, version, count, "0123456789"));
            return reading_error(path);
        };
        CHECK(message(20240520, 1, 5).empty());
        CHECK(has(message(20240520, 1, 6), "the header counts 6 tokens of 2 bytes"));
        CHECK(has(message(20240520, 1, 4), "found 2 bytes more"));
        CHECK(has(message(20240520, 1, INT32_MAX), "4294968318 bytes in all"));
        CHECK(has(message(20240801, 7, INT32_MAX), "8589935612 bytes in all"));
        CHECK(has(message(20240520, 1, -1), "at offset 8: found a count of -1"));
        CHECK(has(message(20240520, 1, INT32_MIN), "at offset 8: found a count of -2147483648"));
        CHECK(has(message(20240520, 2, 5), "at offset 4: found version 2; wanted version 1 for magic 20240520"));
        CHECK(has(message(20240520, 7, 5), "found version 7; wanted version 1"));
        CHECK(has(message(20240801, 1, 5), "found version 1; wanted version 7"));
        CHECK(has(message(20240801, 7, 5), "1044 bytes in all"));
        CHECK(has(message(0, 1, 5), "at offset 0: found magic 0; wanted magic 20240520 (uint16 tokens)"));
        const auto swapped = [](uint32_t word) { return static_cast<int32_t>(__builtin_bswap32(word)); };
        CHECK(has(message(swapped(20240520), swapped(1), swapped(5)), "magic 20240520 in big-endian byte order"));
        CHECK(has(message(swapped(20240801), swapped(7), swapped(5)), "magic 20240801 in big-endian byte order"));
        CHECK(has(message(0x6d626c73, 1, 10), "found the magic of a mask file"));
        put(path, std::string(2000, 'a'));
        CHECK(has(reading_error(path), "found magic 1633771873"));
    }

    TEST_CASE("token file: masks that do not fit") {
        FreshDirectory dir;
        const fs::path path = dir.path / "t.bin", mask = dir.path / "t.mask";
        put(path, raw_uint16(4));
        const auto message = [&](const std::string& bytes) {
            put(mask, bytes);
            return reading_error(path);
        };
        const std::string whole = raw_file(0x6d626c73, 1, 4, std::string("\0\1\2\3", 4));
        CHECK(message(whole).empty());
        CHECK(TokenFile(path).target_count() == 2);
        size_t accepted = 0;
        for (size_t length = 0; length < whole.size(); length += length < 1000 ? 100 : 1)
            accepted += !has(message(whole.substr(0, length)), "t.mask: at offset " + std::to_string(length));
        CHECK(accepted == 0);
        CHECK(has(message(whole + "y"), "t.mask: at offset 1028: found 1 byte more"));
        CHECK(has(message(raw_file(0x6d626c73, 1, 3, std::string(3, '\1'))),
                  "t.mask: at offset 8: found a count of 3; wanted the 4 tokens of " + path.string()));
        CHECK(has(message(raw_file(0x6d626c73, 1, 5, std::string(5, '\1'))), "found a count of 5"));
        CHECK(has(message(raw_file(0x6d626c73, 1, -4, "")), "found a count of -4"));
        CHECK(has(message(raw_file(0x6d626c73, 2, 4, "\1\1\1\1")), "found version 2; wanted version 1"));
        CHECK(has(message(raw_file(20240520, 1, 2, "\1\1\1\1")), "found the magic of a token file"));
        CHECK(has(message(raw_file(0x6d626c73, 1, 4, "\1\1\4\1")), "at offset 1026: found mask byte 4; wanted 0 to 3"));
        CHECK(has(message(raw_file(0x736c626d, 1, 4, "\1\1\1\1")), "in big-endian byte order"));
        fs::remove(mask);
        fs::create_symlink("nowhere", mask);
        CHECK(has(reading_error(path), "t.mask: cannot be opened for reading: No such file"));
        fs::remove(mask);
        CHECK(reading_error(path).empty());
    }

    TEST_CASE("token file: the row length in the mask's header, and rows that break its promise") {
        FreshDirectory dir;
        const fs::path path = dir.path / "t.bin", mask = dir.path / "t.mask";
        {
            TokenFileWriter writer(path, 100, true, 3);
            for (const uint8_t bits : {2, 1, 2, 3, 1, 1, 2}) writer.append(7, bits);
            writer.commit();
        }
        CHECK(TokenFile(path).row_tokens() == 3);
        std::string whole = content(mask);
        CHECK(whole.substr(12, 4) == std::string("\3\0\0\0", 4));
        write_token_file(dir.path / "stream.bin", std::vector<uint32_t>{1, 2}, std::vector<uint8_t>{2, 1});
        CHECK(TokenFile(dir.path / "stream.bin").row_tokens() == 0);
        const auto message = [&](int32_t row_tokens, const std::string& bits) {
            std::string bytes = whole.substr(0, 1024) + bits;
            std::memcpy(bytes.data() + 12, &row_tokens, sizeof row_tokens);
            put(mask, bytes);
            return reading_error(path);
        };
        const std::string bits = whole.substr(1024);
        CHECK(message(3, bits).empty());
        CHECK(message(0, bits).empty());
        CHECK(message(6, bits).empty());
        CHECK(has(message(-1, bits), "t.mask: at offset 12: found a row length of -1; wanted 0 (a stream) or more"));
        CHECK(has(message(INT32_MIN, bits), "at offset 12: found a row length of -2147483648"));
        for (const int32_t other : {4, 5, 7, 8, INT32_MAX})
            CHECK(has(message(other, bits), "at offset 12: found a row length of " + std::to_string(other) +
                                                "; wanted one that divides the 7 tokens less one"));
        CHECK(has(message(2, bits),
                  "at offset 1028: found mask byte 1; wanted 2 or 3: the header has a row length of 2"));
        CHECK(has(message(3, std::string("\0\1\2\3\1\1\2", 7)), "at offset 1024: found mask byte 0"));
        CHECK(has(message(3, std::string("\2\1\2\3\1\1\1", 7)), "at offset 1030: found mask byte 1"));
        CHECK_THROWS_AS(TokenFileWriter(path, 100, false, 3), std::logic_error);
    }

    TEST_CASE("token file: the mask's header says which tokenizer made it, if it was told") {
        FreshDirectory dir;
        const fs::path path = dir.path / "t.bin", mask = dir.path / "t.mask";
        write_token_file(path, std::vector<uint32_t>{1, 2}, std::vector<uint8_t>{2, 1});
        CHECK_FALSE(TokenFile(path).origin());
        const std::string plain = content(path), plain_mask = content(mask);
        for (const std::string& name : {std::string("Sm\xc3\xb8l"), std::string(), std::string(600, 'n')}) {
            {
                TokenFileWriter writer(path, 100, true);
                writer.append(1, 2);
                writer.append(2, 1);
                CHECK(writer.ids() == std::vector<bool>{false, true, true});
                writer.set_origin({.name = name, .vocabulary_size = 49152, .fingerprint = 0x8123456789abcdefu});
                writer.commit();
                CHECK_THROWS_AS(writer.set_origin({}), std::logic_error);
            }
            CHECK(content(path) == plain);
            std::string bytes = content(mask);
            const auto origin = TokenFile(path).origin();
            REQUIRE(origin);
            CHECK(origin->name == name.substr(0, 511));
            CHECK(origin->vocabulary_size == 49152);
            CHECK(origin->fingerprint == 0x8123456789abcdefu);
            CHECK(bytes.substr(0, 16) == plain_mask.substr(0, 16));
            CHECK(bytes.substr(16, 16) == std::string("\x00\xc0\0\0\xef\xcd\xab\x89\x67\x45\x23\x81tenk", 16));
            CHECK(bytes.substr(544) == plain_mask.substr(544));
            CHECK(TokenFile(path).ids() == std::vector<bool>{false, true, true});
            bytes[28] = 'x';  // another's header
            put(mask, bytes);
            CHECK_FALSE(TokenFile(path).origin());
        }
        std::string junk = plain_mask;
        std::fill(junk.begin() + 16, junk.begin() + 1024, '\xff');
        junk.replace(28, 4, "tenk");
        put(mask, junk);
        CHECK(TokenFile(path).origin()->name == std::string(511, '\xff'));
        TokenFileWriter without(path, 100, false);
        CHECK_THROWS_AS(without.set_origin({}), std::logic_error);
    }

    TEST_CASE("token file: a row's filling is a last document of one repeated token without a target") {
        const uint8_t start = kMaskDocumentStart, target = kMaskTarget;
        const auto begin = [](const std::vector<uint32_t>& tokens, const std::vector<uint8_t>& bits) {
            return padding_begin(tokens, bits);
        };
        CHECK(begin({5, 6, 7, 0, 0, 0}, {start, target, target, start, 0, 0}) == 3);
        CHECK(begin({5, 6, 7, 8, 9, 0}, {start, target, target, target, 0, start}) == 5);  // one token
        CHECK(begin({5, 0, 7, 0, 0, 0}, {start, start, target, start, 0, 0}) == 3);        // behind two documents
        // A document's first token is no target, whatever its mask says.
        CHECK(begin({5, 6, 0, 0}, {start, target, static_cast<uint8_t>(start | target), 0}) == 2);
        CHECK(begin({5, 6, 0, 0}, {start, target, start, target}) == 4);  // a target
        CHECK(begin({5, 6, 0, 1}, {start, target, start, 0}) == 4);       // another token
        CHECK(begin({0, 0, 0, 0}, {start, 0, 0, 0}) == 4);                // the only document
        CHECK(begin({5, 6, 7, 8}, {start, target, target, target}) == 4);
        CHECK(begin({}, {}) == 0);
    }

    TEST_CASE("token file: from memory it is the file that would have been written") {
        FreshDirectory dir;
        const fs::path path = dir.path / "t.bin";
        for (const uint32_t largest : {100u, 70000u}) {
            TokenFileWriter writer(path, largest, true, 3);
            TokenMemory memory(largest, 3);
            for (TokenSink* sink : {static_cast<TokenSink*>(&writer), static_cast<TokenSink*>(&memory)}) {
                for (uint32_t i = 0; i < 7; ++i) sink->append(i == 4 ? largest : i, i % 3 == 0 ? 2 : 1);
                CHECK(sink->size() == 7);
            }
            writer.commit();
            const TokenFile file(path), copy("a name", std::move(memory));
            CHECK(copy.path() == "a name");
            for (const TokenFile* f : {&file, &copy}) {
                CHECK(f->token_bytes() == (largest == 100 ? 2 : 4));
                CHECK(f->max_token() == largest);
                CHECK(f->max_token_index() == 4);
                CHECK(f->target_count() == 4);
                CHECK(document_count(*f) == 3);
                CHECK(f->row_tokens() == 3);
                CHECK(f->has_mask());
                CHECK(token_at(*f, 6) == 6);
            }
            CHECK(file.content_hash() == copy.content_hash());
        }
        TokenMemory narrow(100);
        CHECK_THROWS_AS(narrow.append(65536, 1), std::logic_error);
        CHECK_THROWS_AS(narrow.append(1, 4), std::logic_error);
        CHECK(TokenFile("empty", TokenMemory(5)).size() == 0);
        TokenMemory unfinished(100, 3);
        for (int i = 0; i < 3; ++i) unfinished.append(1, 2);
        CHECK(has(error_of([&] { TokenFile("rows", std::move(unfinished)); }), "rows: at offset 12"));
    }

    TEST_CASE("token file: any change of a token, a mark or the length changes the hash") {
        const auto hash = [](std::vector<uint32_t> tokens, std::vector<uint8_t> mask, size_t row_tokens = 0) {
            TokenMemory memory(1u << 31, row_tokens);
            for (size_t i = 0; i < tokens.size(); ++i) memory.append(tokens[i], mask[i]);
            return TokenFile("x", std::move(memory)).content_hash();
        };
        const std::vector<uint32_t> tokens = {5, 6, 7, 8, 9};
        const std::vector<uint8_t> mask = {2, 1, 3, 1, 2};
        std::vector<uint64_t> hashes = {hash(tokens, mask), hash(tokens, mask, 2), hash(tokens, mask, 4),
                                        hash({5, 6, 7, 8}, {2, 1, 3, 1}), hash({}, {})};
        for (size_t i = 0; i < tokens.size(); ++i) {
            for (const uint32_t bit : {1u, 256u, 1u << 31}) {
                auto other = tokens;
                other[i] ^= bit;
                hashes.push_back(hash(other, mask));
            }
            for (const uint8_t bit : {1, 2}) {
                auto other = mask;
                other[i] ^= bit;
                hashes.push_back(hash(tokens, other));
            }
        }
        hashes.push_back(hash({6, 5, 7, 8, 9}, mask));
        std::sort(hashes.begin(), hashes.end());
        CHECK(std::adjacent_find(hashes.begin(), hashes.end()) == hashes.end());
        CHECK(hash(tokens, mask) == hash(tokens, mask));
        CHECK(hash(tokens, mask, 2) == 0xfb63f4484851c01au);  // checkpoints hold it
    }

    TEST_CASE("token file: what is no file") {
        FreshDirectory dir;
        CHECK(has(reading_error(dir.path / "missing.bin"),
                  "missing.bin: cannot be opened for reading: No such file or directory"));
        CHECK(has(reading_error(dir.path), "is a directory"));
        CHECK(has(reading_error("/dev/zero"), "is no regular file"));
        REQUIRE(mkfifo((dir.path / "pipe").c_str(), 0600) == 0);
        CHECK(has(reading_error(dir.path / "pipe"), "is no regular file"));
    }

    TEST_CASE("token file: the mask's name") {
        CHECK(mask_path_for("a/train.bin") == "a/train.mask");
        CHECK(mask_path_for("a.b/train") == "a.b/train.mask");
        CHECK(mask_path_for("train.tokens") == "train.tokens.mask");
    }

    TEST_CASE("token file: writing without a mask removes an earlier one, and mistakes of the caller are caught") {
        FreshDirectory dir;
        const fs::path path = dir.path / "t.bin";
        const std::vector<uint32_t> tokens = {1, 2};
        write_token_file(path, tokens, std::vector<uint8_t>{1, 1});
        CHECK(TokenFile(path).has_mask());
        write_token_file(path, tokens);
        CHECK_FALSE(TokenFile(path).has_mask());
        CHECK_THROWS_AS(write_token_file(path, tokens, std::vector<uint8_t>{1}), std::logic_error);
        CHECK_THROWS_AS(write_token_file(path, tokens, std::vector<uint8_t>{1, 4}), std::logic_error);
        TokenFileWriter writer(path, 100, false);
        CHECK_THROWS_AS(writer.append(65536), std::logic_error);
    }

    TEST_CASE("token file: stopped between the two files, no tokens are left beside a mask of others") {
        FreshDirectory dir;
        const fs::path path = dir.path / "t.bin", mask = dir.path / "t.mask";
        write_token_file(path, std::vector<uint32_t>{5, 6}, std::vector<uint8_t>{3, 1});
        for (const bool with_mask : {true, false}) {
            put(path, "earlier tokens");
            TokenFileWriter writer(path, 100, with_mask);
            writer.append(7, kMaskTarget);
            writer.append(8, kMaskTarget);
            writer.prepare();
            fs::remove_all(mask);
            fs::create_directories(mask / "in the way");  // neither replaced nor removed
            CHECK_THROWS(writer.commit());
            CHECK_FALSE(fs::exists(path));
            fs::remove_all(mask);
        }
        put(dir.path / "elsewhere.bin", "earlier tokens");
        fs::create_symlink("elsewhere.bin", path);  // a link is written through, as before
        for (const uint32_t token : {1u, 2u}) {
            write_token_file(path, std::vector<uint32_t>{token});
            CHECK(fs::is_symlink(path));
            CHECK(token_at(TokenFile(dir.path / "elsewhere.bin"), 0) == token);
        }
    }

    TEST_CASE("token file: a full disk leaves the earlier pair") {
        FreshDirectory dir;
        const fs::path path = dir.path / "t.bin";
        write_token_file(path, std::vector<uint32_t>{5}, std::vector<uint8_t>{3});
        const std::vector<uint32_t> many(100000, 1);
        const std::vector<uint8_t> mask(many.size(), 1);
        std::string header_message, message;
        {
            SmallDisk disk(1000);
            header_message = error_of([&] { write_token_file(path, many, mask); });
        }
        {
            SmallDisk disk(150000);  // the mask would fit, the tokens do not
            message = error_of([&] { write_token_file(path, many, mask); });
        }
        CHECK(has(header_message, "1024 bytes at offset 0"));
        CHECK(has(message, "t.bin: cannot write 200000 bytes at offset 1024 (148976 were written)"));
        CHECK(token_at(TokenFile(path), 0) == 5);
        CHECK(TokenFile(path).has_mask());
        CHECK(names_in(dir.path) == std::vector<std::string>{"t.bin", "t.mask"});
    }
}
