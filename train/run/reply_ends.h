// The tokens in which trained replies and texts end, found in the rows themselves.
//
// A model learns to end its turns in the token that its data ends them in, whatever made the data. Where the base's
// generation_config.json does not stop at it, other tools would generate on and on.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/token_file.h"
#include "data/tokenizer/tokenizer.h"

namespace slab::train {

struct ReplyEnd {
    uint32_t id;
    std::string text;  // its spelling: "<|im_end|>"
};

// The special tokens that end at least a tenth of the runs of targets, among the first 4 Mi tokens. White space after
// such a token counts as part of the end. Empty for a file without a mask, which shows no ends. `tokenizer` is asked
// for once, if there is a candidate that is not among `known`; it may return nullptr.
std::vector<ReplyEnd> reply_ends(const data::TokenFile& rows, const std::vector<int64_t>& known,
                                 const std::function<const data::Tokenizer*()>& tokenizer);

}  // namespace slab::train
