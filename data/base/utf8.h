// UTF-8, one character at a time: what is valid, where characters begin, which of them are white space.
//
// Valid as Unicode and PCRE2 define it: no overlong forms, no surrogates, nothing above U+10FFFF. Invariant: a prefix
// measured by valid_utf8_bytes() may be given to PCRE2 without PCRE2's own check.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace slab::data {

struct Utf8Char {
    uint32_t code_point = 0;
    uint32_t bytes = 0;  // 0: there is no valid character
};

// The character that begins at text[at]; at < text.size().
inline Utf8Char utf8_char_at(std::string_view text, size_t at) {
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
    const uint32_t first = byte(0);
    if (first < 0x80) return {first, 1};
    if (first < 0xc2 || first > 0xf4) return {};
    const uint32_t length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    if (text.size() - at < length) return {};
    uint32_t code_point = first & (0x7f >> length);
    for (uint32_t i = 1; i < length; ++i) {
        if ((byte(i) & 0xc0) != 0x80) return {};
        code_point = code_point << 6 | (byte(i) & 0x3f);
    }
    const bool overlong = (length == 3 && code_point < 0x800) || (length == 4 && code_point < 0x10000);
    const bool surrogate = code_point >= 0xd800 && code_point < 0xe000;
    if (overlong || surrogate || code_point > 0x10ffff) return {};
    return {code_point, length};
}

// Length of the longest ASCII prefix in bytes, eight at a time.
inline size_t ascii_bytes(std::string_view text) {
    size_t at = 0;
    uint64_t eight;
    while (text.size() - at >= sizeof eight) {
        std::memcpy(&eight, text.data() + at, sizeof eight);
        if (eight & 0x8080808080808080u) break;
        at += sizeof eight;
    }
    while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) ++at;
    return at;
}

// Length of the longest valid prefix in bytes.
inline size_t valid_utf8_bytes(std::string_view text) {
    size_t at = 0;
    while (at < text.size()) {
        at += ascii_bytes(text.substr(at));
        if (at == text.size()) break;
        const uint32_t bytes = utf8_char_at(text, at).bytes;
        if (bytes == 0) break;
        at += bytes;
    }
    return at;
}

// Length in bytes of an unfinished character at the end, which more bytes may complete: 0 to 3.
inline size_t unfinished_utf8_bytes(std::string_view text) {
    for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
        const auto c = static_cast<unsigned char>(text[text.size() - back]);
        if ((c & 0xc0) == 0x80) continue;  // a continuation byte
        const size_t length = c < 0xc2 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 1;
        return length > back ? back : 0;
    }
    return 0;
}

inline void append_utf8(std::string& text, uint32_t code_point) {
    const auto add = [&](uint32_t byte) { text.push_back(static_cast<char>(byte)); };
    if (code_point < 0x80) {
        add(code_point);
    } else if (code_point < 0x800) {
        add(0xc0 | code_point >> 6);
        add(0x80 | (code_point & 0x3f));
    } else if (code_point < 0x10000) {
        add(0xe0 | code_point >> 12);
        add(0x80 | (code_point >> 6 & 0x3f));
        add(0x80 | (code_point & 0x3f));
    } else {
        add(0xf0 | code_point >> 18);
        add(0x80 | (code_point >> 12 & 0x3f));
        add(0x80 | (code_point >> 6 & 0x3f));
        add(0x80 | (code_point & 0x3f));
    }
}

// Unicode's property White_Space.
inline bool is_white_space(uint32_t c) {
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
           c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

// The character that ends just before text[end], for text that is valid up to there; end > 0.
inline Utf8Char utf8_char_before(std::string_view text, size_t end) {
    size_t begin = end - 1;
    while (begin > 0 && end - begin < 4 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
    const Utf8Char c = utf8_char_at(text, begin);
    return c.bytes == end - begin ? c : Utf8Char{};
}

}  // namespace slab::data
