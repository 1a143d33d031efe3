// A plan and a source that disagree would load the wrong bytes, or block the host silently.
#include "offload/slab_source.h"

#include <stdexcept>
#include <string>

namespace slab::offload {

void check_plan(const RingPlan& plan, const SlabSource& source) {
    if (source.layers() != plan.layers())
        throw std::invalid_argument("ring plan: of " + std::to_string(plan.layers()) + " layers; wanted " +
                                    std::to_string(source.layers()) + ", as the source has");
    for (int layer = 0; layer < plan.layers(); ++layer) {
        const std::string name = "layer " + std::to_string(layer);
        if (source.stored_bytes(layer) != plan.stored_bytes(layer))
            throw std::invalid_argument("ring plan: " + std::to_string(plan.stored_bytes(layer)) + " bytes for " +
                                        name + "; wanted " + std::to_string(source.stored_bytes(layer)) +
                                        ", as the source stores");
        if (plan.streams(layer) && !source.asynchronous(layer))
            throw std::invalid_argument("ring plan: streams " + name +
                                        "; wanted it resident, its source has no host copy and would block the host");
    }
}

}  // namespace slab::offload
