// Shapes of linear layers, written out by hand for models of odd sizes, and everything that derives from them.
#include "tests/tiny_model.h"
#include "train/spec/tensor_table.h"

using namespace slab;
using namespace slab::train;
using namespace slab::test;

namespace {

struct Shapes {
    const char* family;
    std::vector<std::pair<size_t, size_t>> linears;  // [N, K] of qkv, o, fc, down
};

const std::vector<Shapes>& shapes() {
    static const std::vector<Shapes> all = {{"gpt2", {{60, 20}, {20, 20}, {27, 20}, {20, 27}}},
                                            {"llama", {{30, 18}, {18, 18}, {46, 18}, {18, 23}}},
                                            {"qwen2", {{32, 16}, {16, 16}, {42, 16}, {16, 21}}},
                                            {"qwen3", {{48, 17}, {17, 24}, {38, 17}, {17, 19}}}};
    return all;
}

const TensorSpec* find(const std::vector<TensorSpec>& specs, Role role) {
    for (const auto& spec : specs)
        if (spec.role == role) return &spec;
    return nullptr;
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE(
        "tensor table: a linear layer's weight is [N, K], its bias [N], and its modules cover the outputs in order") {
        for (const auto& [family, linears] : shapes()) {
            CAPTURE(family);
            const ModelConfig config = tiny_config(family);
            const std::vector<TensorSpec> specs = layer_tensors(config, 3);
            for (int i = 0; i < kLinears; ++i) {
                CAPTURE(i);
                const Linear linear = static_cast<Linear>(i);
                const auto [N, K] = linears[static_cast<size_t>(i)];
                CHECK(shape_of(config, linear).N == N);
                CHECK(shape_of(config, linear).K == K);
                const TensorSpec* const weight = find(specs, roles_of(linear).weight);
                REQUIRE(weight);
                CHECK(weight->rows == N);
                CHECK(weight->cols == K);
                const TensorSpec* const bias = find(specs, roles_of(linear).bias);
                if (bias) CHECK(bias->rows == N);
                size_t col = 0, part = 0;
                for (const auto& module : linear_modules(config, 3)) {
                    if (module.linear != linear) continue;
                    CHECK(module.in == K);
                    CHECK(module.first_col == col);
                    REQUIRE(part < weight->parts.size());
                    CHECK(weight->parts[part].key == module.path + ".weight");
                    CHECK(weight->parts[part].rows == module.out);
                    if (bias) CHECK(bias->parts[part].key == module.path + ".bias");
                    col += module.out;
                    ++part;
                }
                CHECK(col == N);
                CHECK(part == weight->parts.size());
            }
        }
    }

    TEST_CASE("tensor table: norms start at one, biases at zero, and the ends of residual branches apart from others") {
        for (const auto& family : tiny_families())
            for (const auto& spec : all_tensors(tiny_config(family, 2))) {
                CAPTURE(family);
                CAPTURE(spec.name);
                const bool ends_branch = spec.name == "o.weight" || spec.name == "down.weight";
                CHECK(spec.init == (has(spec.name, ".bias")  ? Init::zero
                                    : has(spec.name, "norm") ? Init::one
                                    : ends_branch            ? Init::residual_normal
                                                             : Init::normal));
                CHECK(spec.decay == spec.matrix);
            }
    }
}
