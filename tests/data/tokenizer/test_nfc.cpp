// Normal form C where marks of one letter meet: Unicode Standard Annex 15 lets a mark join its letter only when no mark
// of its own class, or of a higher one, stands between.
#include <doctest/doctest.h>

#include <string>

#include "data/tokenizer/nfc.h"

namespace {

std::string in_nfc(const std::string& text) {
    std::string normal_form;
    return slab::data::to_nfc(text, normal_form) ? text : normal_form;
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("nfc: a mark of the same class in between keeps a mark from its letter") {
        // An overline (class 230) before an acute accent (class 230): "a" and the accent stay two characters.
        CHECK(in_nfc("a\u0305\u0301") == "a\u0305\u0301");
        CHECK(in_nfc("a\u0305\u0301b") == "a\u0305\u0301b");
    }

    TEST_CASE("nfc: a mark of a lower class in between does not") {
        CHECK(in_nfc("a\u0316\u0301") == "\u00e1\u0316");  // a grave accent below has class 220
        CHECK(in_nfc("a\u0301\u0316") == "\u00e1\u0316");
        CHECK(in_nfc("a\u0301") == "\u00e1");
    }

    TEST_CASE("nfc: marks of different classes are put in order, marks of one class keep theirs") {
        CHECK(in_nfc("q\u0307\u0323") == "q\u0323\u0307");
        CHECK(in_nfc("q\u0301\u0305") == "q\u0301\u0305");
        CHECK(in_nfc("q\u0305\u0301") == "q\u0305\u0301");
    }
}
