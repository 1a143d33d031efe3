// How one value of a format is shown: width, sign, precision and type, as both of Python's ways to format have them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "data/jinja/text.h"

namespace slab::data::jinja {

inline constexpr int64_t kMaxWidth = 1000;
inline constexpr int64_t kMaxPrecision = 100;

// [[fill]align][sign][#][0][width][,][.precision][type]
struct Spec {
    std::string fill = " ";
    char align = '\0';  // '<', '>', '^' or '=' (after the sign)
    char sign = '-';    // '+' and ' ' show plus signs too
    bool alternate = false, has_type = false;
    char separator = '\0';
    int64_t width = 0, precision = -1;
    char type = 's';
};

// Parses the part after the colon of "{:>5}". Throws a Problem.
Spec spec_of(std::string_view text);

// The number at text[at], which moves past its digits. Throws a Problem that names `what` when it is above `most`.
int64_t digits(std::string_view text, size_t& at, int64_t most, const char* what);

void add_number(TextBuilder& out, const Spec& spec, const Value& number);
void add_text(Arena& arena, TextBuilder& out, const Spec& spec, const Value& text);

}  // namespace slab::data::jinja
