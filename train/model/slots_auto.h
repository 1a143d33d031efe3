// --num-slots auto: as many slots as the memory budget holds. More slots keep more layers on the device, so that a step
// copies less.
#pragma once

#include <cstddef>

#include "train/model/model_layout.h"

namespace slab::train {

// reserved_bytes: device memory of driver and libraries. budget_bytes: 0 is no limit, which gives a slot to every
// streamed layer. settings.num_slots is the least: a layout that does not fit with it is refused by check_budget().
ModelLayout make_layout_with_most_slots(const ModelConfig& config, ModelSettings settings, size_t reserved_bytes,
                                        size_t budget_bytes);

}  // namespace slab::train
