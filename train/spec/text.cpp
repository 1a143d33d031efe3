// Formatting of numbers and durations.
#include "train/spec/text.h"

#include <cmath>
#include <cstdarg>
#include <cstdio>

namespace slab::train {

std::string sentence(std::string text) {
    if (!text.ends_with('.') && !text.ends_with('?') && !text.ends_with('!')) text += '.';
    return text;
}

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

std::string bytes_text(size_t bytes) {
    return count_text(bytes) + " bytes";
}

std::string duration_text(double seconds) {
    if (!(seconds >= 0) || seconds > 3.6e6) return "?";
    const auto s = static_cast<long>(std::lround(seconds));
    return format_text("%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
}

}  // namespace slab::train
