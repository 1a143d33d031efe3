// Numbers and texts in the form that a format asks for.
#include "data/jinja/format_spec.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "data/jinja/show.h"

namespace slab::data::jinja {
namespace {

std::string number_digits(const Spec& spec, double number) {
    char buffer[512];
    const char* const of_type = spec.type == 'f' || spec.type == 'F' ? "%.*f"
                                : spec.type == 'e'                   ? "%.*e"
                                : spec.type == 'E'                   ? "%.*E"
                                : spec.type == 'G'                   ? "%.*G"
                                                                     : "%.*g";
    const int precision = spec.precision < 0 ? 6 : static_cast<int>(spec.precision);
    return {buffer, static_cast<size_t>(std::snprintf(buffer, sizeof buffer, of_type, precision, number))};
}

std::string whole_digits(char type, uint64_t magnitude) {
    char buffer[80];
    if (type == 'b') {
        std::string bits;
        for (; magnitude > 0; magnitude >>= 1) bits.insert(bits.begin(), magnitude & 1 ? '1' : '0');
        return bits.empty() ? "0" : bits;
    }
    const char* const of_type = type == 'x' ? "%llx" : type == 'X' ? "%llX" : type == 'o' ? "%llo" : "%llu";
    const int size = std::snprintf(buffer, sizeof buffer, of_type, static_cast<unsigned long long>(magnitude));
    return {buffer, static_cast<size_t>(size)};
}

// "1234567.8" with a separator after each three digits of its whole part.
std::string separated(const std::string& digits, char separator) {
    const size_t whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
    std::string text;
    for (size_t i = 0; i < whole; ++i) {
        if (i > 0 && (whole - i) % 3 == 0) text += separator;
        text += digits[i];
    }
    return text + digits.substr(whole);
}

// The sign and the digits of a number.
std::pair<std::string, std::string> shown_number(const Spec& spec, const Value& value) {
    const bool is_real = std::string_view("fFeEgG%").find(spec.type) != std::string_view::npos ||
                         (value.type == Type::number && !spec.has_type);
    bool negative = false;
    std::string text;
    if (is_real) {
        double number = value.real();
        negative = std::signbit(number);
        number = std::abs(number);
        if (!std::isfinite(number)) {
            text = std::isnan(number) ? "nan" : "inf";
            negative = negative && !std::isnan(number);
        } else if (!spec.has_type) {
            if (spec.precision >= 0) refuse("formats a number with a precision and no type", "\".2f\" or such");
            text = number_text(number);
        } else if (spec.type == '%') {
            Spec fixed = spec;
            fixed.type = 'f';
            text = number_digits(fixed, number * 100) + "%";
        } else {
            text = number_digits(spec, number);
        }
    } else {
        const int64_t whole = value.whole();
        negative = whole < 0;
        const uint64_t magnitude = negative ? 0 - static_cast<uint64_t>(whole) : static_cast<uint64_t>(whole);
        text = whole_digits(spec.type, magnitude);
        if (spec.alternate && spec.type != 'd') text = std::string("0") + spec.type + text;
    }
    if (spec.separator != '\0') text = separated(text, spec.separator);
    return {negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign), text};
}

void add_fill(TextBuilder& out, const Spec& spec, int64_t count) {
    for (int64_t i = 0; i < count; ++i) out.add(spec.fill);
}

void add_padded(TextBuilder& out, const Spec& spec, const std::string& sign, const Value& text, char align) {
    const int64_t missing = spec.width - static_cast<int64_t>(sign.size() + count_chars(text.text()));
    const int64_t before = align == '>' ? missing : align == '^' ? missing / 2 : 0;
    add_fill(out, spec, std::max<int64_t>(0, before));
    out.add(sign);
    if (align == '=') add_fill(out, spec, missing);
    out.add(text);
    if (align != '=') add_fill(out, spec, missing - std::max<int64_t>(0, before));
}

}  // namespace

int64_t digits(std::string_view text, size_t& at, int64_t most, const char* what) {
    int64_t number = 0;
    for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
        number = number * 10 + (text[at] - '0');
        if (number > most) refuse(std::string("asks for a ") + what + " of more than " + std::to_string(most));
    }
    return number;
}

void add_number(TextBuilder& out, const Spec& spec, const Value& value) {
    const auto [sign, text] = shown_number(spec, value);
    add_padded(out, spec, sign, Value::text_of(text), spec.align == '\0' ? '>' : spec.align);
}

void add_text(Arena& arena, TextBuilder& out, const Spec& spec, const Value& text) {
    Value shown = text;
    if (spec.precision >= 0)
        shown = part_of(text, 0, byte_of_char(text.text(), static_cast<size_t>(spec.precision)), arena);
    add_padded(out, spec, "", shown, spec.align == '\0' ? '<' : spec.align);
}

Spec spec_of(std::string_view text) {
    Spec spec;
    size_t at = 0;
    const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
    const size_t first = text.empty() ? 0 : char_bytes(text, 0);
    if (first < text.size() && is_align(text[first])) {
        spec.fill = text.substr(0, first);
        spec.align = text[first];
        at = first + 1;
    } else if (!text.empty() && is_align(text[0])) {
        spec.align = text[at++];
    }
    if (at < text.size() && (text[at] == '+' || text[at] == '-' || text[at] == ' ')) spec.sign = text[at++];
    if (at < text.size() && text[at] == '#') {
        spec.alternate = true;
        ++at;
    }
    if (at < text.size() && text[at] == '0') {
        ++at;
        if (spec.align == '\0') {
            spec.fill = "0";
            spec.align = '=';
        }
    }
    spec.width = digits(text, at, kMaxWidth, "width");
    if (at < text.size() && (text[at] == ',' || text[at] == '_')) spec.separator = text[at++];
    if (at < text.size() && text[at] == '.') spec.precision = digits(text, ++at, kMaxPrecision, "precision");
    if (at < text.size()) {
        spec.type = text[at++];
        spec.has_type = true;
    }
    if (at < text.size() || std::string_view("sdbxXofFeEgG%").find(spec.type) == std::string_view::npos)
        refuse("has the format \"" + std::string(text.substr(0, 40)) + "\"",
               "[[fill]align][sign][0][width][,][.precision][type]");
    return spec;
}

}  // namespace slab::data::jinja
