// What a row of tokens says, for people: its text with what is trained on marked, so that a wrong template or mask is
// seen before a night of training.
#pragma once

#include <cstddef>
#include <string>

#include "data/token_file.h"
#include "data/tokenizer/tokenizer.h"

namespace slab::data {

// Tokens [row * T, row * T + T) of the file, or up to its end, which must come later than row * T. Targets are green on
// a terminal (`colour`), else in [[ ]]; a line "--- next document ---" stands at boundaries; a row's filling is only
// counted. Control characters and broken UTF-8 become U+FFFD. Ends in a line end.
std::string preview_row(const TokenFile& file, size_t row, size_t T, const Tokenizer& tokenizer, bool colour);

// A line that says how targets are marked, and the first `rows` rows, or as many as there are; a stream's last one may
// be cut short.
std::string preview(const TokenFile& file, size_t rows, size_t T, const Tokenizer& tokenizer, bool colour);

}  // namespace slab::data
