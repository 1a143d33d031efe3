// Errors of text that is no JSON: one form for all, with a place that an editor finds.
#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

#include "data/base/json_file.h"
#include "tests/temporary_files.h"

namespace {
using namespace slab::data;
using namespace slab::test;

std::string refusal(const std::string& text, const JsonPlace& place = {}) {
    return error_of([&] { parse_json(text, "F", place); });
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("json: what is wrong is said with its line, column and what helps") {
        struct Mistake {
            std::string text, message;
        };
        const std::string invalid = "is not valid JSON at column ";
        const std::vector<Mistake> mistakes = {
            {"", "F, line 1: " + invalid + "1: it ends here; wanted a value. Hint: was the file cut short?"},
            {"{\n  \"a\": 1,\n", "F, line 3: " + invalid + "1: it ends here; wanted a key in double quotes. Hint: was"},
            {"{\"a\": 1,}", "F, line 1: " + invalid + "9: found \"}\"; wanted a key in double quotes. Hint: remove"},
            {"[1,\n2,\n]",
             "F, line 3: " + invalid + "1: found \"]\"; wanted a value. Hint: remove the comma before it"},
            {"{'a': 1}", "F, line 1: " + invalid + "2: found \"'a'\"; wanted a key in double quotes. Hint: JSON has"},
            {"{\"a\": NaN}", "F, line 1: " + invalid + "7: found \"NaN\"; wanted a value. Hint: JSON knows true"},
            {"{\"a\": None}", "F, line 1: " + invalid + "7: found \"None\"; wanted a value. Hint: JSON knows true"},
            {"{\"a\": tru}", "F, line 1: " + invalid + "7: found \"tru\"; wanted a value"},
            {"{\"a\": 1 2}", "F, line 1: " + invalid + "9: found \"2\"; wanted ',' or '}'"},
            {"{\"a\": 12 \"long \\\" one\": 2}",
             "F, line 1: " + invalid + "10: found \"long \\\" one\"; wanted ',' or"},
            {"{\"a\" \"b\"}", "F, line 1: " + invalid + "6: found \"b\"; wanted ':'"},
            {"{\"a\": 1} x", "F, line 1: " + invalid + "10: found \"x\"; wanted nothing more"},
            {"{\"a\": 1e999}", "F, line 1: " + invalid + "7: number overflow"},
            {"{\"a\": -}", "F, line 1: " + invalid + "8: invalid number; expected digit"},
            {"{\"a\": \"x", "F, line 1: " + invalid + "7: invalid string: missing closing quote"},
            {"{\"\xc3\xa9\xe2\x82\xac\": \"x\xff\"}", "F, line 1: " + invalid + "10: invalid string: ill-formed UTF-8"},
            {"\n{\"a\": \"x\ty\"}", "F, line 2: " + invalid + "9: invalid string: control character"},
            {std::string("{\n\0}", 4), "F, line 2: " + invalid + "1: the byte there is 0; wanted JSON text"},
            {"{\"a\": 1,\n \"a\": 2}", "F, line 2: key \"a\" is given twice, again at column 2"},
            {std::string(40, '['), "F, line 1: JSON nested deeper than 32 levels at column 34"},
            {"version https://git-lfs.github.com/spec/v1\n", "F, line 1: " + invalid + "1: found \"version\""},
            {"version https://git-lfs.github.com/spec/v1\n", "`git lfs pull`"},
        };
        for (const Mistake& mistake : mistakes) {
            CAPTURE(mistake.text);
            const std::string error = refusal(mistake.text);
            CAPTURE(error);
            CHECK(has(error, mistake.message));
        }
        CHECK(parse_json("{\"a\": [1, \"\xc3\xa9\"]}", "F")["a"][1] == "\xc3\xa9");
    }

    TEST_CASE("json: a line of a file has that line's number, and a header its bytes") {
        CHECK(
            has(refusal("{", {.line = 7, .is_line = true}),
                "F, line 7: is not valid JSON at column 2: it ends here; wanted a key in double quotes. Hint: a record "
                "stands on one line; `jq -c . F`"));
        CHECK(has(refusal("{} {}", {.line = 7, .is_line = true}),
                  "column 4: found \"{\"; wanted nothing more. Hint: one"));
        CHECK(has(refusal("{\"a\": 1,}", {.offset_bytes = 8}),
                  "F: is not valid JSON at byte 16, in the header: found \"}\""));
        CHECK(has(refusal("{\"a\": 1, \"a\": 1}", {.offset_bytes = 8}),
                  "F: key \"a\" is given twice, again at byte 17, in the header"));
    }

    TEST_CASE("json: whatever is spoiled, there is a place within the text") {
        const std::string good = R"({"a": [1, -2.5e3, true, null], "b": {"c": "\u00e9 \" \\", "d": {}}, "e": "x"})";
        std::mt19937 random(3);
        const std::string letters = "{}[]:,\"\\ \n\t-.0e9tfnx\xc3\xa9\xff";
        for (int round = 0; round < 20000; ++round) {
            std::string text = good;
            for (size_t n = random() % 3 + 1; n > 0; --n) {
                const size_t at = random() % text.size();
                if (random() % 2 == 0)
                    text.erase(at, random() % 4);
                else
                    text.insert(at, 1, letters[random() % letters.size()]);
            }
            const std::string error = refusal(text, {.offset_bytes = 0});
            if (error.empty()) continue;
            const size_t at = error.find("at byte ");
            CAPTURE(text);
            CAPTURE(error);
            REQUIRE(at != error.npos);
            CHECK(std::stoul(error.substr(at + 8)) <= text.size());
            CHECK(error.find("json.exception") == error.npos);
            CHECK(error.find("wanted a value, wanted") == error.npos);
        }
    }
}
