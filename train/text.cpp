// Formatting of numbers and text for people. See text.h.
#include "train/text.h"

#include <cmath>
#include <cstdarg>
#include <cstdio>

namespace slab::train {

std::string format_text(const char* format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    std::string text(static_cast<size_t>(std::vsnprintf(nullptr, 0, format, args)), '\0');
    std::vsnprintf(text.data(), text.size() + 1, format, again);
    va_end(again);
    va_end(args);
    return text;
}

std::string memory_text(size_t bytes) {
    const double b = static_cast<double>(bytes);
    if (bytes >= size_t{1} << 30) return format_text("%.2f GiB", b / 0x1p30);
    if (bytes >= size_t{1} << 20) return format_text("%.1f MiB", b / 0x1p20);
    return format_text("%.1f KiB", b / 0x1p10);
}

std::string count_text(uint64_t n) {
    std::string digits = std::to_string(n);
    for (size_t at = digits.size(); at > 3;) digits.insert(at -= 3, ",");
    return digits;
}

std::string bytes_text(size_t bytes) {
    return count_text(bytes) + " bytes";
}

std::string duration_text(double seconds) {
    if (!(seconds >= 0) || seconds > 3.6e6) return "?";
    const auto s = static_cast<long>(std::lround(seconds));
    return format_text("%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
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

}  // namespace slab::train
