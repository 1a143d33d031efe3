// What goes wrong beside a run, and must not cost its steps.
#pragma once

#include <stdexcept>

namespace slab::train {

// A log or a trace that cannot be written, or data that can no longer be read: worth ending a run for, but not worth
// its steps, which are saved first.
struct SideFileError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

}  // namespace slab::train
