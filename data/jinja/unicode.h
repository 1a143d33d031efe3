// Upper and lower case, classes of characters: what Python's str methods know of Unicode.
#pragma once

#include <cstdint>

#include "data/jinja/text.h"

namespace slab::data::jinja {

enum class Case { upper, lower, title };

// Appends the character in another case, which may be several characters.
void add_in_case(TextBuilder& out, uint32_t code_point, uint32_t origin, Case wanted);

Value in_case(const Value& text, Case wanted, TextBuilder& scratch, Arena& arena);  // upper or lower
Value capitalized(const Value& text, TextBuilder& scratch, Arena& arena);           // the first title, the rest lower

bool is_alphabetic(uint32_t c);
bool is_decimal(uint32_t c);
bool is_digit(uint32_t c);
bool is_numeric(uint32_t c);
bool is_printable(uint32_t c);
// For ASCII only; others throw a Problem.
bool is_cased_ascii(uint32_t c);

}  // namespace slab::data::jinja
