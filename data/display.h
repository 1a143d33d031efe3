// Numbers and foreign text as screens show them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace slab::data {

std::string count_text(uint64_t n);  // "2,310"
// "1 record", "2,310 records"
std::string counted(uint64_t n, std::string_view what);
// For a terminal: control characters other than line ends and tabs, which could give it orders, and bytes that are no
// UTF-8 each become U+FFFD.
std::string printable_text(std::string_view text);

}  // namespace slab::data
