// Sampling with the cache gives the tokens that full passes over the whole text give. They are a function of the seed,
// streamed or not. Text comes in whole characters. test_model_streaming.cpp shows that training is not disturbed.
#include <algorithm>
#include <set>

#include "tests/fake_tokenizer.h"
#include "tests/tiny_model.h"
#include "train/model/memory_plan.h"
#include "train/model/sampler.h"
#include "train/spec/micro_batch.h"

using namespace slab;
using namespace slab::train;
using namespace slab::test;

namespace {

ModelSettings with_cache(ModelSettings settings, int positions = 40) {
    settings.cache_positions = positions;
    return settings;
}

struct Sampled {
    std::vector<int32_t> tokens;
    SampleEnd end;
};
Sampled sample(TinyRun& run, const std::vector<int32_t>& prompt, const SampleSettings& settings,
               data::StopToken stop = {}) {
    Sampled s;
    s.end = sample_tokens(run.model, prompt, settings, stop, [&](int32_t t) { s.tokens.push_back(t); });
    return s;
}

// The logits that the cache must give: those of the last position in a full pass over the text, with rows long enough.
std::vector<float> full_logits(TinyRun& run, const std::vector<int32_t>& text) {
    MicroBatch batch;
    batch.B = 1;
    batch.T = static_cast<int>(text.size());
    batch.tokens = text;
    batch.targets.assign(text.size(), kIgnoreTarget);
    return run.model.logits(batch, text.size() - 1, 1);
}

int32_t likeliest(const std::vector<float>& logits) {
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
    REQUIRE(a.size() == b.size());
    double largest = 0;
    for (size_t i = 0; i < a.size(); ++i) largest = std::max<double>(largest, std::abs(a[i] - b[i]));
    return largest;
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("sampler: the cache gives the tokens of full passes, for every family, streamed or not, trained or not") {
        for (const auto& family : tiny_families()) {
            CAPTURE(family);
            const TinyBase base(family, 3);
            ModelSettings long_rows = tiny_settings();
            long_rows.T = 40;
            TinyRun full(base, long_rows);
            for (const ModelSettings& settings :
                 {tiny_settings(), streamed(tiny_settings(), 1, 2), streamed(tiny_settings(), 2, 3, {1}),
                  streamed(tiny_settings(), 1, 2, {}, Recompute::none)}) {
                TinyRun run(base, with_cache(settings));
                for (const bool trained : {false, true}) {
                    CAPTURE(trained);
                    if (trained) train_steps(run, 2);
                    full.model.trained().write_weights(run.model.trained().read_weights(run.model.compute()),
                                                       full.model.compute());
                    // One token, within a row of T = 9, within the layout's 18 rows, and beyond them.
                    for (const int length : {1, 5, 13, 25}) {
                        CAPTURE(length);
                        std::vector<int32_t> text;
                        for (int i = 0; i < length; ++i) text.push_back((7 * i + length) % base.config.V);
                        const Sampled got = sample(run, text, {.tokens = 40 - length, .temperature = 0});
                        CHECK(got.end == SampleEnd::tokens);
                        REQUIRE(got.tokens.size() == static_cast<size_t>(40 - length));
                        for (const int32_t token : got.tokens) {
                            CHECK(token == likeliest(full_logits(full, text)));
                            text.push_back(token);
                        }
                    }
                }
                if (settings.layer_offloading) {
                    CHECK(run.model.offload().stats().slabs_in > 0);
                    CHECK(run.model.offload().stats().misses == 0);
                }
            }
        }
    }

    TEST_CASE("sampler: logits from the cache are those of a full pass, and clearing it forgets") {
        for (const auto& family : tiny_families()) {
            CAPTURE(family);
            const TinyBase base(family, 2);
            ModelSettings long_rows = tiny_settings();
            long_rows.T = 30;
            TinyRun full(base, long_rows), run(base, with_cache(tiny_settings(), 30));
            std::vector<int32_t> text;
            for (const size_t piece : {3, 19, 1, 7}) {
                std::vector<int32_t> next;
                for (size_t i = 0; i < piece; ++i) next.push_back(static_cast<int32_t>(5 * (text.size() + i) % 31));
                text.insert(text.end(), next.begin(), next.end());
                CHECK(distance(run.model.next_logits(next), full_logits(full, text)) < 1e-5);
                CHECK(run.model.cached() == static_cast<int>(text.size()));
            }
            CHECK_THROWS_AS(run.model.next_logits({1}), std::logic_error);
            CHECK_THROWS_AS(run.model.next_logits({}), std::logic_error);
            run.model.clear_cache();
            CHECK(distance(run.model.next_logits({4, 2}), full_logits(full, {4, 2})) < 1e-5);
            TinyRun none(base, tiny_settings());
            CHECK_THROWS_AS(none.model.next_logits({1}), std::logic_error);
        }
    }

    TEST_CASE("sampler: the cache is planned, and only when it is wanted") {
        const ModelConfig config = tiny_config("llama", 4);
        const ModelLayout plain = make_layout(config, tiny_settings());
        const ModelLayout cache = make_layout(config, with_cache(tiny_settings(), 23));
        const size_t rotary_bytes = (23 - 9) * 6 * sizeof(float);  // a longer table
        CHECK(cache.device_bytes() - plain.device_bytes() == 4 * 2 * 23 * 1 * 6 * sizeof(real) + rotary_bytes);
        for (const auto& item : plain.device_items()) CHECK_FALSE(has(item.what, "sampled"));
        CHECK(has(describe_plan(cache, 0, 0), "keys and values of 23 sampled tokens"));
        CHECK_THROWS_AS(make_layout(config, with_cache(tiny_settings(), 41)), std::logic_error);
        ModelConfig window = config;
        window.sliding_window = 12;
        CHECK(most_positions(window) == 12);
        CHECK_THROWS_AS(make_layout(window, with_cache(tiny_settings(), 13)), std::logic_error);
    }

    TEST_CASE("sampler: the text ends where the cache is full, and nothing slides") {
        const TinyBase base("gpt2", 2);
        TinyRun run(base, with_cache(tiny_settings(), 12)), longer(base, with_cache(tiny_settings(), 40));
        const Sampled got = sample(run, {1, 2, 3}, {.tokens = 20, .temperature = 0});
        CHECK(got.end == SampleEnd::cache_full);
        CHECK(got.tokens.size() == 10);  // the last one needs no room
        const Sampled want = sample(longer, {1, 2, 3}, {.tokens = 10, .temperature = 0});
        CHECK(want.end == SampleEnd::tokens);
        CHECK(got.tokens == want.tokens);
        CHECK_THROWS_AS(sample(run, std::vector<int32_t>(13, 1), {}), std::logic_error);
        CHECK_THROWS_AS(sample(run, {}, {}), std::logic_error);
    }

    TEST_CASE("sampler: the text of a model that has diverged ends, and the model is as before") {
        const TinyBase base("llama", 2);
        TinyRun run(base, with_cache(streamed(tiny_settings(), 1, 2)));
        Stream& stream = run.model.compute();
        const SampleSettings settings{.tokens = 5, .temperature = 0};
        const std::vector<int32_t> want = sample(run, {1, 2}, settings).tokens;
        const std::vector<float> weights = run.model.trained().read_weights(stream);
        run.model.trained().write_weights(std::vector<float>(weights.size(), NAN), stream);
        const Sampled got = sample(run, {1, 2}, settings);
        CHECK(got.end == SampleEnd::not_finite);
        CHECK(got.tokens.empty());
        run.model.trained().write_weights(weights, stream);
        CHECK(sample(run, {1, 2}, settings).tokens == want);
    }

    TEST_CASE("sampler: the tokens are a function of the seed, streamed or resident, and spread with the temperature") {
        const TinyBase base("llama", 4);
        TinyRun resident(base, with_cache(tiny_settings())),
            streaming(base, with_cache(streamed(tiny_settings(), 1, 2)));
        const auto sampled = [](TinyRun& run, uint64_t seed, double temperature) {
            return sample(run, {5}, {.tokens = 15, .temperature = temperature, .seed = seed}).tokens;
        };
        const std::vector<int32_t> one = sampled(resident, 1, 1);
        CHECK(one.size() == 15);
        CHECK(sampled(resident, 1, 1) == one);
        CHECK(sampled(resident, 2, 1) != one);
        CHECK(sampled(streaming, 1, 1) == one);
        CHECK(sampled(resident, 1, 1e-4) == sampled(resident, 1, 0));
        std::vector<int32_t> hot = sampled(resident, 3, 100);
        std::sort(hot.begin(), hot.end());
        CHECK(std::unique(hot.begin(), hot.end()) - hot.begin() > 8);  // nearly uniform over 53 tokens
    }

    TEST_CASE("sampler: probabilities are the softmax of the logits over what top-k and top-p leave") {
        const std::vector<float> logits = {0.3f, 2, -1, NAN, 1.2f, 2, 0, -INFINITY, 0.9f};
        const auto shares = [&](const SampleSettings& s) {
            constexpr int kDraws = 4000;
            std::vector<double> got(logits.size());
            for (int i = 0; i < kDraws; ++i)
                got[static_cast<size_t>(pick_token(logits, s, (static_cast<float>(i) + 0.5f) / kDraws).value())] +=
                    1.0 / kDraws;
            return got;
        };
        const auto expect = [&](const SampleSettings& s, const std::set<size_t>& allowed) {
            std::vector<double> want(logits.size());
            double sum = 0;
            for (const size_t i : allowed) sum += want[i] = std::exp(logits[i] / s.temperature);
            const std::vector<double> got = shares(s);
            for (size_t i = 0; i < logits.size(); ++i) CHECK(std::abs(got[i] - want[i] / sum) < 1e-3);
        };
        expect({.temperature = 0.7}, {0, 1, 2, 4, 5, 6, 7, 8});
        expect({.temperature = 1, .top_k = 3}, {1, 4, 5});
        expect({.temperature = 2, .top_k = 1}, {1});  // of equals the first
        expect({.temperature = 1, .top_k = 100}, {0, 1, 2, 4, 5, 6, 7, 8});
        // At temperature 1 the likeliest two have 0.32 each, then 0.14, 0.11.
        expect({.temperature = 1, .top_p = 0.3}, {1});
        expect({.temperature = 1, .top_p = 0.6}, {1, 5});
        expect({.temperature = 1, .top_p = 0.7}, {1, 4, 5});
        expect({.temperature = 1, .top_k = 2, .top_p = 0.9}, {1, 5});  // top-p over what top-k left
        expect({.temperature = 1, .top_k = 3, .top_p = 0.01}, {1});
        CHECK(pick_token(logits, {.temperature = 0}, 0.99f) == 1);
        for (const double temperature : {0.0, 1.0})
            for (const std::vector<float>& none : {std::vector<float>{NAN, NAN}, {-INFINITY, NAN}, {INFINITY, NAN}})
                CHECK_FALSE(pick_token(none, {.temperature = temperature, .top_p = 0.5}, 0.5f).has_value());
        CHECK(pick_token({1, INFINITY, 0}, {.temperature = 1}, 0.5f) == 1);
    }

    TEST_CASE("sampler: stops at any stop token, and when interrupted") {
        const TinyBase base("gpt2", 1);
        TinyRun run(base, with_cache(tiny_settings()));
        const SampleSettings usual{.tokens = 6, .temperature = 3, .seed = 4};
        const std::vector<int32_t> got = sample(run, {1}, usual).tokens;
        REQUIRE(got.size() == 6);
        SampleSettings stopping = usual;
        stopping.stop_tokens = {base.config.V, got[3]};
        const Sampled stopped = sample(run, {1}, stopping);
        CHECK(stopped.end == SampleEnd::stop_token);
        CHECK(stopped.tokens == std::vector<int32_t>(got.begin(), std::find(got.begin(), got.end(), got[3])));
        std::atomic<int64_t> questions{3};
        const Sampled interrupted = sample(run, {1}, usual, data::StopToken(questions));
        CHECK(interrupted.end == SampleEnd::interrupted);
        CHECK(interrupted.tokens == std::vector<int32_t>(got.begin(), got.begin() + 2));
    }

    TEST_CASE("sampler: prompts begin as texts do, and a foreign tokenizer is refused") {
        FakeTokenizer bytes;
        CHECK(prompt_tokens(bytes, "ab", 260) == std::vector<int32_t>{'a', 'b'});
        CHECK(has(error_of([&] { prompt_tokens(bytes, "", 260); }), "empty"));
        CHECK(has(error_of([&] { prompt_tokens(bytes, "az", 'z'); }), "vocabulary ends at 121"));
        CHECK(stop_tokens(bytes) == std::vector<int32_t>{256});
        CHECK(stop_tokens(chatml_tokenizer()) == std::vector<int32_t>{256, 258});
        FakeTokenizer llama = llama3_tokenizer();
        CHECK(prompt_tokens(llama, "a<|eot_id|>", 300) == std::vector<int32_t>{257, 'a', 260});
        CHECK(prompt_tokens(llama, "", 300) == std::vector<int32_t>{257});
        CHECK(stop_tokens(llama) == std::vector<int32_t>{256, 260});
        llama.eos_text = "<|eot_id|>";  // as its instruct variant has it: a text's end still ends one
        CHECK(stop_tokens(llama) == std::vector<int32_t>{260, 256});
    }

    TEST_CASE("sampler: a chat prompt is a user's turn and the beginning of a reply") {
        const auto shown = [](const FakeTokenizer& tokenizer, const std::string& prompt) {
            const std::vector<int32_t> ids = chat_prompt_tokens(tokenizer, prompt, {}, 300);
            return tokenizer.decode(std::vector<uint32_t>(ids.begin(), ids.end()), true);
        };
        CHECK(shown(chatml_tokenizer(), "Hi") == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
        CHECK(shown(llama3_tokenizer(), "Hi") ==
              "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
              "<|start_header_id|>assistant<|end_header_id|>\n\n");
        const std::vector<int32_t> ids = chat_prompt_tokens(chatml_tokenizer(), "<|im_end|>", {}, 300);
        CHECK(std::count(ids.begin(), ids.end(), 258) == 1);  // the user's text stays text
        // A template's own end of turn stops a text too.
        FakeTokenizer other;
        other.specials = {"<eos>", "<turn_end>"};
        other.jinja =
            "{% for m in messages %}{{ m.role + ': ' + m.content + '<turn_end>\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}assistant: {% endif %}";
        CHECK(shown(other, "Hi") == "user: Hi<turn_end>\nassistant: ");
        CHECK(chat_stop_tokens(other, {}) == std::vector<int32_t>{256, 257});
        CHECK(stop_tokens(other) == std::vector<int32_t>{256});
        CHECK(has(error_of([&] { chat_prompt_tokens(FakeTokenizer(), "Hi", {}, 300); }), "--sample-chat"));
        CHECK(has(error_of([&] { chat_prompt_tokens(chatml_tokenizer(), "Hi", {}, 258); }), "vocabulary ends at 257"));
    }

    TEST_CASE("sampler: text comes in whole characters, and broken bytes still come") {
        const FakeTokenizer bytes;
        const auto pieces = [&](std::string_view text) {
            TextStream stream(bytes);
            std::vector<std::string> all;
            for (const char c : text) all.push_back(stream.add(static_cast<unsigned char>(c)));
            all.push_back(stream.rest());
            return all;
        };
        using Pieces = std::vector<std::string>;
        CHECK(pieces("a\u00e9\u20ac\U0001F600!") ==
              Pieces{"a", "", "\u00e9", "", "", "\u20ac", "", "", "", "\U0001F600", "!", ""});
        CHECK(pieces("\xff\x80z") == Pieces{"\xff", "\x80", "z", ""});
        CHECK(pieces("\xe2\x82") == Pieces{"", "", "\xe2\x82"});
        CHECK(pieces("\xe2z") == Pieces{"", "\xe2z", ""});
        TextStream stream(bytes);
        CHECK(stream.add(999) == "");  // an id that the tokenizer has not
        CHECK(stream.add(256) == "");
    }
}
