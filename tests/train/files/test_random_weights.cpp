// Weights drawn for --from-scratch: every tensor has numbers of its own, with the spread that GPT-2 begins with.
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "tests/tiny_model.h"

using namespace slab;
using namespace slab::train;
using namespace slab::test;

namespace {

std::map<std::string, std::vector<float>> drawn(uint64_t seed, const ModelConfig& config) {
    ThreadPool pool(2);
    BaseWeights weights = BaseWeights::random(seed, config);
    std::map<std::string, std::vector<float>> tensors;
    for (const TensorSpec& spec : all_tensors(config)) {
        std::vector<float> values(spec.elems());
        weights.read(spec, values.data(), pool, {});
        size_t at = 0;
        for (const TensorPart& part : spec.parts) {
            const auto begin = values.begin() + static_cast<std::ptrdiff_t>(at);
            at += part.rows * spec.cols;
            tensors[part.key] = {begin, values.begin() + static_cast<std::ptrdiff_t>(at)};
        }
    }
    return tensors;
}

double deviation(const std::vector<float>& values) {
    double squares = 0;
    for (const float v : values) squares += static_cast<double>(v) * v;
    return std::sqrt(squares / static_cast<double>(values.size()));
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("random weights: tensors differ, norms are 1, biases 0, and what ends a branch is narrower") {
        ModelConfig config = tiny_config("llama", 2);
        config.C = 96;
        config.I = 96;
        config.NH = config.NKV = 16;
        const auto tensors = drawn(7, config);
        const std::string first = "model.layers.0.", second = "model.layers.1.";
        CHECK(tensors.at(first + "self_attn.q_proj.weight") != tensors.at(second + "self_attn.q_proj.weight"));
        CHECK(tensors.at(first + "mlp.gate_proj.weight") != tensors.at(first + "mlp.up_proj.weight"));
        CHECK(tensors.at(first + "mlp.gate_proj.weight") != drawn(8, config).at(first + "mlp.gate_proj.weight"));
        CHECK(deviation(tensors.at(first + "mlp.gate_proj.weight")) == doctest::Approx(0.02).epsilon(0.05));
        for (const char* ends_branch : {"mlp.down_proj.weight", "self_attn.o_proj.weight"})
            CHECK(deviation(tensors.at(first + ends_branch)) ==
                  doctest::Approx(0.02 / std::sqrt(2.0 * 2)).epsilon(0.05));
        for (const float v : tensors.at(first + "input_layernorm.weight")) CHECK(v == 1);
        for (const float v : tensors.at(first + "mlp.down_proj.bias")) CHECK(v == 0);
    }
}
