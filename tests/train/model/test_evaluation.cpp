// What training has and evaluation must not: dropout. And what AdamW decays, what the plan of host memory counts.
#include <algorithm>
#include <string>
#include <vector>

#include "tests/tiny_model.h"

using namespace slab;
using namespace slab::train;
using namespace slab::test;

namespace {

bool is_norm_or_bias(const std::string& key) {
    return key.ends_with(".bias") || key.find("norm") != std::string::npos || key.find("ln_") != std::string::npos;
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("evaluation: the adapters' dropout is training's alone, bit for bit") {
        const TinyBase base("llama", 3);
        TinyRun with(base, tiny_settings(0.5f)), without(base, tiny_settings(0)),
            streaming(base, streamed(tiny_settings(0.5f), 1, 2));
        // B is nonzero, as after training: at its start no adapter adds anything.
        const auto weights = random_vector<float>(with.layout.trained.parameter_count(), 7, -0.3, 0.3);
        for (TinyRun* run : {&with, &without, &streaming})
            run->model.trained().write_weights(weights, run->model.compute());
        const auto batches = tiny_step_data(base.config, 0, 3);
        const double want = evaluate(without, batches);
        CHECK(evaluate(with, batches) == want);
        CHECK(evaluate(streaming, batches) == want);
        CHECK(same_bits(with.model.logits(batches[0], 0, 4), without.model.logits(batches[0], 0, 4)));
        const auto train_loss = [&](TinyRun& run) {
            run.loop.enqueue(batches, tiny_step(false));
            return run.loop.collect().loss;
        };
        CHECK(train_loss(without) == doctest::Approx(want).epsilon(1e-6));
        CHECK(std::abs(train_loss(with) - want) > 1e-3);
        CHECK(evaluate(with, batches) == want);  // training leaves none behind either
    }

    TEST_CASE("weight decay: of matrices, never of norms and biases") {
        for (const std::string family : {"gpt2", "llama", "qwen3"}) {
            CAPTURE(family);
            const TinyBase base(family, 2);
            StepSettings settings = tiny_step();
            const auto after_step = [&](float weight_decay) {
                TinyRun run(base, tiny_full_settings());
                settings.adamw.weight_decay = weight_decay;
                run.loop.enqueue(tiny_step_data(base.config, 0, 2), settings);
                CHECK(run.loop.collect().targets > 0);
                return run.model.trained().read_weights(run.model.compute());
            };
            TinyRun start(base, tiny_full_settings());
            const auto before = start.model.trained().read_weights(start.model.compute());
            const auto plain = after_step(0), decayed = after_step(0.5f);
            size_t at = 0, kept = 0;
            for (const auto& tensor : start.layout.trained.tensors()) {
                CAPTURE(tensor.key);
                double worst = 0;
                for (size_t i = at; i < at + tensor.elems(); ++i) {
                    const double decay = is_norm_or_bias(tensor.key) ? 0 : settings.adamw.learning_rate * 0.5;
                    worst = std::max(worst, std::abs(plain[i] - decayed[i] - decay * before[i]));
                }
                CHECK(worst <= (is_norm_or_bias(tensor.key) ? 0 : 1e-6));
                at += tensor.elems();
                kept += is_norm_or_bias(tensor.key);
            }
            CHECK(kept > 0);
        }
    }

    TEST_CASE("plan: the host's staging holds the largest of the layers that stay, the embeddings and the head") {
        const TinyBase base("qwen3", 3);
        const auto staging_bytes = [](const ModelLayout& layout) {
            for (const auto& [what, bytes] : layout.host_items())
                if (what.find("staging") != std::string::npos) return bytes;
            return size_t{0};
        };
        ModelConfig config = tiny_config("qwen3", 3);
        config.V = 4000;  // embeddings and head are larger than a layer
        ModelLayout layout = make_layout(config, streamed(tiny_settings(), 1, 2));
        CHECK(layout.outside().slab.total_bytes() > layout.layer(0).slab.total_bytes());
        CHECK(staging_bytes(layout) == layout.outside().slab.total_bytes());
        config.V = 5;  // a layer is larger
        layout = make_layout(config, streamed(tiny_settings(), 1, 2, {1}));
        CHECK(layout.layer(1).slab.total_bytes() > layout.outside().slab.total_bytes());
        CHECK(staging_bytes(layout) == layout.layer(1).slab.total_bytes());
        layout = make_layout(config, streamed(tiny_settings(), 1, 2));
        CHECK(staging_bytes(layout) == layout.outside().slab.total_bytes());
    }
}
