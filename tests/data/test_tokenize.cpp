// The byte tokenizer, nearest names, the shared reading of command lines, and all of build/tokenize. Its files are read
// back and decoded. Every mistake of a user ends with exit code 1 and no file.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <sstream>
#include <string>
#include <vector>

#include "data/base/nearest_name.h"
#include "data/token_file.h"
#include "data/tokenize.h"
#include "data/tokenizer/byte_tokenizer.h"
#include "tests/temporary_files.h"
#include "tests/token_files.h"

namespace {
namespace fs = std::filesystem;
using namespace slab::data;
using namespace slab::test;

struct Result {
    int exit_code;
    std::string out, err;
};

Result tokenize(const std::vector<std::string>& arguments, const std::string& standard_input = "") {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    REQUIRE(write(ends[1], standard_input.data(), standard_input.size()) ==
            static_cast<ssize_t>(standard_input.size()));
    close(ends[1]);
    std::vector<const char*> argv = {"tokenize"};
    for (const auto& argument : arguments) argv.push_back(argument.c_str());
    std::ostringstream out, err;
    const int code = run_tokenize(static_cast<int>(argv.size()), argv.data(), ends[0], out, err);
    close(ends[0]);
    return {code, out.str(), err.str()};
}

// The documents of a token file as text, with '|' for the separator; checks the marks on the way.
std::vector<std::string> documents(const fs::path& path) {
    const TokenFile file(path);
    REQUIRE(file.has_mask());
    std::vector<uint32_t> tokens(file.size());
    std::vector<uint8_t> bits(file.size());
    file.read(0, file.size(), tokens.data(), bits.data());
    std::vector<std::string> texts;
    for (size_t i = 0; i < file.size(); ++i) {
        if (bits[i] & kMaskDocumentStart) {
            texts.emplace_back();
            CHECK_FALSE((bits[i] & kMaskTarget) != 0);
            CHECK((i == 0 || tokens[i - 1] == ByteTokenizer::kEndOfText));
        }
        REQUIRE_FALSE(texts.empty());
        texts.back() += tokens[i] == ByteTokenizer::kEndOfText ? '|' : static_cast<char>(tokens[i]);
    }
    return texts;
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("byte tokenizer: every byte there and back, ids beyond the bytes give nothing") {
        std::string all;
        for (int i = 0; i < 256; ++i) all.push_back(static_cast<char>(i));
        const ByteTokenizer bytes;
        const auto tokens = bytes.encode(all, SpecialTokens::as_text);
        REQUIRE(tokens.size() == 256);
        for (uint32_t i = 0; i < 256; ++i) CHECK(tokens[i] == i);
        CHECK(bytes.decode(tokens) == all);
        CHECK(bytes.encode("é", SpecialTokens::as_text) == std::vector<uint32_t>{0xc3, 0xa9});
        CHECK(bytes.encode("", SpecialTokens::as_text).empty());
        CHECK(bytes.decode(std::vector<uint32_t>{72, 256, 105, 259, 260, 4000000000u}) == "Hi");
    }

    TEST_CASE("nearest name") {
        CHECK(edit_distance("kitten", "sitting") == 3);
        CHECK(edit_distance("", "abc") == 3);
        CHECK(edit_distance("abc", "") == 3);
        CHECK(edit_distance("num_slots", "num-slots") == 0);
        CHECK(nearest_name("lerning-rate", {"lora-r", "learning-rate", "seed"}) == "learning-rate");
        CHECK(nearest_name("x", {}).empty());
        CHECK(nearest_name("ab", {"aa", "bb"}) == "aa");
    }

    TEST_CASE("tokenize: splits off the tail of each document, and says what it wrote") {
        FreshDirectory dir;
        put(dir.path / "a", "0123456789");
        put(dir.path / "b", "abcdefghijklmnopqrst");
        const fs::path out = dir.path / "made" / "here";
        const Result result = tokenize({"--output-dir", out, dir.path / "a", dir.path / "b", "-"}, "stdin");
        CHECK(result.err == "");
        REQUIRE(result.exit_code == 0);
        CHECK(names_in(out) == std::vector<std::string>{"train.bin", "train.mask", "val.bin", "val.mask"});
        CHECK(documents(out / "train.bin") == std::vector<std::string>{"012345678|", "abcdefghijklmnopqr|", "stdin|"});
        CHECK(documents(out / "val.bin") == std::vector<std::string>{"9|", "st|"});
        CHECK(TokenFile(out / "train.bin").token_bytes() == 2);
        // No target: three first tokens, and the separators of the two documents that go on in validation.
        CHECK(TokenFile(out / "train.bin").target_count() == 35 - 5);
        CHECK_FALSE(is_target(TokenFile(out / "train.bin"), 9));
        CHECK(is_target(TokenFile(out / "train.bin"), 34));
        CHECK(is_target(TokenFile(out / "val.bin"), 1));
        CHECK(has(result.out, "train.bin: 35 tokens (30 targets) from 32 bytes of text in 3 documents, uint16"));
        CHECK(has(result.out, "val.bin: 5 tokens (3 targets) from 3 bytes of text in 2 documents"));
        CHECK(has(result.out, "vocabulary 260"));
    }

    TEST_CASE("tokenize: no character is cut") {
        FreshDirectory dir;
        const std::string accents = "ééééé", snowmen = "☃☃☃";
        const std::vector<std::string> texts = {accents, snowmen, "a\x01 b\x7f"};
        for (const std::string fraction : {"0.04", "0.10", "0.33", "0.50", "0.99"}) {
            std::vector<std::string> arguments = {"--output_dir=" + dir.path.string(), "--val_fraction", fraction};
            for (size_t i = 0; i < texts.size(); ++i) {
                arguments.push_back(dir.path / std::to_string(i));
                put(arguments.back(), texts[i] + std::string(1000, 'x'));  // long, so that every tail has text
                put(arguments.back() + "-short", texts[i]);
                arguments.push_back(arguments.back() + "-short");
            }
            REQUIRE(tokenize(arguments).exit_code == 0);
            const auto train = documents(dir.path / "train.bin"), val = documents(dir.path / "val.bin");
            REQUIRE(train.size() == 2 * texts.size());
            size_t next_tail = 0;  // the short ones may have none
            for (size_t i = 0; i < train.size(); ++i) {
                const std::string text = texts[i / 2] + (i % 2 == 0 ? std::string(1000, 'x') : "");
                const std::string head = train[i].substr(0, train[i].size() - 1);
                std::string tail;
                if (head.size() < text.size()) {
                    REQUIRE(next_tail < val.size());
                    tail = val[next_tail++];
                    tail.pop_back();
                }
                CHECK(head + tail == text);
                CHECK_FALSE(head.empty());
                if (text == accents) CHECK(head.size() % 2 == 0);
                if (text == snowmen) CHECK(head.size() % 3 == 0);
            }
            CHECK(next_tail == val.size());
        }
    }

    TEST_CASE("tokenize: without validation, other names, earlier files") {
        FreshDirectory dir;
        put(dir.path / "a", "hello");
        const fs::path out = dir.path / "out";
        Result result = tokenize({"--val-fraction", "0", "--output-dir", out, "--name", "licences", dir.path / "a"});
        CHECK(result.exit_code == 0);
        CHECK(names_in(out) == std::vector<std::string>{"licences.bin", "licences.mask"});
        CHECK(documents(out / "licences.bin") == std::vector<std::string>{"hello|"});
        CHECK(has(result.out, "no validation file"));
        CHECK(result.err == "");

        result = tokenize({"--val-fraction", "0.5", "--output-dir", out, "--name", "licences", dir.path / "a"});
        CHECK(documents(out / "licences-val.bin") == std::vector<std::string>{"lo|"});
        result = tokenize({"--val-fraction", "0", "--output-dir", out, "--name", "licences", dir.path / "a"});
        CHECK(result.exit_code == 0);
        CHECK(has(result.err, "licences-val.bin is of an earlier run"));
        CHECK(documents(out / "licences.bin") == std::vector<std::string>{"hello|"});
    }

    TEST_CASE("tokenize: files that are not its own are refused, its own are replaced, which is said") {
        FreshDirectory dir;
        put(dir.path / "a", "0123456789");
        for (const char* name : {"train.bin", "train.mask", "val.bin", "val.mask"}) {
            const fs::path out = dir.path / ("out-" + std::string(name));
            fs::create_directories(out);
            put(out / name, "hello");
            const Result result = tokenize({"--output-dir", out, dir.path / "a"});
            CAPTURE(result.err);
            CHECK(result.exit_code == 1);
            CHECK(has(result.err, std::string(name) + ": exists and is no "));
            CHECK(names_in(out) == std::vector<std::string>{name});
            CHECK(content(out / name) == "hello");
        }
        const fs::path out = dir.path / "out-val.bin";  // no validation: what is called val.bin stays
        Result result = tokenize({"--output-dir", out, "--val-fraction", "0", dir.path / "a"});
        CHECK(result.exit_code == 0);
        CHECK_FALSE(has(result.out, "replaces"));
        CHECK(content(out / "val.bin") == "hello");
        put(out / "val.bin", "");  // has nothing to lose
        result = tokenize({"--output-dir", out, dir.path / "a"});
        CHECK(result.exit_code == 0);
        CHECK(has(result.out, "replaces " + (out / "train.bin").string() + " and " + (out / "val.bin").string() +
                                  " of an earlier run\n"));
        put(dir.path / "a.jsonl", "{\"text\": \"a\"}\n");
        put(out / "train.mask", "notes");
        result = tokenize({"--output-dir", out, dir.path / "a.jsonl"});
        CHECK(has(result.err, "train.mask: exists and is no mask of a token file"));
    }

    TEST_CASE("tokenize: what is too little for the default fraction is all for training, and that is said") {
        FreshDirectory dir;
        put(dir.path / "a", "hello");
        put(dir.path / "three.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n{\"text\": \"c\"}\n");
        for (const std::string file : {"a", "three.jsonl"}) {
            const fs::path out = dir.path / ("out-" + file);
            const Result result = tokenize({"--output-dir", out, "--sequence-len", "8", dir.path / file});
            CAPTURE(result.out);
            CHECK(result.err == "");
            CHECK(result.exit_code == 0);
            CHECK(has(result.out, "no validation file: there is too little for --val-fraction's default of 0.1; "));
            CHECK_FALSE(fs::exists(out / "val.bin"));
            CHECK_FALSE(fs::exists(out / "val.mask"));
        }
        CHECK(documents(dir.path / "out-a" / "train.bin") == std::vector<std::string>{"hello|"});
        const fs::path out = dir.path / "out";
        CHECK(tokenize({"--val-fraction", "0.34", "--output-dir", out, dir.path / "three.jsonl"}).exit_code == 0);
        CHECK(fs::exists(out / "val.bin"));
    }

    TEST_CASE("tokenize: empty files are left out with a warning, nothing but empty files is an error") {
        FreshDirectory dir;
        put(dir.path / "empty", "");
        put(dir.path / "a", "0123456789");
        const fs::path out = dir.path / "out";
        Result result = tokenize({"--output-dir", out, dir.path / "empty", dir.path / "a", "-"});
        CHECK(result.exit_code == 0);
        CHECK(has(result.err, "empty is empty, left out"));
        CHECK(has(result.err, "standard input is empty"));
        CHECK(documents(out / "train.bin").size() == 1);
        result = tokenize({"--output-dir", dir.path / "none", dir.path / "empty"});
        CHECK(result.exit_code == 1);
        CHECK(has(result.err, "every file given is empty"));
        CHECK(!fs::exists(dir.path / "none"));
    }

    TEST_CASE("tokenize: a text that is too long is refused, whatever the tokenizer, and not cut") {
        FreshDirectory dir;
        put(dir.path / "long", "");
        fs::resize_file(dir.path / "long", size_t{3} << 30);  // zeros that take no place on the disk
        for (const std::string tokenizer : {"bytes", "tests/tokenizers/gpt2"}) {
            const Result result =
                tokenize({"--output-dir", dir.path / "out", "--tokenizer", tokenizer, dir.path / "long"});
            CHECK(result.exit_code == 1);
            CHECK(has(result.err, "long: has 3221225472 bytes; wanted a text of at most 2147483647. Hint: split it"));
            CHECK(!fs::exists(dir.path / "out"));
        }
    }

    TEST_CASE("tokenize: a 0 byte near the beginning is no text, from a file or a pipe") {
        const FreshDirectory dir;
        put(dir.path / "utf16", std::string("\xff\xfe"
                                            "a\0b\0",
                                            6));
        put(dir.path / "utf16-without-mark", std::string("a\0b\0c\0d\0e\0", 10));
        put(dir.path / "late", std::string(65535, 'x') + std::string(1, '\0'));
        put(dir.path / "later", std::string(65536, 'x') + std::string(1, '\0'));
        const fs::path out = dir.path / "out";
        for (const auto& [file, wanted] :
             {std::pair("utf16", "utf16: is UTF-16; wanted UTF-8 text. Hint: `iconv -f UTF-16 -t UTF-8"),
              std::pair("utf16-without-mark", "utf16-without-mark: is UTF-16LE; wanted UTF-8 text"),
              std::pair("late", "late: is no text: byte 65535 is 0")}) {
            const Result result = tokenize({"--output-dir", out, dir.path / file});
            CHECK(result.exit_code == 1);
            CHECK(has(result.err, wanted));
            CHECK(!fs::exists(out));
        }
        const Result piped = tokenize({"--output-dir", out, "-"}, std::string("a\0", 2));
        CHECK(piped.exit_code == 1);
        CHECK(has(piped.err, "standard input: is no text: byte 1 is 0"));
        CHECK(tokenize({"--output-dir", out, "--val-fraction", "0", dir.path / "later"}).exit_code == 0);
        CHECK(TokenFile(out / "train.bin").size() == 65536 + 2);
    }

    TEST_CASE("tokenize: a text with few broken bytes is taken and told, and no byte of it changes") {
        const FreshDirectory dir;
        const fs::path out = dir.path / "out";
        const std::string text = std::string(1500, 'x') + "\n\xc3\x7f\xff" + std::string(1500, 'y');
        put(dir.path / "few", text);
        const Result result = tokenize({"--output-dir", out, "--val-fraction", "0", dir.path / "few"});
        REQUIRE(result.exit_code == 0);
        CHECK(has(result.out, "few: 2 bytes are not UTF-8 (first at byte 1501, in line 2) and learned as they are"));
        CHECK(documents(out / "train.bin") == std::vector<std::string>{text + "|"});
        put(dir.path / "marked", "\xef\xbb\xbfhello");
        REQUIRE(tokenize({"--output-dir", out, "--val-fraction", "0", dir.path / "marked"}).exit_code == 0);
        CHECK(documents(out / "train.bin") == std::vector<std::string>{"hello|"});
    }

    TEST_CASE("tokenize: every mistake exits 1, says what to do, and writes nothing") {
        FreshDirectory dir;
        put(dir.path / "a", "0123456789");
        put(dir.path / "secret", "0123456789");
        fs::permissions(dir.path / "secret", fs::perms::none);
        const std::string a = dir.path / "a", one = dir.path / "one.jsonl", three = dir.path / "three.jsonl";
        put(one, "{\"text\": \"a\"}\n");
        put(three, "{\"text\": \"a\"}\n{\"text\": \"b\"}\n{\"text\": \"c\"}\n");
        const fs::path out = dir.path / "out";
        struct Mistake {
            std::vector<std::string> arguments;
            std::string part_of_error;
        };
        const std::vector<Mistake> mistakes = {
            {{}, "--output-dir is required"},
            {{"--output-dir", out}, "FILES is required"},
            {{"--output-dir", out, "--val-fractoin", "0.2", a}, "--val-fractoin; did you mean --val-fraction?"},
            {{"--output-dir", out, "--nam=x", a}, "--nam; did you mean --name?"},
            {{"--output-dir", out, "-v", a}, "-v"},
            {{"--output-dir"}, "--output-dir"},
            {{"--output-dir", out, "--val-fraction", "half", a}, "--val-fraction = half"},
            {{"--output-dir", out, "--val-fraction", "1", a}, "wanted a number from 0 to below 1"},
            {{"--output-dir", out, "--val-fraction", "-0.1", a}, "wanted a number from 0 to below 1"},
            {{"--output-dir", out, "--val-fraction", "nan", a}, "wanted a number from 0 to below 1"},
            {{"--output-dir", out, "--val-fraction", "0.01", a},
             "--val-fraction 0.01: every document is too short for a validation part, nothing"},
            {{"--output-dir", out, "--val-fraction", "0.1", three},
             "--val-fraction 0.1: 3 records are too few for a validation part, nothing was written; wanted 0.34 or "
             "more"},
            {{"--output-dir", out, "--val-fraction", "0.9", one},
             "--val-fraction 0.9: 1 record is too few for a validation part, nothing was written; wanted two records"},
            {{"--output-dir", out, "--val-fraction", "1.25", a}, "--val-fraction 1.25: is out of range"},
            {{"--output-dir", out, "--name", "x/y", a}, "plain file name"},
            {{"--output-dir", out, "--name", "", a}, "--name"},
            {{"--output-dir", out, "--name", std::string(300, 'n'), a}, "File name too long"},
            {{"--output-dir", out, a, dir.path / "missing"}, "missing: cannot be read: No such file or directory"},
            {{"--output-dir", out, a, dir.path}, "is a directory; wanted a file of text"},
            {{"--output-dir", out, "-", "-"}, "is given twice"},
            {{"--output-dir", a, a}, "cannot be made"},
            {{"--output-dir", dir.path / "a" / "b", a}, "Not a directory"},
            {{"--output-dir", "", a}, "--output-dir"},
        };
        for (const Mistake& mistake : mistakes) {
            const Result result = tokenize(mistake.arguments, "text on standard input");
            CAPTURE(result.err);
            CHECK(result.exit_code == 1);
            CHECK(has(result.err, mistake.part_of_error));
            CHECK(has(result.err, "tokenize: "));
            CHECK(result.out == "");
            CHECK((!fs::exists(out) || names_in(out).empty()));
        }

        const bool root = geteuid() == 0;
        fs::permissions(dir.path, fs::perms::all);
        if (root) REQUIRE(seteuid(65534) == 0);
        const Result result = tokenize({"--output-dir", dir.path / "other", dir.path / "secret"});
        if (root) REQUIRE(seteuid(0) == 0);
        CHECK(result.exit_code == 1);
        CHECK(has(result.err, "secret: cannot be opened for reading: Permission denied"));
    }

    TEST_CASE("tokenize: a full disk leaves the earlier files and no rest") {
        FreshDirectory dir;
        put(dir.path / "small", "0123456789");
        put(dir.path / "large", std::string(100000, 'x'));
        const fs::path out = dir.path / "out";
        REQUIRE(tokenize({"--output-dir", out, dir.path / "small"}).exit_code == 0);
        Result result{0, "", ""};
        {
            SmallDisk disk(50000);
            result = tokenize({"--output-dir", out, dir.path / "large"});
        }
        CHECK(result.exit_code == 1);
        CHECK(has(result.err, "train.bin: cannot write"));
        CHECK(has(result.err, "free some space"));
        CHECK(documents(out / "train.bin") == std::vector<std::string>{"012345678|"});
        CHECK(names_in(out) == std::vector<std::string>{"train.bin", "train.mask", "val.bin", "val.mask"});
    }

    TEST_CASE("tokenize: help names every flag and exits 0; what follows -- is a file") {
        const Result help = tokenize({"--help"});
        CHECK(help.exit_code == 0);
        CHECK(help.err == "");
        for (const char* part :
             {"--output-dir", "--val-fraction", "0.1", "--name", "train", "FILES", "val.mask", "UTF-8"})
            CHECK(has(help.out, part));
        FreshDirectory dir;
        const fs::path before = fs::current_path();
        fs::current_path(dir.path);
        put("--odd_name", "0123456789");
        const Result result = tokenize({"--output-dir", ".", "--", "--odd_name"});
        fs::current_path(before);
        CHECK(result.err == "");
        CHECK(result.exit_code == 0);
        CHECK(documents(dir.path / "train.bin") == std::vector<std::string>{"012345678|"});
    }

    TEST_CASE("tokenize: a report that cannot be printed is an error") {
        FreshDirectory dir;
        put(dir.path / "a", "0123456789");
        std::ofstream full("/dev/full");
        std::ostringstream err;
        const std::string directory = dir.path / "out", file = dir.path / "a";
        const char* argv[] = {"tokenize", "--output-dir", directory.c_str(), file.c_str()};
        CHECK(run_tokenize(4, argv, STDIN_FILENO, full, err) == 1);
        CHECK(has(err.str(), "could not be printed"));
    }
}
