// The rate of the link to the device, measured with a slab.
#pragma once

#include "train/model/model.h"

namespace slab::train {

// GB/s that copies to the device reach alone. Copies one slab as training does, staged or not, into activation memory,
// or as much of it as fits there. Blocks; between steps only. The model must stream a layer.
double measure_link_gbps(Model& model);

}  // namespace slab::train
