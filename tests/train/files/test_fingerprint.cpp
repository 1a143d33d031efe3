// Every number of config.json that changes a logit and shows in no tensor's shape is part of the base's fingerprint.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/tiny_model.h"

using namespace slab;
using namespace slab::train;
using namespace slab::test;

TEST_SUITE("cpu") {
    TEST_CASE("fingerprint: another number that changes a logit is another base") {
        ModelConfig config = tiny_config("qwen2", 2);
        config.family = Family::llama;
        config.rope_theta = 300;
        config.rope_scaling = {true, 8, 1, 4, 16};
        const TinyBase base(config);
        const auto logits = [&](const ModelConfig& c) {
            Device device({.threads = 1});
            BaseWeights weights = BaseWeights::from_files(base.files.path, c);
            const ModelLayout layout = make_layout(c, tiny_settings());
            return Model(device, layout, weights, {}).logits(tiny_batch(config, {}, 3), 0, 18);
        };
        const auto fingerprint = [&](const ModelConfig& c) {
            return BaseWeights::from_files(base.files.path, c).fingerprint(c);
        };
        const auto want_logits = logits(config);
        const std::string want = fingerprint(config);
        CHECK(fingerprint(config) == want);
        const std::vector<std::pair<std::string, std::function<void(ModelConfig&)>>> changes = {
            {"rope_theta", [](ModelConfig& c) { c.rope_theta = 301; }},
            {"norm_eps", [](ModelConfig& c) { c.norm_eps = 2e-6f; }},
            {"heads",
             [](ModelConfig& c) {
                 c.NH = 8;
                 c.NKV = 4;
                 c.HD = 2;
             }},
            {"no scaling", [](ModelConfig& c) { c.rope_scaling = {}; }},
            {"factor", [](ModelConfig& c) { c.rope_scaling.factor = 9; }},
            {"low_freq_factor", [](ModelConfig& c) { c.rope_scaling.low_freq_factor = 1.5f; }},
            {"high_freq_factor", [](ModelConfig& c) { c.rope_scaling.high_freq_factor = 5; }},
            {"original_max_position_embeddings",
             [](ModelConfig& c) { c.rope_scaling.original_max_position_embeddings = 17; }}};
        for (const auto& [name, change] : changes) {
            CAPTURE(name);
            ModelConfig other = config;
            change(other);
            CHECK(max_error(logits(other), want_logits) > 0);
            CHECK(fingerprint(other) != want);
            CHECK(BaseWeights::random(1, other).fingerprint(other) !=
                  BaseWeights::random(1, config).fingerprint(config));
        }
    }
}
