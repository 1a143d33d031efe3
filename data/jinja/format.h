// Python's two ways to format: "%s" % values, and "{}".format(values). Of their conversions those that make sense in a
// chat template; the others are refused by name.
#pragma once

#include "data/jinja/arguments.h"
#include "data/jinja/text.h"

namespace slab::data::jinja {

class Evaluator;

Value printf_format(Evaluator& evaluator, const Value& format, const Value& values);
Value brace_format(Evaluator& evaluator, const Value& format, const Arguments& arguments);

// With &, <, >, ' and " as HTML writes them.
void add_escaped(TextBuilder& out, const Value& text);

}  // namespace slab::data::jinja
