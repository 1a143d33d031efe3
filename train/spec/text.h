// Numbers and untrusted text for screens: GiB for memory, GB/s for links, thousands separated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "data/base/display.h"
#include "kernels/runtime/memory_account.h"

namespace slab::train {

using data::count_text;
using data::printable_text;
using slab::memory_text;

std::string bytes_text(size_t bytes);       // exact, with separators: "1,234,567 bytes"
std::string duration_text(double seconds);  // "0:41:10"
std::string sentence(std::string text);     // with a full stop, if it ends without one
std::string format_text(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace slab::train
