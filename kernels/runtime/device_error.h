// A device, or the machine around it, that fails or refuses: an error of CUDA or cuBLAS, memory beyond the budget,
// page-locking that is refused, memory or threads that the system does not give. Also work on a stream that failed.
#pragma once

#include <stdexcept>

namespace slab {

struct DeviceError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

}  // namespace slab
