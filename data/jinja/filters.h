// Jinja's filters, and transformers' tojson. A name that Jinja has and this has not is unknown.
#pragma once

#include <string_view>

#include "data/jinja/tree.h"

namespace slab::data::jinja {

Filter filter_named(std::string_view name);  // null: unknown

struct NamedFilter {
    std::string_view name;
    Filter filter;
};
// The parts of the table. All are terminated by an entry without a name.
extern const NamedFilter kTextFilters[];
extern const NamedFilter kListFilters[];
extern const NamedFilter kLazyFilters[];

}  // namespace slab::data::jinja
