// Rows of tokens as text, with the targets marked: a wrong template or mask is seen before a night of training.
//
// A special token is shown as its spelling. Text of the same spelling has a backslash before it: \<|im_end|>.
#pragma once

#include <cstddef>
#include <string>

#include "data/token_file.h"
#include "data/tokenizer/tokenizer.h"

namespace slab::data {

struct PreviewStyle {
    bool colour = false;  // targets are green, else in [[ ]]
    bool ids = false;     // a line with each row's token ids, marked in the same way
};

// Tokens [row * T, row * T + T) of the file, or up to its end, which must be beyond row * T. A line
// "--- next document ---" separates documents. Padding is only counted. Control characters and broken UTF-8 become
// U+FFFD. Ends in a line end. has_spelled_out is set where text spells a special token.
std::string preview_row(const TokenFile& file, size_t row, size_t T, const Tokenizer& tokenizer,
                        const PreviewStyle& style, bool& has_spelled_out);

// Lines that explain the marks, then the first `rows` rows, or all if there are fewer. A stream's last row may be
// shorter.
std::string preview(const TokenFile& file, size_t rows, size_t T, const Tokenizer& tokenizer,
                    const PreviewStyle& style = {});

}  // namespace slab::data
