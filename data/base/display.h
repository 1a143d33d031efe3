// Numbers and foreign text as screens show them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace slab::data {

std::string count_text(uint64_t n);     // "2,310"
std::string number_text(double value);  // "0.1": the fewest digits that read back as this number
std::string number_text(float value);   // "0.1", where the float as a double would be 0.10000000149011612
// "1 record", "2,310 records"
std::string counted(uint64_t n, std::string_view what);
// Foreign text for an error message: in quotes, control bytes as \xNN, and cut when long.
std::string quote(std::string_view text);
// Text that is safe to print on a terminal. Control characters, except line ends and tabs, and bytes that are not UTF-8
// become U+FFFD.
std::string printable_text(std::string_view text);

}  // namespace slab::data
