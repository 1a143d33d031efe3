// What methods and filters of texts share.
#include <algorithm>
#include <bitset>

#include "data/jinja/evaluator.h"
#include "data/jinja/methods.h"
#include "data/jinja/unicode.h"

namespace slab::data::jinja {
namespace {

bool is_line_end(uint32_t c) {
    return (c >= 0xa && c <= 0xd) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

}  // namespace

Value stripped(Evaluator& evaluator, const Value& text, const Value* chars, bool at_begin, bool at_end) {
    const std::string_view bytes = text.text();
    size_t begin = 0, end = bytes.size();
    if (chars == nullptr || chars->type == Type::none) {
        if (at_begin) begin = leading_space(bytes);
        if (at_end) end -= std::min(trailing_space(bytes), end - begin);
        return evaluator.part(text, begin, end);
    }
    const std::string_view set = text_of(*chars, "characters to strip");
    evaluator.charge_text(set.size());
    std::bitset<256> ascii;
    for (const char c : set) ascii.set(static_cast<unsigned char>(c));
    const auto is_in = [&](std::string_view c) {
        if (c.size() == 1) return ascii.test(static_cast<unsigned char>(c[0]));
        evaluator.charge(1 + set.size() / 64);
        return find_text(set, c) != set.npos;
    };
    if (at_begin)
        while (begin < end) {
            const size_t size = char_bytes(bytes, begin);
            if (!is_in(bytes.substr(begin, size))) break;
            begin += size;
        }
    if (at_end)
        while (end > begin) {
            const size_t size = std::max<size_t>(1, utf8_char_before(bytes, end).bytes);
            if (!is_in(bytes.substr(end - size, size))) break;
            end -= size;
        }
    return evaluator.part(text, begin, end);
}

Value replaced(Evaluator& evaluator, const Value& text, const Value& old, const Value& with, int64_t max) {
    const std::string_view bytes = text.text(), wanted = old.text();
    size_t left = max < 0 ? SIZE_MAX : static_cast<size_t>(max);
    evaluator.charge_text(bytes.size());
    if (left == 0 || (!wanted.empty() && find_text(bytes, wanted) == bytes.npos)) return text;
    Evaluator::Scratch made(evaluator);
    size_t at = 0;
    if (wanted.empty()) {  // before each character, and at the end
        for (; left > 0; --left) {
            evaluator.charge(1);
            made->add(with);
            if (at == bytes.size()) break;
            const size_t size = char_bytes(bytes, at);
            made->add_part(text, at, at + size);
            at += size;
        }
    } else {
        for (; left > 0; --left) {
            const size_t found = find_text(bytes, wanted, at);
            if (found == bytes.npos) break;
            evaluator.charge(1);
            made->add_part(text, at, found);
            made->add(with);
            at = found + wanted.size();
        }
    }
    made->add_part(text, at, bytes.size());
    return made.value();
}

Value lines_of(Evaluator& evaluator, const Value& text, bool keep_ends) {
    const std::string_view bytes = text.text();
    ListBuilder list(evaluator.arena());
    size_t begin = 0;
    for (size_t at = 0; at < bytes.size();) {
        const Utf8Char c = utf8_char_at(bytes, at);
        size_t after = at + std::max<size_t>(1, c.bytes);
        if (c.bytes == 0 || !is_line_end(c.code_point)) {
            at = after;
            continue;
        }
        if (c.code_point == '\r' && after < bytes.size() && bytes[after] == '\n') ++after;
        evaluator.charge(1);
        list.add(evaluator.part(text, begin, keep_ends ? after : at));
        begin = at = after;
    }
    if (begin < bytes.size()) list.add(evaluator.part(text, begin, bytes.size()));
    return list.finish();
}

// before_of_two: of the filling 0, half or all stands before the text.
Value padded(Evaluator& evaluator, const Value& text, int64_t width, std::string_view fill, int before_of_two) {
    if (count_chars(fill) != 1)
        refuse("fills with a text of " + std::to_string(count_chars(fill)) + " characters", "one");
    const auto size = static_cast<int64_t>(count_chars(text.text()));
    if (width <= size) return text;
    const auto missing = static_cast<size_t>(width - size);
    evaluator.charge(missing);
    // str.center() puts the odd one before the text when the width is odd
    size_t before = before_of_two == 2 ? missing : 0;
    if (before_of_two == 1) before = missing / 2 + (missing & static_cast<size_t>(width) & 1);
    Evaluator::Scratch made(evaluator);
    for (size_t i = 0; i < before; ++i) made->add(fill);
    made->add(text);
    for (size_t i = before; i < missing; ++i) made->add(fill);
    return made.value();
}

bool is_upper(std::string_view text) {
    bool has_cased = false;
    for (const char c : text) {
        if (!is_cased_ascii(static_cast<unsigned char>(c))) continue;
        if (c >= 'a') return false;
        has_cased = true;
    }
    return has_cased;
}

bool is_lower(std::string_view text) {
    bool has_cased = false;
    for (const char c : text) {
        if (!is_cased_ascii(static_cast<unsigned char>(c))) continue;
        if (c <= 'Z') return false;
        has_cased = true;
    }
    return has_cased;
}

}  // namespace slab::data::jinja
