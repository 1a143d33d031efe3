// The whole model's gradients are compared with central differences of its loss, with another split into micro-batches,
// and with the same documents in rows of their own.
//
// Differences are taken in float32, tensor by tensor, along a random direction of unit length. One step changes every
// element by little, and the five-point formula leaves rounding of the loss as the only error.
#include <limits>

#include "tests/tiny_model.h"
#include "train/spec/micro_batch.h"
#include "train/spec/trained_table.h"

using namespace slab;
using namespace slab::train;
using namespace slab::test;

namespace {

struct Gradients {
    double loss;
    std::vector<float> grads;  // table order
};

Gradients gradients_of(TinyRun& run, const std::vector<MicroBatch>& batches) {
    run.loop.enqueue(batches, tiny_step(false));
    const double loss = run.loop.collect().loss;
    return {loss, run.model.trained().read_grads(run.model.compute())};
}

// LoRA's B starts at zero, which hides A. Shaken weights are as after some training.
void shake_weights(TinyRun& run) {
    std::vector<float> weights = run.model.trained().read_weights(run.model.compute());
    const std::vector<float> noise = random_vector<float>(weights.size(), 99, -0.15, 0.15);
    for (size_t i = 0; i < weights.size(); ++i) weights[i] += noise[i];
    run.model.trained().write_weights(weights, run.model.compute());
}

void check_against_differences(TinyRun& run, const std::vector<MicroBatch>& batches) {
    shake_weights(run);
    Stream& stream = run.model.compute();
    const std::vector<float> at = run.model.trained().read_weights(stream);
    const std::vector<float> grads = gradients_of(run, batches).grads;
    size_t first = 0;
    for (size_t index = 0; index < run.layout.trained.tensors().size(); ++index) {
        const TrainedTensor& t = run.layout.trained.at(index);
        const std::vector<double> direction = random_vector(t.elems(), static_cast<unsigned>(index) + 1);
        double length = 0, analytic = 0, norm = 0;
        for (const double d : direction) length += d * d;
        length = std::sqrt(length);
        for (size_t i = 0; i < t.elems(); ++i) {
            analytic += static_cast<double>(grads[first + i]) * direction[i] / length;
            norm += std::pow(static_cast<double>(grads[first + i]), 2);
        }
        norm = std::sqrt(norm);
        const auto loss_at = [&](double step) {
            std::vector<float> weights = at;
            for (size_t i = 0; i < t.elems(); ++i)
                weights[first + i] += static_cast<float>(step * direction[i] / length);
            run.model.trained().write_weights(weights, stream);
            run.loop.enqueue(batches, tiny_step(false));
            return run.loop.collect().loss;
        };
        const double h = 0.012 * std::sqrt(static_cast<double>(t.elems()));  // 0.012 an element, root mean square
        const double numeric = (8 * (loss_at(h) - loss_at(-h)) - (loss_at(2 * h) - loss_at(-2 * h))) / (12 * h);
        const double typical = norm / std::sqrt(static_cast<double>(t.elems()));  // of |gradient · direction|
        CAPTURE(t.key);
        CAPTURE(analytic);
        CAPTURE(numeric);
        CAPTURE(norm);
        CHECK(norm > 0);
        CHECK(std::abs(numeric - analytic) <= 0.02 * std::max(std::abs(analytic), typical) + 2e-6);
        first += t.elems();
    }
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("model: gradients of LoRA equal the differences of the loss, documents included") {
        for (const auto& family : tiny_families()) {
            CAPTURE(family);
            const TinyBase base(family, 2);
            TinyRun run(base, tiny_settings());
            check_against_differences(run, {tiny_batch(base.config, {.B = 2, .T = 9, .documents = true}, 11)});
        }
    }

    TEST_CASE("model: gradients of LoRA with dropout equal the differences of the loss under the same masks") {
        const TinyBase base("llama", 2);
        TinyRun run(base, tiny_settings(0.25f));
        check_against_differences(run, {tiny_batch(base.config, {.B = 2, .T = 9, .first_sample = 6}, 12)});
    }

    TEST_CASE("model: gradients of all weights equal the differences of the loss, documents included") {
        for (const auto& family : tiny_families()) {
            CAPTURE(family);
            const TinyBase base(family, 2);
            TinyRun run(base, tiny_full_settings());
            check_against_differences(run, {tiny_batch(base.config, {.B = 2, .T = 9, .documents = true}, 13)});
        }
    }

    TEST_CASE("model: gradients above frozen layers equal the differences of the loss") {
        for (const auto& family : tiny_families()) {
            CAPTURE(family);
            const TinyBase base(family, 2);
            for (const int K : {1, 2}) {  // 2: only the final norm, and an untied head
                TinyRun run(base, tiny_full_settings(K));
                check_against_differences(run, {tiny_batch(base.config, {.B = 1, .T = 9}, 14)});
            }
        }
    }

    TEST_CASE("model: four micro-batches of one row give the loss and the gradients of one batch of four") {
        for (const auto& family : tiny_families())
            for (const float dropout : {0.0f, 0.3f, -1.0f}) {  // -1: all weights
                CAPTURE(family);
                CAPTURE(dropout);
                const TinyBase base(family, 3);
                ModelSettings settings = dropout < 0 ? tiny_full_settings() : tiny_settings(dropout);
                settings.B = 4;
                settings.T = 13;
                TinyRun run(base, settings);
                shake_weights(run);
                MicroBatch whole{.B = 4, .T = 13, .tokens = {}, .targets = {}, .doc_start = {}, .first_sample = 40};
                std::vector<MicroBatch> rows;
                for (unsigned b = 0; b < 4; ++b) {
                    const double masked[] = {0.05, 0.9, 0.5, 0.0};
                    rows.push_back(tiny_batch(
                        base.config, {.B = 1, .T = 13, .masked = masked[b], .documents = true, .first_sample = 40 + b},
                        20 + b));
                    whole.tokens.insert(whole.tokens.end(), rows[b].tokens.begin(), rows[b].tokens.end());
                    whole.targets.insert(whole.targets.end(), rows[b].targets.begin(), rows[b].targets.end());
                    whole.doc_start.insert(whole.doc_start.end(), rows[b].doc_start.begin(), rows[b].doc_start.end());
                }
                const Gradients want = gradients_of(run, {whole}), got = gradients_of(run, rows);
                CHECK(std::abs(got.loss - want.loss) < 1e-6 * want.loss);
                CHECK(norm_error(got.grads, want.grads) < 1e-5);
                CHECK(gradients_of(run, {whole}).grads == want.grads);
                if (dropout > 0) {  // masks belong to samples: moved by one, they are others
                    whole.first_sample = 41;
                    CHECK(norm_error(gradients_of(run, {whole}).grads, want.grads) > 1e-2);
                }
            }
    }

    TEST_CASE("model: a micro-batch without targets adds nothing") {
        const TinyBase base("qwen2", 3);
        for (const ModelSettings& settings : {tiny_settings(), tiny_full_settings()}) {
            TinyRun run(base, settings);
            shake_weights(run);
            const MicroBatch real_one = tiny_batch(base.config, {}, 31);
            MicroBatch empty = tiny_batch(base.config, {}, 32);
            std::fill(empty.targets.begin(), empty.targets.end(), kIgnoreTarget);
            const Gradients want = gradients_of(run, {real_one}), got = gradients_of(run, {empty, real_one, empty});
            CHECK(got.loss == want.loss);
            CHECK(got.grads == want.grads);
        }
    }

    TEST_CASE("model: after one step every adapter's B has a gradient, after two every A") {
        for (const auto& family : tiny_families())
            for (const bool streaming : {false, true}) {
                CAPTURE(family);
                CAPTURE(streaming);
                const TinyBase base(family);
                TinyRun run(base, streaming ? streamed(tiny_settings(), 1, 2) : tiny_settings());
                const Outcome outcome = train_steps(run, 2);
                for (const size_t step : {0, 1}) {
                    const float* grad = outcome.grads[step].data();
                    for (const auto& t : run.layout.trained.tensors()) {
                        CAPTURE(t.key);
                        double square = 0;
                        for (size_t i = 0; i < t.elems(); ++i) square += std::pow(static_cast<double>(grad[i]), 2);
                        if (step == 0 && has(t.key, "lora_A"))
                            CHECK(square == 0);
                        else
                            CHECK(square > 0);
                        grad += t.elems();
                    }
                }
            }
    }

    TEST_CASE("model: two documents packed in a row give the losses and gradients of two rows of their own") {
        for (const auto& family : tiny_families()) {
            CAPTURE(family);
            const TinyBase base(family, 3);
            ModelSettings settings = tiny_settings();
            settings.B = 1;
            settings.T = 17;
            TinyRun run(base, settings);
            shake_weights(run);
            MicroBatch packed = tiny_batch(base.config, {.B = 1, .T = 17}, 41);
            const int cut = 7;
            packed.targets[cut - 1] = kIgnoreTarget;
            std::vector<MicroBatch> apart(2);
            for (int t = 0; t < 17; ++t) {
                MicroBatch& own = apart[t < cut ? 0 : 1];
                own.B = 1;
                own.T = t < cut ? cut : 17 - cut;
                own.tokens.push_back(packed.tokens[static_cast<size_t>(t)]);
                own.targets.push_back(packed.targets[static_cast<size_t>(t)]);
            }
            const Gradients joined = gradients_of(run, {packed});
            for (int t = 0; t < 17; ++t) packed.doc_start.push_back(t < cut ? 0 : cut);
            const Gradients got = gradients_of(run, {packed}), want = gradients_of(run, apart);
            CHECK(std::abs(got.loss - want.loss) < 1e-6 * want.loss);
            CHECK(norm_error(got.grads, want.grads) < 1e-5);
            CHECK(norm_error(joined.grads, want.grads) > 1e-2);  // the boundary matters
            CHECK(std::abs(evaluate(run, {packed}) - evaluate(run, apart)) < 1e-5);
            std::vector<float> logits = run.model.logits(packed, 0, 17), own = run.model.logits(apart[0], 0, cut);
            const std::vector<float> second = run.model.logits(apart[1], 0, 17 - cut);
            own.insert(own.end(), second.begin(), second.end());
            CHECK(max_error(logits, own) < 1e-5);
        }
    }

    TEST_CASE("model: logits in chunks give the loss and the gradients of logits at once") {
        ModelConfig config = tiny_config("llama", 1);
        config.V = 132000;  // 64 rows of logits are what exists at once
        config.C = 6, config.HD = 2, config.I = 5;
        const TinyBase base(config);
        ModelSettings settings = tiny_full_settings();
        settings.T = 33;
        TinyRun run(base, settings);
        REQUIRE(run.layout.head_chunk_rows == 64);
        const MicroBatch both = tiny_batch(config, {.B = 2, .T = 33}, 51);
        std::vector<MicroBatch> rows(2, MicroBatch{});
        for (size_t b = 0; b < 2; ++b) {
            rows[b].B = 1;
            rows[b].T = 33;
            rows[b].tokens.assign(both.tokens.begin() + 33 * b, both.tokens.begin() + 33 * (b + 1));
            rows[b].targets.assign(both.targets.begin() + 33 * b, both.targets.begin() + 33 * (b + 1));
        }
        const Gradients got = gradients_of(run, {both}), want = gradients_of(run, rows);
        CHECK(std::abs(got.loss - want.loss) < 1e-6 * want.loss);
        CHECK(norm_error(got.grads, want.grads) < 1e-5);
        CHECK(std::abs(evaluate(run, {both}) - got.loss) < 1e-6 * want.loss);
    }

    TEST_CASE("model: losses are sums over targets, divided by the targets of the whole step") {
        const TinyBase base("gpt2", 2);
        TinyRun run(base, tiny_settings());
        const std::vector<MicroBatch> data = tiny_step_data(base.config, 4, 3);
        double sum = 0;
        size_t targets = 0;
        for (const auto& batch : data) {
            sum += evaluate(run, {batch}) * static_cast<double>(batch.target_count());
            targets += batch.target_count();
        }
        const double mean = sum / static_cast<double>(targets);
        run.loop.enqueue(data, tiny_step(false));
        const StepResult result = run.loop.collect();
        CHECK(result.targets == targets);
        CHECK(std::abs(result.loss - mean) < 1e-6 * mean);
        CHECK(std::abs(evaluate(run, data) - mean) < 1e-6 * mean);
    }
}
