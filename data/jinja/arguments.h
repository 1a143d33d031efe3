// Arguments of a call, and how they are bound to names: by position first, then by name, as Python does.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "data/jinja/value.h"

namespace slab::data::jinja {

struct Keyword {
    std::string_view name;
    Value value;
};

struct Arguments {
    const Value* values = nullptr;  // [count]
    size_t count = 0;
    const Keyword* keywords = nullptr;  // [keyword_count]
    size_t keyword_count = 0;

    Arguments after(size_t n) const { return {values + n, count - n, keywords, keyword_count}; }
    const Value* keyword(std::string_view name) const;
};

// One pointer for each name, null where nothing was given. The first `required` must be given. Throws a Problem that
// says what `of` takes.
template <size_t N>
std::array<const Value*, N> bind(const Arguments& arguments, const char* of, const char* const (&names)[N],
                                 size_t required = 0);
void check_no_arguments(const Arguments& arguments, const char* of);

// A whole number; a Problem else.
int64_t whole_of(const Value& value, const char* what);
std::string_view text_of(const Value& value, const char* what);

// --- inline
void bind_into(const Arguments& arguments, const char* of, const char* const* names, size_t count, size_t required,
               const Value** into);

template <size_t N>
std::array<const Value*, N> bind(const Arguments& arguments, const char* of, const char* const (&names)[N],
                                 size_t required) {
    std::array<const Value*, N> bound{};
    bind_into(arguments, of, names, N, required, bound.data());
    return bound;
}

}  // namespace slab::data::jinja
