// The bounds of top_k and top_p: which tokens are left when a share is reached exactly.
#include <doctest/doctest.h>

#include <set>
#include <vector>

#include "train/model/sampler.h"

using namespace slab::train;

namespace {

std::set<int> tokens_left(const std::vector<float>& logits, const SampleSettings& settings) {
    std::set<int> left;
    for (int i = 0; i < 256; ++i) left.insert(pick_token(logits, settings, static_cast<float>(i) / 256).value());
    return left;
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("sampler: top_p keeps the fewest tokens that have the share, also when they have it exactly") {
        CHECK(tokens_left({1, 1}, {.temperature = 1, .top_p = 0.5}) == std::set{0});
        CHECK(tokens_left({1, 1}, {.temperature = 1, .top_p = 0.51}) == std::set{0, 1});
        CHECK(tokens_left({1, 1, 1, 1}, {.temperature = 1, .top_p = 0.75}) == std::set{0, 1, 2});
        CHECK(tokens_left({0, 5, 0, 0}, {.temperature = 1, .top_p = 0.01}) == std::set{1});
    }

    TEST_CASE("sampler: top_k keeps k tokens, of equals the first") {
        CHECK(tokens_left({1, 1, 1}, {.temperature = 1, .top_k = 2}) == std::set{0, 1});
        CHECK(tokens_left({1, 1, 1}, {.temperature = 1, .top_k = 1}) == std::set{0});
        CHECK(tokens_left({1, 1, 1}, {.temperature = 1, .top_k = 0}) == std::set{0, 1, 2});
        CHECK(tokens_left({1, 1, 1}, {.temperature = 1, .top_k = 9}) == std::set{0, 1, 2});
    }
}
