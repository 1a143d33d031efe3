// Sizes as users type them: "12G", "1.5GiB", "800M".
#pragma once

#include <cstddef>
#include <string>

namespace slab::data {

// In bytes. K, M, G and T are powers of 1024; "iB" or "B" may follow. Throws UserError naming `flag`.
size_t parse_size(const std::string& text, const std::string& flag);

}  // namespace slab::data
