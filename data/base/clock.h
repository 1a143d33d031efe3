// Durations for reports. They use the steady clock: setting the machine's time changes no duration.
#pragma once

#include <chrono>

namespace slab::data {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace slab::data
