// Values as text: Python's str() and repr(), and json.dumps() as transformers' tojson calls it.
//
// Texts keep their origins; what is put around them is the template's.
#pragma once

#include <string>

#include "data/jinja/text.h"

namespace slab::data::jinja {

std::string number_text(double number);  // Python's repr: the fewest digits that read back the same

void add_str(TextBuilder& out, const Value& value);
void add_repr(TextBuilder& out, const Value& value, int depth = 0);

struct JsonStyle {
    bool only_ascii = false;
    bool has_indent = false;  // else all on one line
    std::string indent;       // of one level
    std::string between_items = ", ", after_key = ": ";
    bool sort_keys = false;
};
void add_json(TextBuilder& out, const Value& value, const JsonStyle& style, int depth = 0);

}  // namespace slab::data::jinja
