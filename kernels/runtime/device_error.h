// The device, or the machine around it, failed or refused: CUDA, cuBLAS, memory beyond the budget, page-locking, host
// memory or threads that the system does not give. Also thrown for an error inside work on a stream.
#pragma once

#include <stdexcept>

namespace slab {

struct DeviceError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

}  // namespace slab
