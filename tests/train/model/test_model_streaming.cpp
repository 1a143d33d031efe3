// The central promise, on whole models: a streamed step gives the bits of the resident step. It holds for all slots,
// prefetches, resident layers, recomputation and timings of the two streams. Evaluation, sampling, detaching and
// attaching in between leave no trace.
#include "tests/tiny_model.h"
#include "train/model/sampler.h"

using namespace slab;
using namespace slab::train;
using namespace slab::test;

namespace {

constexpr int kSteps = 3;

struct Kind {
    std::string name;
    ModelSettings settings;  // resident, recompute none
};

std::vector<Kind> kinds() {
    return {{"lora", tiny_settings()},
            {"lora with dropout", tiny_settings(0.3f)},
            {"full, 3 frozen", tiny_full_settings(3)}};
}

Outcome outcome_of(const TinyBase& base, const ModelSettings& settings, const Model::Options& options = {},
                   int steps = kSteps) {
    TinyRun run(base, settings, options);
    Outcome outcome = train_steps(run, steps);
    const auto& stats = run.model.offload().stats();
    CHECK((stats.slabs_in > 0) == !run.layout.ring.streamed().empty());  // a run that did not stream proves nothing
    CHECK(stats.misses == 0);
    CHECK(stats.slabs_out == 0);
    CHECK(stats.bytes_out == 0);
    return outcome;
}

void check_same(const TinyBase& base, const ModelSettings& settings, const Outcome& want,
                const Model::Options& options = {}, int steps = kSteps) {
    const std::string difference =
        first_difference(make_layout(base.config, settings).trained, outcome_of(base, settings, options, steps), want);
    CAPTURE(settings.num_prefetch);
    CAPTURE(settings.num_slots);
    CAPTURE(settings.resident_layers.size());
    CAPTURE(settings.recompute == Recompute::block);
    CHECK(difference == "");
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("model: the comparison of two runs finds one changed bit and names it") {
        const TinyBase base("qwen2");
        TinyRun run(base, tiny_settings());
        const Outcome want = train_steps(run, 1);
        Outcome got = want;
        CHECK(first_difference(run.layout.trained, got, want) == "");
        got.grads[0][5] = std::nextafter(got.grads[0][5], 1e9f);
        CHECK(has(first_difference(run.layout.trained, got, want),
                  "step 0: gradient of base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight [0, 5]"));
    }

    TEST_CASE("model: recomputing blocks gives the bits of keeping their activations, with dropout too") {
        for (const auto& family : tiny_families()) {
            const TinyBase base(family);
            for (const Kind& kind : kinds()) {
                CAPTURE(family);
                CAPTURE(kind.name);
                ModelSettings block = kind.settings;
                block.recompute = Recompute::block;
                check_same(base, block, outcome_of(base, kind.settings));
            }
        }
    }

    TEST_CASE("model: streamed LoRA training equals resident training for every slot count and prefetch") {
        for (const auto& family : tiny_families()) {
            CAPTURE(family);
            const TinyBase base(family);
            const Outcome want = outcome_of(base, tiny_settings());
            for (int R = 2; R <= base.config.L; ++R)
                for (int P = 1; P < R; ++P)
                    for (const Recompute recompute : {Recompute::none, Recompute::block})
                        check_same(base, streamed(tiny_settings(), P, R, {}, recompute), want);
            for (const std::vector<int>& residents : {std::vector<int>{0}, {4}, {1, 3}, {0, 2, 4}, {1, 2, 3, 4}}) {
                check_same(base, streamed(tiny_settings(), 1, 2, residents, Recompute::none), want);
                check_same(base, streamed(tiny_settings(), 2, 4, residents, Recompute::block), want);
            }
        }
    }

    TEST_CASE(
        "model: streamed training with dropout, and with the upper layers trained in full, equals resident training") {
        for (const auto& family : tiny_families()) {
            CAPTURE(family);
            const TinyBase base(family);
            for (const Kind& kind : kinds()) {
                if (kind.name == "lora") continue;
                CAPTURE(kind.name);
                const Outcome want = outcome_of(base, kind.settings);
                const int N = kind.settings.lora ? base.config.L : kind.settings.freeze_layers;
                for (int R = 2; R <= N; R += R == 2 ? 1 : 2)
                    for (const int P : {1, R - 1}) {
                        check_same(base, streamed(kind.settings, P, R, {}, Recompute::none), want);
                        check_same(base, streamed(kind.settings, P, R, {}, Recompute::block), want);
                    }
                check_same(base, streamed(kind.settings, 1, 2, {1}), want);
            }
        }
    }

    TEST_CASE("model: random delays in both streams change no bit") {
        unsigned seed = 0;
        for (const auto& family : tiny_families()) {
            CAPTURE(family);
            const TinyBase base(family);
            for (const Kind& kind : kinds()) {
                CAPTURE(kind.name);
                const Outcome want = outcome_of(base, kind.settings, {}, 2);
                const int P = static_cast<int>(seed % 2) + 1;
                const Recompute recompute = seed % 3 == 0 ? Recompute::none : Recompute::block;
                const std::vector<int> residents = seed % 4 == 3 ? std::vector<int>{1} : std::vector<int>{};
                Model::Options options;
                options.disturb = tiny_delays(++seed);
                check_same(base, streamed(kind.settings, P, P + 1, residents, recompute), want, options, 2);
            }
        }
    }

    TEST_CASE("model: evaluation, sampling, detach and attach between steps leave no trace in training") {
        for (const auto& family : tiny_families()) {
            CAPTURE(family);
            const TinyBase base(family);
            for (const Kind& kind : kinds()) {
                CAPTURE(kind.name);
                const Outcome want = outcome_of(base, kind.settings, {}, 4);
                ModelSettings settings = streamed(kind.settings, 1, 2);
                settings.cache_positions = 6;
                TinyRun run(base, settings);
                const auto look_around = [&] {
                    const double loss = evaluate(run, {tiny_batch(base.config, {.B = 2, .T = 8}, 5),
                                                       tiny_batch(base.config, {.B = 1, .T = 9}, 6)});
                    CHECK(std::isfinite(loss));
                    int sampled = 0;
                    sample_tokens(run.model, {3, 1, 2}, {.tokens = 3}, {}, [&](int32_t) { ++sampled; });
                    CHECK(sampled == 3);
                };
                Outcome got;
                look_around();
                train_steps(got, run, 0, 1);
                look_around();
                train_steps(got, run, 1, 1);
                CHECK(run.model.offload().stats().misses == 0);  // all announce theirs; attach() resets
                run.model.offload().detach();
                look_around();
                train_steps(got, run, 2, 1);
                run.model.offload().attach();
                train_steps(got, run, 3, 1);
                CHECK(first_difference(run.layout.trained, got, want) == "");
                CHECK(run.model.offload().stats().slabs_in > 0);
            }
        }
    }

    TEST_CASE("model: a detach that the budget does not hold is refused, and streaming goes on with the same bits") {
        const TinyBase base("llama");
        const ModelSettings settings = streamed(tiny_settings(), 1, 2);
        const ModelLayout layout = make_layout(base.config, settings);
        const Outcome want = outcome_of(base, tiny_settings());
        TinyRun run(base, settings, {}, layout.device_bytes());
        Outcome got;
        train_steps(got, run, 0, 1);
        CHECK_THROWS_AS(run.model.offload().detach(), OutOfBudget);
        CHECK(run.model.offload().attached());
        train_steps(got, run, 1, 2);
        CHECK(first_difference(run.layout.trained, got, want) == "");
    }

    TEST_CASE("model: a pass in steady state moves 2(N-R) slabs, and nothing but loss and norm comes back") {
        const TinyBase base("qwen3");
        const int L = base.config.L;
        for (const std::vector<int>& residents : {std::vector<int>{}, std::vector<int>{2}})
            for (int R = 2; R <= L; ++R) {
                TinyRun run(base, streamed(tiny_settings(), 1, R, residents));
                const uint64_t N = run.layout.ring.streamed().size(), slots = std::min<uint64_t>(R, N);
                const uint64_t slab_bytes = run.layout.layer(0).slab.total_bytes();
                auto& offload = run.model.offload();
                CAPTURE(N);
                CAPTURE(R);
                REQUIRE(N == static_cast<uint64_t>(L) - residents.size());
                REQUIRE(run.layout.ring.slots() == static_cast<int>(slots));
                for (int step = 0; step < 4; ++step) {
                    offload.reset_stats();
                    const Traffic before = run.device.traffic();
                    const auto data = tiny_step_data(base.config, step, step < 2 ? 1 : 3);
                    run.loop.enqueue(data, tiny_step());
                    run.loop.collect();
                    const auto& stats = offload.stats();
                    const Traffic after = run.device.traffic();
                    const uint64_t slabs = (step == 0 ? slots : 0) + 2 * (N - slots) * data.size();
                    CHECK(stats.slabs_in == slabs);
                    CHECK(stats.bytes_in == slabs * slab_bytes);
                    CHECK(stats.hits == 2 * N * data.size());
                    CHECK(stats.misses == 0);
                    CHECK(stats.slabs_out == 0);
                    CHECK(stats.bytes_out == 0);
                    uint64_t upload_bytes = 0;
                    for (const auto& batch : data)
                        upload_bytes +=
                            sizeof(int32_t) * (batch.tokens.size() + batch.targets.size() + batch.doc_start.size());
                    CHECK(after.host_to_device_bytes - before.host_to_device_bytes == stats.bytes_in + upload_bytes);
                    CHECK(after.device_to_host_bytes - before.device_to_host_bytes ==
                          sizeof(double) + sizeof(OptimizerControl));
                }
            }
    }

    TEST_CASE("model: a model with nothing frozen or nothing left to stream trains resident although asked to stream") {
        const TinyBase base("gpt2");
        for (const ModelSettings& settings :
             {streamed(tiny_full_settings(0), 1, 2), streamed(tiny_settings(), 1, 2, {0, 1, 2, 3, 4})}) {
            ModelSettings resident = settings;
            resident.layer_offloading = false;
            resident.resident_layers.clear();
            const ModelLayout layout = make_layout(base.config, settings);
            CHECK(layout.ring.streamed().empty());
            CHECK(layout.ring.slots() == 0);
            check_same(base, settings, outcome_of(base, resident));
        }
    }
}
