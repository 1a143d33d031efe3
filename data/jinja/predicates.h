// Jinja's tests: `x is defined`, `x is divisibleby 3`. Called predicates, so as not to be taken for tests of this
// program.
#pragma once

#include <string_view>

#include "data/jinja/tree.h"

namespace slab::data::jinja {

Predicate predicate_named(std::string_view name);  // null: unknown

}  // namespace slab::data::jinja
