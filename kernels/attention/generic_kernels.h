// A switch for tests: SLABSTREAM_GENERIC_KERNELS=1 in the environment keeps to the kernels that every card has.
#pragma once

#include <cstdlib>

namespace slab {

// Read once.
inline bool generic_kernels_forced() {
    static const bool forced = [] {
        const char* const value = std::getenv("SLABSTREAM_GENERIC_KERNELS");
        return value && value[0] == '1';
    }();
    return forced;
}

}  // namespace slab
