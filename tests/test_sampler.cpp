// Sampling: the likeliest token at temperature 0, otherwise a function of the seed; streamed or not, the same tokens;
// and no trace in training (tests/test_model_streaming.cpp).
#include <algorithm>

#include "data/byte_tokenizer.h"
#include "tests/tiny_model.h"
#include "train/sampler.h"

using namespace slab;
using namespace slab::train;
using namespace slab::test;

namespace {

bool never() {
    return false;
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("sampler: temperature 0 takes the likeliest token of the last place, also beyond the row's length") {
        for (const auto& family : tiny_families()) {
            CAPTURE(family);
            const TinyBase base(family, 2);
            TinyRun run(base, tiny_settings());
            std::vector<int32_t> all = {1, 2, 3};
            const std::vector<int32_t> got =
                sample_tokens(run.model, all, {.tokens = 12, .temperature = 0, .seed = 1}, never);
            REQUIRE(got.size() == 12);
            for (const int32_t token : got) {
                MicroBatch batch;
                batch.B = 1;
                batch.T = static_cast<int>(std::min<size_t>(all.size(), 9));
                batch.tokens.assign(all.end() - batch.T, all.end());
                batch.targets.assign(batch.tokens.size(), kIgnoreTarget);
                const std::vector<float> logits = run.model.logits(batch, batch.tokens.size() - 1, 1);
                CHECK(token == std::max_element(logits.begin(), logits.end()) - logits.begin());
                all.push_back(token);
            }
            CHECK(sample_tokens(run.model, {1, 2, 3}, {.tokens = 12, .temperature = 0, .seed = 2}, never) == got);
        }
    }

    TEST_CASE("sampler: the tokens are a function of the seed, streamed or resident, and spread with the temperature") {
        const TinyBase base("llama", 4);
        TinyRun resident(base, tiny_settings()), streaming(base, streamed(tiny_settings(), 1, 2));
        const auto sampled = [](TinyRun& run, uint64_t seed, double temperature) {
            return sample_tokens(run.model, {5}, {.tokens = 15, .temperature = temperature, .seed = seed}, never);
        };
        const std::vector<int32_t> one = sampled(resident, 1, 1);
        CHECK(one.size() == 15);
        CHECK(sampled(resident, 1, 1) == one);
        CHECK(sampled(resident, 2, 1) != one);
        CHECK(sampled(streaming, 1, 1) == one);
        CHECK(streaming.model.offload().stats().slabs_in > 0);
        CHECK(streaming.model.offload().stats().misses == 0);
        CHECK(sampled(resident, 1, 1e-4) == sampled(resident, 1, 0));
        std::vector<int32_t> hot = sampled(resident, 3, 100);
        std::sort(hot.begin(), hot.end());
        CHECK(std::unique(hot.begin(), hot.end()) - hot.begin() > 8);  // nearly uniform over 53 tokens
    }

    TEST_CASE("sampler: probabilities are the softmax of the logits") {
        const TinyBase base("qwen2", 1);
        TinyRun run(base, tiny_settings());
        const MicroBatch batch{.B = 1, .T = 1, .tokens = {4}, .targets = {kIgnoreTarget}, .doc_start = {}};
        const std::vector<float> logits = run.model.logits(batch, 0, 1);
        double sum = 0;
        std::vector<double> want;
        for (const float z : logits) sum += want.emplace_back(std::exp(static_cast<double>(z) / 0.7));
        constexpr int kDraws = 1500;
        std::vector<double> got(want.size());
        for (int seed = 0; seed < kDraws; ++seed)
            got[static_cast<size_t>(sample_tokens(
                run.model, {4}, {.tokens = 1, .temperature = 0.7, .seed = static_cast<uint64_t>(seed)}, never)[0])] +=
                1.0 / kDraws;
        double distance = 0;  // in total variation; about 0.04 is expected of so many draws
        for (size_t i = 0; i < want.size(); ++i) distance += std::abs(got[i] - want[i] / sum) / 2;
        CHECK(distance < 0.1);
    }

    TEST_CASE("sampler: stops at the stop token, when interrupted, and refuses an empty prompt") {
        const TinyBase base("gpt2", 1);
        TinyRun run(base, tiny_settings());
        const std::vector<int32_t> got =
            sample_tokens(run.model, {1}, {.tokens = 6, .temperature = 3, .seed = 4}, never);
        REQUIRE(got.size() == 6);
        const auto stop = std::find(got.begin(), got.end(), got[3]);
        CHECK(sample_tokens(run.model, {1}, {.tokens = 6, .temperature = 3, .seed = 4, .stop_token = got[3]}, never) ==
              std::vector<int32_t>(got.begin(), stop));
        int calls = 0;
        CHECK(sample_tokens(run.model, {1}, {.tokens = 6, .temperature = 3, .seed = 4}, [&] { return ++calls > 2; }) ==
              std::vector<int32_t>(got.begin(), got.begin() + 2));
        CHECK_THROWS_AS(sample_tokens(run.model, {}, {}, never), std::logic_error);
    }

    TEST_CASE("sampler: text comes from byte-level models only") {
        CHECK(has(error_of([] { check_can_sample(tiny_config("qwen2")); }), "--sample"));
        ModelConfig config = tiny_config("qwen2", 1);
        config.V = static_cast<int>(data::ByteTokenizer::vocabulary_size);
        CHECK(error_of([&] { check_can_sample(config); }) == "");
        const TinyBase base(config);
        TinyRun run(base, tiny_settings());
        const SampleSettings settings{.tokens = 8, .temperature = 1, .seed = 6};
        const std::string text = sample_text(run.model, "ab", settings, never);
        CHECK(text.size() <= 8);
        CHECK(sample_text(run.model, "ab", settings, never) == text);
    }
}
