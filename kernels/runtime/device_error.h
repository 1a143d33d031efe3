// A device that fails or refuses: an error of CUDA or cuBLAS, memory beyond the budget, page-locking that is refused.
#pragma once

#include <stdexcept>

namespace slab {

struct DeviceError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

}  // namespace slab
