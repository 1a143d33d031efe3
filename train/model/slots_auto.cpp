#include "train/model/slots_auto.h"

#include <algorithm>

namespace slab::train {

ModelLayout make_layout_with_most_slots(const ModelConfig& config, ModelSettings settings, size_t reserved_bytes,
                                        size_t budget_bytes) {
    ModelLayout layout = make_layout(config, settings);
    if (layout.ring.streamed().empty()) return layout;
    const size_t without_ring = reserved_bytes + layout.device_bytes() - layout.ring.slots() * layout.ring.slot_bytes();
    size_t slots = layout.ring.streamed().size();
    if (budget_bytes != 0)
        slots = budget_bytes <= without_ring
                    ? 0
                    : std::min(slots, (budget_bytes - without_ring) / layout.ring.slot_bytes());
    settings.num_slots = std::max(settings.num_slots, static_cast<int>(slots));
    return make_layout(config, settings);
}

}  // namespace slab::train
