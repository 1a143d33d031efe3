// Offsets of tensors in a slab: aligned, in order, never overlapping, and never the result of an overflow.
#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <stdexcept>

#include "offload/slab_layout.h"

using namespace slab::offload;

TEST_SUITE("cpu") {
    TEST_CASE("slab layout: tensors follow each other at aligned offsets") {
        SlabLayout layout;
        CHECK(layout.total_bytes() == 0);
        CHECK(layout.tensors().empty());
        CHECK(layout.add("q", 1) == 0);
        CHECK(layout.add("k", 256) == 1);
        CHECK(layout.add("nothing", 0) == 2);
        CHECK(layout.add("v", 257) == 3);
        CHECK(layout.offset_bytes(0) == 0);
        CHECK(layout.offset_bytes(1) == 256);
        CHECK(layout.offset_bytes(2) == 512);
        CHECK(layout.offset_bytes(3) == 512);
        CHECK(layout.total_bytes() == 1024);
        CHECK(layout.tensors()[3].name == "v");
        CHECK(layout.tensors()[3].bytes == 257);
        CHECK_THROWS_AS(layout.offset_bytes(4), std::out_of_range);
    }

    TEST_CASE("slab layout: random sizes neither overlap nor leave an alignment's worth of room") {
        std::mt19937 random(1);
        for (int round = 0; round < 50; ++round) {
            SlabLayout layout;
            size_t end_bytes = 0;
            for (int i = 0; i < 20; ++i) {
                const size_t bytes = random() % 2000;
                const size_t offset_bytes = layout.offset_bytes(layout.add(std::to_string(i), bytes));
                CHECK(offset_bytes % kSlabAlignmentBytes == 0);
                CHECK(offset_bytes >= end_bytes);
                CHECK(offset_bytes - end_bytes < kSlabAlignmentBytes);
                end_bytes = offset_bytes + bytes;
            }
            CHECK(layout.total_bytes() % kSlabAlignmentBytes == 0);
            CHECK(layout.total_bytes() >= end_bytes);
            CHECK(layout.total_bytes() - end_bytes < kSlabAlignmentBytes);
        }
    }

    TEST_CASE("slab layout: a second tensor of a name and sizes that overflow are refused, changing nothing") {
        SlabLayout layout;
        layout.add("w", 100);
        CHECK_THROWS_AS(layout.add("w", 100), std::logic_error);
        CHECK_THROWS_AS(layout.add("huge", SIZE_MAX), std::overflow_error);
        CHECK_THROWS_AS(layout.add("huge", SIZE_MAX - 256), std::overflow_error);
        CHECK(layout.total_bytes() == 256);
        CHECK(layout.tensors().size() == 1);
        layout.add("largest", SIZE_MAX - 256 - 255);
        CHECK(layout.total_bytes() == SIZE_MAX - 255);
        CHECK_THROWS_AS(layout.add("one more", 1), std::overflow_error);
        CHECK_NOTHROW(layout.add("empty", 0));
    }
}
