"""Writes data/jinja/unicode_tables.h: upper, lower and title case, and the classes of characters that str's methods ask for.

    python make_unicode_tables.py data/jinja/unicode_tables.h

Everything is asked of the Python that runs this, so what templates render agrees with it.
"""
import sys
import unicodedata

CHARACTERS = [chr(c) for c in range(0x80, 0x110000) if not 0xD800 <= c < 0xE000]

HEAD = """// Upper, lower and title case of characters from U+0080, and classes of them, as Python's str knows them.
//
// Written by dev/reference/make_unicode_tables.py from Unicode %s. Sorted by character; ASCII is computed instead.
#pragma once

#include <cstdint>

namespace slab::data::jinja::unicode_tables {
// clang-format off

// Characters first, first + step ... last become themselves plus delta.
struct CaseRange { uint32_t first, last, step; int32_t delta; };
// A character that becomes several; 0 where there are fewer.
struct Special { uint32_t from, to[3]; };
struct CharRange { uint32_t first, last; };
// kTitle holds only what kUpper would make another character of.
"""


def rows(kind, name, items):
    lines, line = [], "   "
    for item in items:
        if len(line) + len(item) + 2 > 120:
            lines.append(line)
            line = "   "
        line += f" {item},"
    return f"\ninline constexpr {kind} {name}[] = {{\n" + "\n".join(lines + [line]) + "\n};\n"


def case_ranges(change, unless):
    """Of the characters that `unless` would not change in the same way."""
    pairs = [(ord(c), ord(change(c)) - ord(c)) for c in CHARACTERS if change(c) != unless(c) and len(change(c)) == 1]
    ranges = []
    for code, delta in pairs:
        if ranges and ranges[-1][3] == delta:
            first, last, step, _ = ranges[-1]
            if code - last <= 2 and (first == last or code - last == step):
                ranges[-1] = (first, code, code - last, delta)
                continue
        ranges.append((code, code, 1, delta))
    return [f"{{0x{a:x},0x{b:x},{s},{d}}}" for a, b, s, d in ranges]


def specials(change, unless):
    found = [(ord(c), [ord(x) for x in change(c)]) for c in CHARACTERS if change(c) != unless(c) and len(change(c)) > 1]
    return [f"{{0x{c:x},{{{','.join(f'0x{x:x}' for x in (to + [0, 0])[:3])}}}}}" for c, to in found]


def ranges(test):
    found = []
    for c in map(ord, filter(test, CHARACTERS)):
        if found and found[-1][1] == c - 1:
            found[-1][1] = c
        else:
            found.append([c, c])
    return [f"{{0x{a:x},0x{b:x}}}" for a, b in found]


def main():
    text = HEAD % unicodedata.unidata_version
    for name, change, unless in (("Upper", str.upper, str), ("Lower", str.lower, str), ("Title", str.title, str.upper)):
        text += rows("CaseRange", f"k{name}", case_ranges(change, unless))
        text += rows("Special", f"k{name}Specials", specials(change, unless))
    for name, test in (("Alphabetic", str.isalpha), ("Decimal", str.isdecimal),
                       ("OtherDigit", lambda c: c.isdigit() and not c.isdecimal()),
                       ("OtherNumeric", lambda c: c.isnumeric() and not c.isdigit()),
                       ("Unprintable", lambda c: not c.isprintable())):
        text += rows("CharRange", f"k{name}", ranges(test))
    text += "\n// clang-format on\n}  // namespace slab::data::jinja::unicode_tables\n"
    open(sys.argv[1], "w", encoding="utf-8").write(text)


if __name__ == "__main__":
    main()
