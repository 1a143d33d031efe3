// Whether bytes are the text that was meant: UTF-8, and not a table or a page under a text's name.
//
// Bytes that are no UTF-8 become tokens of their own, so text in another encoding would train, on something that no
// user will type. A text with a few broken bytes is taken, and said.
#pragma once

#include <string>
#include <string_view>

namespace slab::data {

// Throws UserError when `text` is of another kind. Such kinds are foreign files (foreign_file.h), UTF-16, tables and
// JSON lists of records, and other encodings: more than one byte in 1000 is no UTF-8. `name` is the text's in errors.
// Returns a sentence about what is unusual and taken as it is, or "".
std::string check_text(std::string_view text, const std::string& name);

}  // namespace slab::data
