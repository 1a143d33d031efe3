// Text for people. See display.h.
#include "data/display.h"

#include <charconv>
#include <cmath>

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
    // The shortest form alone would make 1e-04 of 0.0001, which nobody types.
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

std::string printable_text(std::string_view text) {
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
    std::string shown;
    for (size_t at = 0; at < text.size();) {
        const unsigned char c = byte(at);
        const size_t length = c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
        bool good = length != 0 && length <= text.size() - at;
        for (size_t i = 1; good && i < length; ++i) good = (byte(at + i) & 0xc0) == 0x80;
        if (length == 1) good = (c >= 0x20 && c != 0x7f) || c == '\n' || c == '\t';
        // The other controls begin with c2; e0, f0 begin forms that are too long, ed surrogates, f4 what is beyond
        // Unicode.
        if (good && (c == 0xc2 || c == 0xe0)) good = byte(at + 1) >= 0xa0;
        if (good && c == 0xed) good = byte(at + 1) < 0xa0;
        if (good && c == 0xf0) good = byte(at + 1) >= 0x90;
        if (good && c == 0xf4) good = byte(at + 1) < 0x90;
        if (good)
            shown += text.substr(at, length);
        else
            shown += "\xef\xbf\xbd";
        at += good ? length : 1;
    }
    return shown;
}

}  // namespace slab::data
