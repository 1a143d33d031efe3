// Rows of tokens as text, with the targets marked: a wrong template or mask is seen before a night of training.
#pragma once

#include <cstddef>
#include <string>

#include "data/token_file.h"
#include "data/tokenizer/tokenizer.h"

namespace slab::data {

// Tokens [row * T, row * T + T) of the file, or up to its end, which must be beyond row * T. Targets are green with
// `colour`, else in [[ ]]. A line "--- next document ---" separates documents. Padding is only counted. Control
// characters and broken UTF-8 become U+FFFD. Ends in a line end.
std::string preview_row(const TokenFile& file, size_t row, size_t T, const Tokenizer& tokenizer, bool colour);

// A line that explains the marks, then the first `rows` rows, or all if there are fewer. A stream's last row may be
// shorter.
std::string preview(const TokenFile& file, size_t rows, size_t T, const Tokenizer& tokenizer, bool colour);

}  // namespace slab::data
