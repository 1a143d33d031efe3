// Binary searches in unicode_tables.h.
#include "data/jinja/unicode.h"

#include <algorithm>
#include <iterator>

#include "data/jinja/unicode_tables.h"

namespace slab::data::jinja {
namespace {

using namespace unicode_tables;

template <size_t N>
bool within(const CharRange (&ranges)[N], uint32_t c) {
    const CharRange* const found = std::lower_bound(std::begin(ranges), std::end(ranges), c,
                                                    [](const CharRange& r, uint32_t x) { return r.last < x; });
    return found != std::end(ranges) && found->first <= c;
}

template <size_t N>
const CaseRange* changed(const CaseRange (&ranges)[N], uint32_t c) {
    const CaseRange* const found = std::lower_bound(std::begin(ranges), std::end(ranges), c,
                                                    [](const CaseRange& r, uint32_t x) { return r.last < x; });
    const bool has = found != std::end(ranges) && found->first <= c && (c - found->first) % found->step == 0;
    return has ? found : nullptr;
}

template <size_t N>
const Special* special(const Special (&specials)[N], uint32_t c) {
    const Special* const found = std::lower_bound(std::begin(specials), std::end(specials), c,
                                                  [](const Special& s, uint32_t x) { return s.from < x; });
    return found != std::end(specials) && found->from == c ? found : nullptr;
}

uint32_t ascii_in_case(uint32_t c, Case wanted) {
    if (wanted == Case::lower) return c >= 'A' && c <= 'Z' ? c + 32 : c;
    return c >= 'a' && c <= 'z' ? c - 32 : c;
}

}  // namespace

void add_in_case(TextBuilder& out, uint32_t c, uint32_t origin, Case wanted) {
    if (c < 0x80) return out.add_char(ascii_in_case(c, wanted), origin);
    const Special* several = nullptr;
    const CaseRange* one = nullptr;
    if (wanted == Case::lower) {
        if (c == 0x3a3)
            refuse("puts a Greek capital sigma into lower case", "text without it",
                   "its lower case depends on its place in the word, which is not implemented");
        several = special(kLowerSpecials, c);
        one = changed(kLower, c);
    } else {
        if (wanted == Case::title) {
            several = special(kTitleSpecials, c);
            one = changed(kTitle, c);
        }
        if (several == nullptr && one == nullptr) {
            several = special(kUpperSpecials, c);
            one = changed(kUpper, c);
        }
    }
    if (several != nullptr) {
        for (const uint32_t to : several->to)
            if (to != 0) out.add_char(to, origin);
        return;
    }
    out.add_char(one == nullptr ? c : static_cast<uint32_t>(static_cast<int64_t>(c) + one->delta), origin);
}

Value in_case(const Value& text, Case wanted, TextBuilder& scratch, Arena& arena) {
    scratch.clear();
    for (CharReader reader(text); !reader.at_end();) {
        const uint32_t c = reader.next();
        add_in_case(scratch, c, reader.origin(), wanted);
    }
    Value changed = scratch.value(arena);
    changed.is_safe = text.is_safe;
    return changed;
}

Value capitalized(const Value& text, TextBuilder& scratch, Arena& arena) {
    scratch.clear();
    for (CharReader reader(text); !reader.at_end();) {
        const bool is_first = reader.at() == 0;
        const uint32_t c = reader.next();
        add_in_case(scratch, c, reader.origin(), is_first ? Case::title : Case::lower);
    }
    Value changed = scratch.value(arena);
    changed.is_safe = text.is_safe;
    return changed;
}

bool is_cased_ascii(uint32_t c) {
    if (c >= 0x80)
        refuse("asks for the case of text that is not ASCII", "ASCII text", "islower, isupper and title know no other");
    return (c | 32) >= 'a' && (c | 32) <= 'z';
}

bool is_alphabetic(uint32_t c) {
    return c < 0x80 ? (c | 32) >= 'a' && (c | 32) <= 'z' : within(kAlphabetic, c);
}
bool is_decimal(uint32_t c) {
    return c < 0x80 ? c >= '0' && c <= '9' : within(kDecimal, c);
}
bool is_digit(uint32_t c) {
    return is_decimal(c) || (c >= 0x80 && within(kOtherDigit, c));
}
bool is_numeric(uint32_t c) {
    return is_digit(c) || (c >= 0x80 && within(kOtherNumeric, c));
}
bool is_printable(uint32_t c) {
    return c < 0x80 ? c >= 0x20 && c != 0x7f : !within(kUnprintable, c);
}

}  // namespace slab::data::jinja
