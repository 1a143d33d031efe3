// Slabs kept in blocks. The file's own blocks give the bits of the decoded run, made ones those of a run on what they
// decode to. Streamed runs are like resident ones in every mix. The plan counts the work slab.
#include <cmath>
#include <map>

#include "tests/encoded_bases.h"
#include "tests/tiny_model.h"
#include "train/model/encoded_slab.h"
#include "train/model/sampler.h"

using namespace slab;
using namespace slab::train;
using namespace slab::test;

namespace {

constexpr int kSteps = 2;

// A model on any base.
struct Run {
    BaseWeights weights;
    ModelLayout layout;
    Session session;
    Model& model;
    Run(BaseWeights base, const ModelConfig& config, const ModelSettings& settings, const Model::Options& options = {})
        : weights(std::move(base)),
          layout(make_layout(config, settings)),
          session(
              open_session(std::make_unique<Device>(DeviceOptions{.threads = 2, .budget_bytes = layout.device_bytes()}),
                           layout, weights, options)),
          model(*session.model) {}
    MemoryAccount& account() { return session.device->memory(); }

    void steps(Outcome& outcome, int first, int count) {
        for (int step = first; step < first + count; ++step) {
            session.loop->enqueue(tiny_step_data(layout.config, step, 1), tiny_step());
            const StepResult result = session.loop->collect();
            REQUIRE(std::isfinite(result.loss));
            outcome.losses.push_back(result.loss);
            outcome.grad_norms.push_back(result.grad_norm);
            outcome.grads.push_back(model.trained().read_grads(model.compute()));
        }
        outcome.weights = model.trained().read_weights(model.compute());
        outcome.exp_avg = model.trained().read_exp_avg(model.compute());
        outcome.exp_avg_sq = model.trained().read_exp_avg_sq(model.compute());
    }
};

Outcome outcome_of(Run run, int count = kSteps) {
    Outcome outcome;
    run.steps(outcome, 0, count);
    CHECK(run.account().peak_bytes() == run.layout.device_bytes());  // to the byte, and it was the budget
    CHECK(run.model.offload().work_slab_bytes() == run.layout.work_slab_bytes);
    return outcome;
}

// Of a run from the outcome wanted: the first tensor and place, or "".
std::string difference(Run run, const Outcome& want) {
    const TrainedTable trained = run.layout.trained;
    return first_difference(trained, outcome_of(std::move(run)), want);
}

ModelSettings kept_as(SlabFormat format, ModelSettings settings, const StoredTypes& stored = {}) {
    settings.slab_format = format;
    settings.stored_types = stored;
    return settings;
}

// Settings that keep slabs in every place: slots, prefetches, residents, both recomputations.
std::vector<ModelSettings> mixes(const ModelSettings& resident, int L) {
    ModelSettings block = resident;
    block.recompute = Recompute::block;
    std::vector<ModelSettings> all = {resident, block};
    for (int R = 2; R <= L; ++R)
        for (int P = 1; P < R; ++P)
            all.push_back(streamed(resident, P, R, {}, (R + P) % 2 ? Recompute::none : Recompute::block));
    all.push_back(streamed(resident, 1, 2, {1}, Recompute::none));
    all.push_back(streamed(resident, 1, 2, {0, L - 1}, Recompute::block));
    return all;
}

// The base whose matrices are what the format makes of those of `base`.
void write_decoded_base(const std::filesystem::path& directory, const ModelConfig& config, SlabFormat format) {
    std::map<std::string, size_t> next_part;
    write_tiny_model(directory, config, [&](const TensorSpec& spec, std::vector<float>& values) {
        const TensorPart& part = spec.parts[next_part[spec.parts[0].key]++];
        const bool in_layer = spec.role < Role::token_embedding;
        const BlockFormat kept = in_layer ? kept_format(format, spec, part, {}) : BlockFormat::plain;
        if (kept == BlockFormat::plain) return;
        // Files have GPT-2's matrices as [inputs, outputs]; blocks run along our rows.
        std::vector<float> ours(values.size());
        const auto place = [&](size_t row, size_t col) {
            return spec.transposed ? col * part.rows + row : row * spec.cols + col;
        };
        for (size_t row = 0; row < part.rows; ++row)
            for (size_t col = 0; col < spec.cols; ++col) ours[row * spec.cols + col] = values[place(row, col)];
        std::vector<std::byte> blocks(encoded_bytes(kept, ours.size()));
        REQUIRE_FALSE(encode_blocks(kept, ours.data(), blocks.data(), ours.size()).has_value());
        ref::decode_blocks(kept, blocks.data(), ours.data(), ours.size());
        for (size_t row = 0; row < part.rows; ++row)
            for (size_t col = 0; col < spec.cols; ++col) values[place(row, col)] = ours[row * spec.cols + col];
    });
}

// A family with rows of whole blocks, and some that are none: down_proj of nf4 in GPT-2, of both in the others.
ModelConfig blocky_config(const std::string& family) {
    ModelConfig c = tiny_config(family, 3);
    c.C = 64, c.NH = 2, c.NKV = family == "gpt2" ? 2 : 1, c.HD = 32, c.I = family == "gpt2" ? 96 : 72;
    c.rope_scaling = {};
    return c;
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("encoded slabs: a GGUF's own blocks give the bits of the decoded run in every mix") {
        const MixedGguf base;
        const StoredTypes stored = stored_types_of(base.path, base.config);
        CHECK(stored.size() > 10);
        const ModelSettings plain = tiny_settings(0.3f), kept = kept_as(SlabFormat::as_is, plain, stored);
        const Outcome want = outcome_of(Run(base.weights(), base.config, plain));
        for (const ModelSettings& settings : mixes(kept, base.config.L)) {
            CAPTURE(settings.num_slots);
            CAPTURE(settings.num_prefetch);
            CAPTURE(settings.layer_offloading);
            CAPTURE(settings.resident_layers.size());
            Run run(base.weights(), base.config, settings);
            REQUIRE(run.layout.is_encoded());
            CHECK(run.model.encode_errors().empty());
            CHECK(difference(std::move(run), want) == "");
        }
    }

    TEST_CASE("encoded slabs: delays, evaluation, sampling, detach and attach leave no trace") {
        const MixedGguf base;
        ModelSettings settings = tiny_settings();
        const Outcome want = outcome_of(Run(base.weights(), base.config, settings), 3);
        settings = kept_as(SlabFormat::as_is, streamed(settings, 1, 2), stored_types_of(base.path, base.config));
        settings.cache_positions = 5;
        BaseWeights weights = base.weights();
        const ModelLayout layout = make_layout(base.config, settings);
        Model::Options options;
        options.disturb = tiny_delays(3);
        Session session = open_session(std::make_unique<Device>(DeviceOptions{.threads = 2}), layout, weights, options);
        Outcome got;
        const auto look_around = [&] {
            const auto loss =
                session.loop->evaluate(1, [&](uint64_t) { return tiny_batch(base.config, {.B = 2, .T = 8}, 5); }, {});
            CHECK(std::isfinite(loss.value()));
            sample_tokens(*session.model, {3, 1}, {.tokens = 2}, {}, [](int32_t) {});
        };
        const auto step = [&](int number) {
            session.loop->enqueue(tiny_step_data(base.config, number, 1), tiny_step());
            got.losses.push_back(session.loop->collect().loss);
        };
        look_around();
        step(0);
        session.model->offload().detach();
        look_around();
        step(1);
        session.model->offload().attach();
        look_around();
        step(2);
        CHECK(got.losses == want.losses);
        CHECK(session.model->trained().read_weights(session.model->compute()) == want.weights);
    }

    TEST_CASE("encoded slabs: q8_0 and nf4 give the bits of a run on the decoded weights, in every family") {
        for (const auto& family : tiny_families())
            for (const SlabFormat format : {SlabFormat::q8_0, SlabFormat::nf4}) {
                CAPTURE(family);
                CAPTURE(slab_format_name(format));
                const TinyBase base(blocky_config(family));
                const FreshDirectory decoded;
                write_decoded_base(decoded.path, base.config, format);
                const ModelSettings plain = tiny_settings(0.2f);
                const Outcome want =
                    outcome_of(Run(BaseWeights::from_files(decoded.path, base.config), base.config, plain));
                const ModelSettings kept = kept_as(format, plain);
                size_t plain_matrices = 0;
                for (const ModelSettings& settings : {kept, streamed(kept, 1, 2, {1})}) {
                    Run run(base.weights(), base.config, settings);
                    for (const EncodedPiece& piece : run.layout.encoded[0].pieces)
                        plain_matrices +=
                            piece.format == BlockFormat::plain && run.layout.layer(0).tensors[piece.tensor].spec.matrix;
                    const EncodeErrors& errors = run.model.encode_errors();
                    CHECK(errors.mean() > (format == SlabFormat::nf4 ? 0.05 : 0.003));
                    CHECK(errors.worst() < (format == SlabFormat::nf4 ? 0.15 : 0.01));
                    CHECK(errors.worst() >= errors.mean());
                    CHECK(difference(std::move(run), want) == "");
                }
                CHECK(plain_matrices == (family == "gpt2" && format == SlabFormat::q8_0 ? 0 : 2));
            }
    }

    TEST_CASE("encoded slabs: streamed nf4 is resident nf4 for every slot count, with layers trained in full too") {
        const TinyBase base(blocky_config("qwen3"));
        for (const ModelSettings& plain : {tiny_settings(), tiny_full_settings(2)}) {
            const ModelSettings kept = kept_as(SlabFormat::nf4, plain);
            const Outcome want = outcome_of(Run(base.weights(), base.config, kept));
            CHECK(first_difference(make_layout(base.config, plain).trained, want,
                                   outcome_of(Run(base.weights(), base.config, plain))) != "");
            for (const ModelSettings& settings : mixes(kept, plain.lora ? 3 : 2)) {
                if (!plain.lora && !settings.resident_layers.empty()) continue;
                Run run(base.weights(), base.config, settings);
                CHECK(difference(std::move(run), want) == "");
            }
        }
    }

    TEST_CASE("encoded slabs: a 4-bit directory trains as the directory of the values that it stands for") {
        const BnbBase base(blocky_config("llama"));
        const ModelSettings plain = tiny_settings();
        const Outcome want = outcome_of(Run(BaseWeights::from_files(base.decoded, base.config), base.config, plain));
        const StoredTypes stored = stored_types_of(base.path, base.config);
        CHECK(stored.size() == 3 * 7 - 1);
        const ModelSettings kept = kept_as(SlabFormat::as_is, plain, stored);
        for (const ModelSettings& settings : {plain, kept, streamed(kept, 1, 2)}) {
            Run run(base.weights(), base.config, settings);
            CHECK(difference(std::move(run), want) == "");
        }
    }

    TEST_CASE("encoded slabs: the host holds blocks, and nothing is encoded where nothing is in blocks") {
        const MixedGguf base;
        const ModelSettings kept =
            kept_as(SlabFormat::as_is, streamed(tiny_settings(), 1, 2), stored_types_of(base.path, base.config));
        Run run(base.weights(), base.config, kept);
        size_t moved_bytes = 0, decoded_bytes = 0;
        for (int l = 0; l < base.config.L; ++l) {
            moved_bytes += run.layout.moved_slab(l).total_bytes();
            decoded_bytes += run.layout.layer(l).slab.total_bytes();
            CHECK(run.layout.encoded[l].pieces.size() == 9);
        }
        CHECK(run.model.host_slab_bytes() == moved_bytes);
        CHECK(moved_bytes < decoded_bytes * 3 / 4);
        const auto items = run.layout.device_items();
        CHECK(std::count_if(items.begin(), items.end(), [&](const PlanItem& item) {
                  return item.what == "work slab (one decoded layer)" && item.bytes == run.layout.work_slab_bytes;
              }) == 1);

        for (const ModelSettings& settings :
             {kept_as(SlabFormat::as_is, tiny_settings()), kept_as(SlabFormat::nf4, tiny_full_settings())}) {
            const ModelLayout layout = make_layout(base.config, settings);
            CHECK_FALSE(layout.is_encoded());
            CHECK(layout.work_slab_bytes == 0);
        }
    }
}
