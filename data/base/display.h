// Numbers and foreign text as screens show them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace slab::data {

std::string count_text(uint64_t n);     // "2,310"
std::string number_text(double value);  // "0.1": the fewest digits that read back as this number
std::string number_text(float value);   // the same of a float: "0.1", where its double would be 0.10000000149011612
// "1 record", "2,310 records"
std::string counted(uint64_t n, std::string_view what);
// Foreign text for an error message: in quotes, control bytes written as \xNN, the end of long text left out.
std::string quote(std::string_view text);
// For a terminal: control characters other than line ends and tabs, which could give it orders, and bytes that are no
// UTF-8 each become U+FFFD.
std::string printable_text(std::string_view text);

}  // namespace slab::data
