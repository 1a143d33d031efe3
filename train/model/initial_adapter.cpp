// Each number is drawn for its tensor and element, so a start depends on the seed and the table alone.
#include "train/model/initial_adapter.h"

#include <cmath>

#include "kernels/philox.h"
#include "train/spec/trained_table.h"

namespace slab::train {

std::vector<float> initial_adapter(const TrainedTable& table, uint64_t seed) {
    std::vector<float> packed;
    packed.reserve(table.parameter_count());
    for (size_t index = 0; index < table.tensors().size(); ++index) {
        const TrainedTensor& t = table.at(index);
        const float bound = 1.0f / std::sqrt(static_cast<float>(t.cols));
        for (size_t i = 0; i < t.elems(); ++i) {
            const PhiloxOut out = philox(seed, static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32),
                                         static_cast<uint32_t>(index), philox_use::initial_adapter);
            packed.push_back(t.kind == TrainedKind::lora_A ? bound * (2 * uniform01(out.v[0]) - 1) : 0.0f);
        }
    }
    return packed;
}

}  // namespace slab::train
