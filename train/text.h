// Numbers and foreign text as screens show them: GiB for memory, GB/s for links, thousands separated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace slab::train {

std::string memory_text(size_t bytes);      // "10.8 GiB", "3.2 MiB"
std::string bytes_text(size_t bytes);       // exact, with separators: "1,234,567 bytes"
std::string count_text(uint64_t n);         // "2,310"
std::string duration_text(double seconds);  // "0:41:10"
// For a terminal: control characters other than line ends and tabs, which could give it orders, and bytes that are no
// UTF-8 each become U+FFFD.
std::string printable_text(std::string_view text);
std::string format_text(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace slab::train
