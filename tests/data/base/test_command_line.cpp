// What all programs' command lines share: sizes as users type them, and the names that a mistyped flag was meant to be.
#include <doctest/doctest.h>

#include "data/base/byte_size.h"
#include "data/base/nearest_name.h"
#include "tests/tiny_model.h"

using namespace slab::data;
using namespace slab::test;

TEST_SUITE("cpu") {
    TEST_CASE("sizes are powers of 1024, with or without iB") {
        constexpr size_t K = 1024, G = K * K * K;
        CHECK(parse_size("12G", "--f") == 12 * G);
        CHECK(parse_size("1.5GiB", "--f") == 3 * G / 2);
        CHECK(parse_size("1.5gb", "--f") == 3 * G / 2);
        CHECK(parse_size("800M", "--f") == 800 * K * K);
        CHECK(parse_size("7k", "--f") == 7 * K);
        CHECK(parse_size("2T", "--f") == 2 * K * G);
        CHECK(parse_size("123456", "--f") == 123456);
        CHECK(parse_size("123B", "--f") == 123);
        for (const char* bad :
             {"", "0", "-1", "-1G", "1e99", "12X", "G", "x12", "12 G", "12GiBB", "nan", "inf", "0.1"}) {
            CAPTURE(bad);
            const std::string error = error_of([&] { parse_size(bad, "--vram-budget"); });
            CHECK(has(error, "--vram-budget"));
            CHECK(has(error, "12G"));  // what a good one looks like
        }
    }

    TEST_CASE("nearest name: only a name that is near, by letters, by its beginning, or by other trainers' name") {
        const std::vector<std::string> known = {"--lora-r", "--learning-rate", "--sequence-len", "--seed",
                                                "--output-dir"};
        const std::vector<std::pair<std::string, std::string>> names = {
            {"--lerning-rate", "--learning-rate"},
            {"--learning_rate", "--learning-rate"},
            {"--lora-rnk", "--lora-r"},
            {"--sed", "--seed"},
            {"--seek", "--seed"},
            {"--sequence", "--sequence-len"},
            {"--output", "--output-dir"},
            {"--lr", "--learning-rate"},
            {"--block-size", "--sequence-len"},
            {"--frobnicate", ""},
            {"--x", ""},
            {"--se", ""},
            {"--temperature", ""},
            {"--", ""},
            {"", ""},
        };
        for (const auto& [given, wanted] : names) {
            CAPTURE(given);
            CHECK(nearest_name(given, known) == wanted);
        }
        CHECK(nearest_name("lr", {"learning-rate"}) == "learning-rate");  // a config file's keys have no dashes
        CHECK(nearest_name("lr", {"seed"}).empty());                      // what it means is not known here
        CHECK(did_you_mean("--sed", known) == "; did you mean --seed?");
        CHECK(did_you_mean("--frobnicate", known).empty());
    }
}
