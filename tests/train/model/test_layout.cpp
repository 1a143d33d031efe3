// Each tensor of a model has one place: the slab of its group, or the trained table.
#include "tests/tiny_model.h"

using namespace slab;
using namespace slab::train;
using namespace slab::test;

TEST_SUITE("cpu") {
    TEST_CASE("layout: each tensor is frozen in its group's slab or trained with all its parts, as the settings say") {
        for (const auto& family : tiny_families())
            for (const int freeze_layers : {-1, 0, 2, 5}) {  // -1: LoRA
                CAPTURE(family);
                CAPTURE(freeze_layers);
                const ModelConfig config = tiny_config(family);
                const ModelSettings settings = freeze_layers < 0 ? tiny_settings() : tiny_full_settings(freeze_layers);
                const ModelLayout layout = make_layout(config, settings);
                size_t frozen_elems = 0, trained_elems = 0;
                REQUIRE(layout.groups.size() == static_cast<size_t>(config.L) + 1);
                for (int l = -1; l < config.L; ++l) {
                    CAPTURE(l);
                    const TensorGroup& group = l < 0 ? layout.outside() : layout.layer(l);
                    for (const Placed& tensor : group.tensors) {
                        CAPTURE(tensor.spec.name);
                        const bool embedding =
                            tensor.spec.role == Role::token_embedding || tensor.spec.role == Role::position_embedding;
                        const bool trained =
                            freeze_layers == 0 || (freeze_layers > 0 && (l < 0 ? !embedding : l >= freeze_layers));
                        CHECK(group.find(tensor.spec.role) == &tensor);
                        REQUIRE(tensor.in_trained.has_value() == trained);
                        REQUIRE(tensor.in_slab.has_value() == !trained);
                        (trained ? trained_elems : frozen_elems) += tensor.spec.elems();
                        if (!trained) {
                            const auto& placed = group.slab.tensors().at(*tensor.in_slab);
                            CHECK(placed.name == tensor.spec.name);
                            CHECK(placed.bytes == tensor.spec.elems() * sizeof(real));
                            continue;
                        }
                        for (size_t p = 0; p < tensor.spec.parts.size(); ++p) {
                            const TrainedTensor& part = layout.trained.at(*tensor.in_trained + p);
                            CHECK(part.key == tensor.spec.parts[p].key);
                            CHECK(part.layer == l);
                            CHECK(part.kind == TrainedKind::base);
                        }
                    }
                }
                CHECK(frozen_elems + trained_elems == parameter_count(config));
                if (freeze_layers >= 0) CHECK(layout.trained.parameter_count() == trained_elems);
            }
    }

    TEST_CASE("layout: the A matrices of one linear layer are one matrix, and each module's A and B have its shapes") {
        const ModelLayout layout = make_layout(tiny_config("llama"), tiny_settings());
        const auto& adapters = layout.layer(2).adapters;
        REQUIRE(adapters.size() == 7);
        for (size_t i = 0; i < adapters.size(); ++i) {
            const auto& [module, A, B] = adapters[i];
            CAPTURE(module.path);
            const TrainedTensor &a = layout.trained.at(A), &b = layout.trained.at(B);
            CHECK(a.kind == TrainedKind::lora_A);
            CHECK(b.kind == TrainedKind::lora_B);
            CHECK(has(a.key, module.path + ".lora_A."));
            CHECK(has(b.key, module.path + ".lora_B."));
            CHECK(a.rows == 3);
            CHECK(a.cols == module.in);
            CHECK(b.rows == module.out);
            CHECK(b.cols == 3);
            if (i > 0 && adapters[i - 1].module.linear == module.linear) {
                const TrainedTensor& before = layout.trained.at(adapters[i - 1].A);
                CHECK(a.offset_elems == before.offset_elems + before.elems());
            }
        }
    }
}
