// Numbers in their shortest form that reads back, and foreign text made harmless for a terminal.
#include "data/base/display.h"

#include <charconv>
#include <cmath>

#include "data/base/utf8.h"

namespace slab::data {

std::string count_text(uint64_t n) {
    std::string digits = std::to_string(n);
    for (size_t at = digits.size(); at > 3;) digits.insert(at -= 3, ",");
    return digits;
}

namespace {

template <class T>
std::string shortest_text(T value) {
    char digits[64];
    const double size = std::abs(static_cast<double>(value));
    // The shortest form alone would be 1e-04 for 0.0001, which nobody types.
    const bool plain = size == 0 || (size >= 1e-6 && size < 1e15);
    const auto end = plain ? std::to_chars(digits, digits + sizeof digits, value, std::chars_format::fixed)
                           : std::to_chars(digits, digits + sizeof digits, value);
    return std::string(digits, end.ptr);
}

}  // namespace

std::string number_text(double value) {
    return shortest_text(value);
}

std::string number_text(float value) {
    return shortest_text(value);
}

std::string counted(uint64_t n, std::string_view what) {
    return count_text(n) + " " + std::string(what) + (n == 1 ? "" : "s");
}

std::string quote(std::string_view text) {
    constexpr size_t longest = 200;
    constexpr char digits[] = "0123456789abcdef";
    std::string out = "\"";
    for (const char c : text.substr(0, longest)) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte < 0x20 || byte == 0x7f) {
            out += {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
        } else {
            out += c;
        }
    }
    if (text.size() > longest) out += "...";
    return out + "\"";
}

std::string printable_text(std::string_view text) {
    std::string shown;
    for (size_t at = 0; at < text.size();) {
        const auto [c, bytes] = utf8_char_at(text, at);
        const bool control = c < 0x20 || (c >= 0x7f && c < 0xa0);
        const bool good = bytes != 0 && (!control || c == '\n' || c == '\t');
        if (good)
            shown += text.substr(at, bytes);
        else
            shown += "\xef\xbf\xbd";
        at += good ? bytes : 1;
    }
    return shown;
}

}  // namespace slab::data
