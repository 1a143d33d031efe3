// Failures of files beside a run that must not cost its steps.
#pragma once

#include "data/base/error.h"

namespace slab::train {

// A log or a trace cannot be written, or data can no longer be read. The run ends, and saves its steps first.
struct SideFileError : data::IoError {
    using data::IoError::IoError;
};

}  // namespace slab::train
