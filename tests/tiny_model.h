// Models small enough that a test trains hundreds of them, one of each family, with odd sizes. They are written as
// Hugging Face files, with weights that leave no term near zero.
//
// All numbers are functions of the seeds given, so a failure repeats. Two runs are compared bit by bit. The first
// difference is reported with the tensor's name and coordinates.
#pragma once

#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "data/token_file.h"
#include "kernels/cross_entropy.h"
#include "tests/kernel_checks.h"
#include "tests/temporary_files.h"
#include "tests/token_files.h"
#include "train/files/base_weights.h"
#include "train/files/model_config_writer.h"
#include "train/files/safetensors.h"
#include "train/files/safetensors_writer.h"
#include "train/model/model.h"
#include "train/model/step_loop.h"
#include "train/run/options.h"
#include "train/run/run.h"
#include "train/run/session.h"
#include "train/spec/lora.h"
#include "train/spec/micro_batch.h"
#include "train/spec/trained_table.h"

namespace slab::test {

inline const std::vector<std::string>& tiny_families() {
    static const std::vector<std::string> names = {"gpt2", "llama", "qwen2", "qwen3"};
    return names;
}

// gpt2: tied. llama: untied, llama3 rotary scaling, every bias. qwen2: tied. qwen3: untied, HD differs from C / NH.
inline train::ModelConfig tiny_config(const std::string& family, int L = 5) {
    train::ModelConfig c;
    c.L = L;
    c.max_positions = 40;
    if (family == "gpt2") {
        c.family = train::Family::gpt2;
        c.norm = train::NormKind::layer_norm;
        c.activation = train::Activation::gelu_tanh;
        c.norm_eps = 1e-5f;
        c.learned_positions = c.qkv_bias = c.o_bias = c.mlp_bias = c.tied_head = true;
        c.rotary = false;
        c.C = 20, c.NH = c.NKV = 4, c.HD = 5, c.I = 27, c.V = 41;
    } else if (family == "llama") {
        c.family = train::Family::llama;
        c.qkv_bias = c.o_bias = c.mlp_bias = true;
        c.C = 18, c.NH = 3, c.NKV = 1, c.HD = 6, c.I = 23, c.V = 53;
        c.rope_theta = 300;
        c.rope_scaling = {true, 8, 1, 4, 16};
    } else if (family == "qwen2") {
        c.family = train::Family::qwen2;
        c.qkv_bias = c.tied_head = true;
        c.C = 16, c.NH = 4, c.NKV = 2, c.HD = 4, c.I = 21, c.V = 37;
    } else if (family == "qwen3") {
        c.family = train::Family::qwen3;
        c.qk_norm = true;
        c.C = 17, c.NH = 4, c.NKV = 2, c.HD = 6, c.I = 19, c.V = 61;
    } else {
        throw std::logic_error("no tiny model of family " + family);
    }
    return c;
}

// Writes config.json and model.safetensors. `edit` may change the values of each part of a tensor.
inline void write_tiny_model(
    const std::filesystem::path& directory, const train::ModelConfig& config,
    const std::function<void(const train::TensorSpec& spec, std::vector<float>& values)>& edit = {}) {
    unsigned seed = 1;
    train::SafetensorsWriter writer;
    std::vector<std::vector<float>> values;
    const auto specs = train::all_tensors(config);
    for (const auto& spec : specs) {
        const bool outer = spec.role >= train::Role::token_embedding;
        const double spread = spec.matrix ? (outer ? 0.5 : 0.35) : 0.2;
        for (const auto& part : spec.parts) {
            auto& v = values.emplace_back(random_vector<float>(part.rows * spec.cols, ++seed, -spread, spread));
            if (spec.init == train::Init::one)
                for (float& x : v) x += 1;
            if (edit) edit(spec, v);
        }
    }
    size_t next = 0;
    for (const auto& spec : specs)
        for (const auto& part : spec.parts) {
            writer.add(part.key, train::stored_shape(spec, part), values[next++].data());
        }
    writer.write(directory / "model.safetensors");
    put(directory / "config.json", train::model_config_json(config, "float32"));
}

struct TinyBase {
    train::ModelConfig config;
    FreshDirectory files;
    explicit TinyBase(const std::string& family, int L = 5) : TinyBase(tiny_config(family, L)) {}
    explicit TinyBase(const train::ModelConfig& c) : config(c) { write_tiny_model(files.path, config); }
    train::BaseWeights weights() const { return train::BaseWeights::from_files(files.path, config); }
};

inline train::LoraSettings tiny_lora(int r = 3, float dropout = 0) {
    return {.r = r,
            .alpha = 7,
            .dropout = dropout,
            .rslora = false,
            .target_modules = {"all-linear"},
            .layers_to_transform = {}};
}

// Rows of B = 2, T = 9; LoRA unless freeze_layers is given.
inline train::ModelSettings tiny_settings(float dropout = 0) {
    train::ModelSettings s;
    s.B = 2;
    s.T = 9;
    s.lora = tiny_lora(3, dropout);
    return s;
}
inline train::ModelSettings tiny_full_settings(int freeze_layers = 0) {
    train::ModelSettings s;
    s.B = 2;
    s.T = 9;
    s.freeze_layers = freeze_layers;
    return s;
}
inline train::ModelSettings streamed(train::ModelSettings s, int P, int R, std::vector<int> residents = {},
                                     train::Recompute recompute = train::Recompute::block) {
    s.layer_offloading = true;
    s.num_prefetch = P;
    s.num_slots = R;
    s.resident_layers = std::move(residents);
    s.recompute = recompute;
    return s;
}

struct BatchShape {
    int B = 2, T = 9;
    double masked = 0.3;  // share of the positions without a target; one target is always left
    bool documents = false;
    uint64_t first_sample = 0;
};

inline train::MicroBatch tiny_batch(const train::ModelConfig& config, const BatchShape& shape, unsigned seed) {
    std::mt19937 random(seed);
    const auto chance = [&](double p) { return random() < p * 0x1p32; };
    train::MicroBatch batch;
    batch.B = shape.B;
    batch.T = shape.T;
    batch.first_sample = shape.first_sample;
    const auto token = [&] { return static_cast<int32_t>(random() % static_cast<unsigned>(config.V)); };
    for (int b = 0; b < shape.B; ++b) {
        int32_t doc_start = 0;
        for (int t = 0; t < shape.T; ++t) {
            if (shape.documents && t > 0 && chance(0.25)) {
                doc_start = t;
                batch.targets.back() = kIgnoreTarget;  // the first token of a document is no target
            }
            batch.tokens.push_back(token());
            batch.targets.push_back(chance(shape.masked) ? kIgnoreTarget : token());
            if (shape.documents) batch.doc_start.push_back(doc_start);
        }
    }
    if (batch.target_count() == 0) batch.targets.back() = token();
    return batch;
}

// A session on a tiny base. Memory is not checked before it is allocated.
struct TinyRun {
    train::BaseWeights weights;
    train::ModelLayout layout;
    train::Session session;
    Device& device;
    train::Model& model;
    train::StepLoop& loop;
    TinyRun(const TinyBase& base, const train::ModelSettings& settings, const train::Model::Options& options = {},
            size_t budget_bytes = 0)
        : weights(base.weights()),
          layout(train::make_layout(base.config, settings)),
          session(
              train::open_session(std::make_unique<Device>(DeviceOptions{.threads = 2, .budget_bytes = budget_bytes}),
                                  layout, weights, options)),
          device(*session.device),
          model(*session.model),
          loop(*session.loop) {}
};

inline double evaluate(TinyRun& run, const std::vector<train::MicroBatch>& batches) {
    return run.loop.evaluate(batches.size(), [&](uint64_t i) { return batches[i]; }, {}).value();
}

inline train::StepSettings tiny_step(bool update = true) {
    return {.adamw = {.learning_rate = 0.01f, .beta1 = 0.9f, .beta2 = 0.99f, .epsilon = 1e-8f, .weight_decay = 0.02f},
            .max_grad_norm = 0.5f,
            .update = update};
}

// The data of step number `step`: micro-batches of changing shape, masks and documents.
inline std::vector<train::MicroBatch> tiny_step_data(const train::ModelConfig& config, int step, int micro_batches) {
    std::vector<train::MicroBatch> batches;
    uint64_t sample = static_cast<uint64_t>(step) * static_cast<uint64_t>(micro_batches) * 2;
    for (int i = 0; i < micro_batches; ++i, sample += 2)
        batches.push_back(tiny_batch(config,
                                     {.B = 2,
                                      .T = (step + i) % 2 == 0 ? 9 : 7,
                                      .masked = i == 0 ? 0.2 : 0.6,
                                      .documents = (step + i) % 3 == 1,
                                      .first_sample = sample},
                                     static_cast<unsigned>(1000 * step + i)));
    return batches;
}

// Results of some steps of training.
struct Outcome {
    std::vector<double> losses;             // of each step
    std::vector<float> grad_norms;          // of each step
    std::vector<std::vector<float>> grads;  // of each step, table order, not clipped
    std::vector<float> weights, exp_avg, exp_avg_sq;
};

// Steps first_step .. first_step + steps - 1, added to the outcome.
inline void train_steps(Outcome& outcome, TinyRun& run, int first_step, int steps, int micro_batches = 2) {
    for (int step = first_step; step < first_step + steps; ++step) {
        run.loop.enqueue(tiny_step_data(run.layout.config, step, micro_batches), tiny_step());
        const train::StepResult result = run.loop.collect();
        REQUIRE(std::isfinite(result.loss));
        REQUIRE_FALSE(result.skipped);
        outcome.losses.push_back(result.loss);
        outcome.grad_norms.push_back(result.grad_norm);
        outcome.grads.push_back(run.model.trained().read_grads(run.model.compute()));
    }
    outcome.weights = run.model.trained().read_weights(run.model.compute());
    outcome.exp_avg = run.model.trained().read_exp_avg(run.model.compute());
    outcome.exp_avg_sq = run.model.trained().read_exp_avg_sq(run.model.compute());
}
inline Outcome train_steps(TinyRun& run, int steps, int micro_batches = 2) {
    Outcome outcome;
    train_steps(outcome, run, 0, steps, micro_batches);
    return outcome;
}

// The first element whose bits differ, with tensor and coordinates, or "". Both are packed in table order.
inline std::string first_difference(const train::TrainedTable& table, const std::vector<float>& got,
                                    const std::vector<float>& want) {
    if (got.size() != want.size() || got.size() != table.parameter_count()) return "sizes differ";
    size_t at = 0;
    for (const auto& t : table.tensors())
        for (size_t i = 0; i < t.elems(); ++i, ++at)
            if (std::memcmp(&got[at], &want[at], sizeof(float)) != 0)
                return t.key + " [" + std::to_string(i / t.cols) + ", " + std::to_string(i % t.cols) +
                       "]: " + std::to_string(got[at]) + ", wanted " + std::to_string(want[at]);
    return "";
}
inline std::string first_difference(const train::TrainedTable& table, const Outcome& got, const Outcome& want) {
    if (got.losses.size() != want.losses.size()) return "numbers of steps differ";
    for (size_t step = 0; step < want.losses.size(); ++step) {
        const std::string where = "step " + std::to_string(step) + ": ";
        if (std::memcmp(&got.losses[step], &want.losses[step], sizeof(double)) != 0)
            return where + "loss " + std::to_string(got.losses[step]) + ", wanted " + std::to_string(want.losses[step]);
        const std::string gradient = first_difference(table, got.grads[step], want.grads[step]);
        if (!gradient.empty()) return where + "gradient of " + gradient;
        if (std::memcmp(&got.grad_norms[step], &want.grad_norms[step], sizeof(float)) != 0)
            return where + "gradient norm " + std::to_string(got.grad_norms[step]) + ", wanted " +
                   std::to_string(want.grad_norms[step]);
    }
    for (const auto& [name, a, b] :
         {std::tuple("weight ", &got.weights, &want.weights), std::tuple("exp_avg of ", &got.exp_avg, &want.exp_avg),
          std::tuple("exp_avg_sq of ", &got.exp_avg_sq, &want.exp_avg_sq)})
        if (const std::string difference = first_difference(table, *a, *b); !difference.empty())
            return name + difference;
    return "";
}

// Delays of 0 to 5 ms at about every third call, on both streams.
inline std::function<void(Stream&)> tiny_delays(unsigned seed) {
    auto random = std::make_shared<std::mt19937>(seed);
    return [random](Stream& stream) {
        if ((*random)() % 3 == 0) delay_async(static_cast<int>((*random)() % 5000), stream);
    };
}

// What build/train_gpt does with a command line, in this process.
struct Program {
    int code = 0;
    std::string out, error;
};
inline Program run_train_gpt(const std::vector<std::string>& arguments, data::StopToken stop, std::ostream& out) {
    std::vector<const char*> argv = {"train_gpt"};
    for (const auto& argument : arguments) argv.push_back(argument.c_str());
    std::ostringstream error;
    try {
        train::TrainOptions options;
        if (const auto code =
                train::parse_train_options(options, static_cast<int>(argv.size()), argv.data(), out, error))
            return {*code, "", error.str()};
        return {train::train(options, stop, out), "", error.str()};
    } catch (const std::exception& e) {
        return {1, "", e.what()};
    }
}
// Requested from the start.
inline data::StopToken stop_at_once() {
    static const std::atomic<bool> flag{true};
    return data::StopToken(flag);
}
inline Program run_train_gpt(const std::vector<std::string>& arguments) {
    std::ostringstream out;
    Program program = run_train_gpt(arguments, {}, out);
    program.out = out.str();
    return program;
}

// Random tokens of the vocabulary. `masked`: this many of each document's 10 tokens have no target; < 0: no mask file.
inline void write_tiny_tokens(const std::filesystem::path& path, int V, size_t n, unsigned seed, int masked = -1) {
    std::mt19937 random(seed);
    std::vector<uint32_t> tokens(n);
    for (uint32_t& token : tokens) token = static_cast<uint32_t>(random() % static_cast<unsigned>(V));
    std::vector<uint8_t> mask;
    for (size_t i = 0; masked >= 0 && i < n; ++i)
        mask.push_back(static_cast<uint8_t>((i % 10 == 0 ? data::kMaskDocumentStart : 0) |
                                            (static_cast<int>(i % 10) >= masked ? data::kMaskTarget : 0)));
    write_token_file(path, tokens, mask);
}

}  // namespace slab::test
