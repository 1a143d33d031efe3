// A template's text in tokens, with white space taken away where Jinja does.
//
// As transformers sets Jinja up: trim_blocks takes the line's end after a statement, lstrip_blocks the blanks before a
// statement that begins its line. One line's end at the end of the template goes. \r\n and \r become \n.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/jinja/error.h"

namespace slab::data::jinja {

struct Token {
    enum class Kind : uint8_t {
        data,  // text outside of tags
        begin_print,
        end_print,
        begin_statement,
        end_statement,
        name,
        text,  // a literal with its quotes
        integer,
        number,
        sign,  // an operator, bracket or comma
        end,   // of the template
    };
    Kind kind;
    uint32_t at;            // byte in the source
    std::string_view text;  // as the source has it
};

// A Problem at a byte of the source.
struct SourceProblem {
    Problem problem;
    size_t at;
};

// \r\n and \r as \n, without the last line's end.
std::string normalized_source(std::string_view source);

// The tokens point into `source`, which is normalized. The last one is Kind::end. Throws a SourceProblem.
std::vector<Token> tokens_of(std::string_view source);

// "line 3, column 5", columns in characters.
std::string place_in(std::string_view source, size_t at);

}  // namespace slab::data::jinja
