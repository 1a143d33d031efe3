#!/usr/bin/env python3
"""Writes data/tokenizer/nfc_tables.h: what normal form C needs to know of each character.

The decompositions are Python's (unicodedata). The `tokenizers` package tells which of them count, which compose again, and
the combining classes, since ids must be its ids. Its tables are older than Python's: newer characters stay as they are.
Run it with that package installed and look at the difference that git shows.
"""
import sys
import unicodedata

from tokenizers import normalizers

NFC, NFD = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str
CHARACTERS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
HANGUL = range(0xAC00, 0xD7A4)


def combining_classes():
    """Two marks change places when the second's class is lower and not 0; so a mark's neighbours tell its class."""
    lowest, highest = "\u0334", "\u0345"  # classes 1 and 240
    representatives = {}
    for c in CHARACTERS:  # of those marks that `tokenizers` knows too
        if c == ord(highest) or NFD("a" + highest + chr(c)) == "a" + chr(c) + highest:
            representatives.setdefault(unicodedata.combining(chr(c)), chr(c))
    known = sorted(representatives)
    classes = {}
    for c in CHARACTERS:
        mark = chr(c)
        if NFD(mark) != mark:
            continue
        moves_left = NFD("a" + highest + mark) == "a" + mark + highest and mark != highest
        moves_right = NFD("a" + mark + lowest) == "a" + lowest + mark and mark != lowest
        if not moves_left and not moves_right:
            continue
        stays_after = [k for k in known if NFD("a" + representatives[k] + mark) == "a" + representatives[k] + mark]
        classes[c] = max(stays_after, default=known[0])
    return classes


def decompositions():
    """(composed, first, second or 0, composes again), one step each."""
    table = []
    for c in CHARACTERS:
        steps = unicodedata.decomposition(chr(c))
        if not steps or steps.startswith("<") or NFD(chr(c)) == chr(c):
            continue
        parts = [int(part, 16) for part in steps.split()] + [0]
        table.append((c, parts[0], parts[1], NFC(NFD(chr(c))) == chr(c)))
    expansion = {c: (a, b) for c, a, b, _ in table}

    def expand(c):
        if c not in expansion:
            return chr(c)
        a, b = expansion[c]
        return expand(a) + (expand(b) if b else "")

    for c in CHARACTERS:
        if c not in HANGUL and sorted(expand(c)) != sorted(NFD(chr(c))):
            sys.exit(f"U+{c:04X} decomposes otherwise in `tokenizers`")
    return table


def ranges(values):
    """Runs of neighbours with the same value, from a dict."""
    runs = []
    for c in sorted(values):
        if runs and runs[-1][1] == c - 1 and runs[-1][2] == values[c]:
            runs[-1][1] = c
        else:
            runs.append([c, c, values[c]])
    return runs


def rows(entries, width=118):
    lines, line = [], "   "
    for entry in entries:
        if len(line) + len(entry) + 2 > width:
            lines.append(line)
            line = "   "
        line += " " + entry + ","
    return "\n".join(lines + [line])


def main(path):
    classes, table = combining_classes(), decompositions()
    uncertain = dict.fromkeys(classes, 1)
    uncertain |= {c: 1 for c, _, _, composes in table if not composes}
    uncertain |= {second: 1 for _, _, second, composes in table if composes}
    uncertain |= dict.fromkeys([*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)], 1)  # Hangul vowels and finals
    with open(path, "w", encoding="utf-8") as out:
        out.write(f"""// Unicode's data for normal form C. Hangul syllables are computed instead.
//
// Written by dev/reference/make_nfc_tables.py from Unicode's data as `tokenizers` has them. Sorted by character.
#pragma once

#include <cstdint>

namespace slab::data::nfc_tables {{
// clang-format off

// Characters with a combining class above 0.
struct ClassRange {{ uint32_t first, last; uint8_t combining_class; }};
inline constexpr ClassRange kClasses[] = {{
{rows(f"{{0x{a:x},0x{b:x},{k}}}" for a, b, k in ranges(classes))}
}};

// Characters before which normal form C may change something; before all others a text may be cut.
struct Range {{ uint32_t first, last; }};
inline constexpr Range kUncertain[] = {{
{rows(f"{{0x{a:x},0x{b:x}}}" for a, b, _ in ranges(uncertain))}
}};

// One step of decomposition: `second` is 0 where one character is only another spelling of `first`.
struct Decomposition {{ uint32_t composed, first, second; bool composes; }};
inline constexpr Decomposition kDecompositions[] = {{
{rows(f"{{0x{c:x},0x{a:x},0x{b:x},{int(k)}}}" for c, a, b, k in table)}
}};

// clang-format on
}}  // namespace slab::data::nfc_tables
""")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: make_nfc_tables.py data/tokenizer/nfc_tables.h")
    main(sys.argv[1])
