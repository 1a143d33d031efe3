// Methods of texts, lists and dicts, as Python has them. Those that would change a list or dict are refused, as in the
// immutable sandbox; those of Python that no template was seen to call are refused by name.
#pragma once

#include <string_view>

#include "data/jinja/arguments.h"
#include "data/jinja/value.h"

namespace slab::data::jinja {

class Evaluator;

// Python has a method, or an attribute of a number, of that name; it hides a dict's key of that name.
bool has_method(const Value& object, std::string_view name);
bool changes_its_object(const Value& object, std::string_view name);
Value call_method(Evaluator& evaluator, const Value& object, std::string_view name, const Arguments& arguments);

// text_methods.cpp
bool has_text_method(std::string_view name);
Value call_text_method(Evaluator& evaluator, const Value& text, std::string_view name, const Arguments& arguments);

// Also filters of the same name. `chars` null: white space. Sides: begin, end.
Value stripped(Evaluator& evaluator, const Value& text, const Value* chars, bool at_begin, bool at_end);
// At most `max` times, all when negative.
Value replaced(Evaluator& evaluator, const Value& text, const Value& old, const Value& with, int64_t max);
Value lines_of(Evaluator& evaluator, const Value& text, bool keep_ends);
Value padded(Evaluator& evaluator, const Value& text, int64_t width, std::string_view fill, int before_of_two);
bool is_upper(std::string_view text);
bool is_lower(std::string_view text);

}  // namespace slab::data::jinja
