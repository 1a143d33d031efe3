// Text for screens: numbers, and foreign bytes that a terminal must not take for orders.
#include <doctest/doctest.h>

#include <string>

#include "train/spec/text.h"

using namespace slab::train;

TEST_SUITE("cpu") {
    TEST_CASE("text: what is printable stays, and what could give a terminal orders does not") {
        const std::string r = "\xef\xbf\xbd";
        CHECK(printable_text("") == "");
        for (const std::string same :
             {"plain, with\ttabs\nand lines", "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", "\xc2\xa0"})
            CHECK(printable_text(same) == same);
        CHECK(printable_text("a\x1b[2Jb\rc\x7f") == "a" + r + "[2Jb" + r + "c" + r);
        CHECK(printable_text(std::string("\0x", 2)) == r + "x");
        CHECK(printable_text("\xc2\x9b"
                             "2J") == r + r + "2J");  // CSI as one character
        CHECK(printable_text("\x80\xff") == r + r);   // no first bytes
        CHECK(printable_text("\xe2\x82") == r + r);   // cut short
        CHECK(printable_text("\xe2\x82x") == r + r + "x");
        CHECK(printable_text("\xc0\x9b\xe0\x82\x9b") == r + r + r + r + r);  // forms that are too long
        CHECK(printable_text("\xed\xa0\x80\xf4\x90\x80\x80") == r + r + r + r + r + r + r);
    }

    TEST_CASE("text: numbers") {
        CHECK(memory_text(512) == "0.5 KiB");
        CHECK(memory_text(size_t{3} << 20) == "3.0 MiB");
        CHECK(memory_text(size_t{3} << 30) == "3.00 GiB");
        CHECK(bytes_text(1234567) == "1,234,567 bytes");
        CHECK(count_text(0) == "0");
        CHECK(count_text(999) == "999");
        CHECK(count_text(1000) == "1,000");
        for (const char* number :
             {"0", "0.1", "0.0001", "1.5", "-0.34", "100000", "1e-09", "1e+20", "0.30000000000000004"})
            CHECK(slab::data::number_text(std::stod(number)) == number);
        CHECK(slab::data::number_text(0.1f) == "0.1");
        CHECK(duration_text(0) == "0:00:00");
        CHECK(duration_text(3670.4) == "1:01:10");
        CHECK(duration_text(-1) == "?");
    }
}
