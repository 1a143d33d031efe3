// What is taken for text, what is refused by name, and what is told.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "data/text_kind.h"
#include "tests/kernel_checks.h"
#include "tests/temporary_files.h"

using namespace slab::data;
using namespace slab::test;
using namespace std::string_literals;

namespace {

std::string repeated(const std::string& text, int times) {
    std::string all;
    for (int i = 0; i < times; ++i) all += text;
    return all;
}

std::string refusal(const std::string& text) {
    return error_of([&] { check_text(text, "F"); });
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("text kinds: other encodings are refused, with the one that it looks like") {
        const std::string latin = repeated("Le caf\xe9 est ferm\xe9.\n", 30),
                          gbk = repeated("\xbd\xf1\xcc\xec\xcc\xec\n", 60),
                          cyrillic = repeated("\xcf\xf0\xe8\xe2\xe5\xf2\xe0, ", 40);
        CHECK(has(refusal(latin), "F: is not UTF-8 (first at byte 6, in line 1; 60 bytes of 570); wanted UTF-8 text"));
        CHECK(has(refusal(latin), "looks like LATIN1 or WINDOWS-1252"));
        CHECK(has(refusal(gbk), "looks like GBK, BIG5 or SHIFT_JIS"));
        CHECK(has(refusal(cyrillic), "looks like WINDOWS-1251, KOI8-R or another"));
        CHECK(has(refusal("good\nb\xff"), "first at byte 6, in line 2; 1 byte of 7"));
        CHECK(has(refusal("\xff\xfe"s + "a\0b\0"s), "is UTF-16; wanted"));
        CHECK(has(refusal("\xfe\xff\0a"s), "is UTF-16; wanted"));
        CHECK(has(refusal("\xff\xfe\0\0a\0\0\0"s), "is UTF-32; wanted"));
        CHECK(has(refusal("\0a\0b\0c\0d\0e"s), "is UTF-16BE; wanted"));
        CHECK(has(refusal("a\0b"s), "is no text: byte 1 is 0"));
    }

    TEST_CASE("text kinds: up to one broken byte in 1000 is taken and told") {
        const std::string good = repeated("0123456789abcdef", 125);  // 2000 bytes
        CHECK(check_text(good, "F") == "");
        CHECK(has(check_text(good + "\xff", "F"), "F: 1 byte is not UTF-8 (first at byte 2000, in line 1)"));
        CHECK(has(check_text("\xff" + good + "\xfe", "F"), "F: 2 bytes are not UTF-8 (first at byte 0, in line 1)"));
        CHECK(has(refusal("\xff" + good + "\xfe\xfe"), "3 bytes of 2003"));
        CHECK(check_text(repeated("Привет, мир! 今天天气很好 ☃ é\n", 40), "F") == "");
        CHECK(check_text("\xef\xbb\xbfhello", "F") == "");
        CHECK(check_text("", "F") == "");
    }

    TEST_CASE("text kinds: tables and lists of records under a text's name are refused") {
        for (const char* table :
             {"prompt,completion\n\"a\",\"b\"\n", "\"Instruction\";\"Input\";\"Output\"\r\na;b;c\r\n",
              "question\tanswer\nWho?\tI.\n", "id,text,label\n1,a,b\n"}) {
            CAPTURE(table);
            CHECK(has(refusal(table), "looks like a CSV table"));
            CHECK(has(refusal(table), "*.jsonl"));
        }
        for (const char* list : {"[{\"instruction\": \"a\", \"output\": \"b\"}]", "[\n  {\n    \"text\": \"a\"",
                                 "\xef\xbb\xbf[ {\"messages\": []}]"}) {
            CAPTURE(list);
            CHECK(has(refusal(list), "is a JSON list of objects"));
        }
        for (const char* text : {"Text, and more of it\n", "text\nprompt\n", "In short, the answer is no.\n",
                                 "[{\"x\": 1}]", "[ {a} ]", "input and output\n", "a,b,c\n1,2,3\n"})
            CHECK(refusal(text) == "");
        CHECK(has(check_text("\n<!DOCTYPE html>\n<p>", "F"), "F is an HTML page"));
        CHECK(has(check_text("<html lang=en>", "F"), "F is an HTML page"));
    }
}
