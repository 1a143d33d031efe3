// str(), repr() and JSON. Bounded in depth, since a namespace can hold itself.
#include "data/jinja/show.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include "data/jinja/unicode.h"

namespace slab::data::jinja {
namespace {

constexpr int kMaxDepth = 200;

void check_depth(int depth) {
    if (depth > kMaxDepth) refuse("prints a value that is nested deeper than " + std::to_string(kMaxDepth) + " levels");
}

void add_hex(TextBuilder& out, std::string_view prefix, uint32_t c, int digits, uint32_t origin) {
    std::string text(prefix);
    for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) text += "0123456789abcdef"[c >> shift & 15];
    out.add(text, origin);
}

void add_repr_char(TextBuilder& out, uint32_t c, char quote, uint32_t origin) {
    if (c == '\n') return out.add("\\n", origin);
    if (c == '\r') return out.add("\\r", origin);
    if (c == '\t') return out.add("\\t", origin);
    if (c == '\\') return out.add("\\\\", origin);
    if (c == static_cast<unsigned char>(quote)) {
        out.add("\\", origin);
        return out.add_char(c, origin);
    }
    if (is_printable(c)) return out.add_char(c, origin);
    if (c < 0x100) return add_hex(out, "\\x", c, 2, origin);
    if (c < 0x10000) return add_hex(out, "\\u", c, 4, origin);
    add_hex(out, "\\U", c, 8, origin);
}

void add_repr_text(TextBuilder& out, const Value& text) {
    const std::string_view bytes = text.text();
    const bool has_single = bytes.find('\'') != bytes.npos;
    const char quote = has_single && bytes.find('"') == bytes.npos ? '"' : '\'';
    if (text.is_safe) out.add("Markup(");
    out.add({&quote, 1});
    for (CharReader reader(text); !reader.at_end();) {
        const uint32_t c = reader.next();
        add_repr_char(out, c, quote, reader.origin());
    }
    out.add({&quote, 1});
    if (text.is_safe) out.add(")");
}

void add_repr_items(TextBuilder& out, const Value& list, std::string_view open, std::string_view close, int depth) {
    out.add(open);
    for (size_t i = 0; i < list.size; ++i) {
        if (i > 0) out.add(", ");
        add_repr(out, list.items[i], depth + 1);
    }
    if (list.type == Type::tuple && list.size == 1) out.add(",");
    out.add(close);
}

void add_repr_dict(TextBuilder& out, const Entry* entries, size_t size, int depth) {
    out.add("{");
    for (size_t i = 0; i < size; ++i) {
        if (i > 0) out.add(", ");
        add_repr(out, entries[i].key, depth + 1);
        out.add(": ");
        add_repr(out, entries[i].value, depth + 1);
    }
    out.add("}");
}

void add_repr_view(TextBuilder& out, const Value& view, int depth) {
    const auto of = static_cast<ViewOf>(view.kind);
    out.add(of == ViewOf::keys ? "dict_keys([" : of == ViewOf::values ? "dict_values([" : "dict_items([");
    for (size_t i = 0; i < view.dict->size; ++i) {
        const Entry& entry = view.dict->entries[i];
        if (i > 0) out.add(", ");
        if (of == ViewOf::items) out.add("(");
        if (of != ViewOf::values) add_repr(out, entry.key, depth + 1);
        if (of == ViewOf::items) out.add(", ");
        if (of != ViewOf::keys) add_repr(out, entry.value, depth + 1);
        if (of == ViewOf::items) out.add(")");
    }
    out.add("])");
}

void add_json_char(TextBuilder& out, uint32_t c, bool only_ascii, uint32_t origin) {
    switch (c) {
        case '"':
            return out.add("\\\"", origin);
        case '\\':
            return out.add("\\\\", origin);
        case '\n':
            return out.add("\\n", origin);
        case '\r':
            return out.add("\\r", origin);
        case '\t':
            return out.add("\\t", origin);
        case '\b':
            return out.add("\\b", origin);
        case '\f':
            return out.add("\\f", origin);
        default:
            break;
    }
    if (c >= 0x20 && (c < 0x7f || !only_ascii)) return out.add_char(c, origin);
    if (c < 0x10000) return add_hex(out, "\\u", c, 4, origin);
    add_hex(out, "\\u", 0xd800 + ((c - 0x10000) >> 10), 4, origin);
    add_hex(out, "\\u", 0xdc00 + ((c - 0x10000) & 0x3ff), 4, origin);
}

void add_json_text(TextBuilder& out, const Value& text, bool only_ascii) {
    out.add("\"");
    const std::string_view bytes = text.text();
    size_t at = 0;  // what needs no escape is copied in one piece
    const auto is_plain = [&](unsigned char c) {
        return c >= 0x20 && c != '"' && c != '\\' && (c < 0x7f || !only_ascii);
    };
    while (at < bytes.size()) {
        size_t end = at;
        while (end < bytes.size() && is_plain(static_cast<unsigned char>(bytes[end]))) ++end;
        out.add_part(text, at, end);
        if (end == bytes.size()) break;
        const size_t length = char_bytes(bytes, end);
        uint32_t origin = text.origin;
        if (text.is_mixed) {
            const Span* const last = text.mixed->spans + text.mixed->span_count;
            const Span* const span =
                std::upper_bound(text.mixed->spans, last, end, [](size_t x, const Span& s) { return x < s.end; });
            origin = span != last && span->begin <= end ? span->origin : kTemplateOrigin;
        }
        const Utf8Char c = utf8_char_at(bytes, end);
        add_json_char(out, c.bytes == 0 ? 0xfffd : c.code_point, only_ascii, origin);
        at = end + length;
    }
    out.add("\"");
}

void add_json_scalar(TextBuilder& out, const Value& value) {
    switch (value.type) {
        case Type::none:
            return out.add("null");
        case Type::boolean:
            return out.add(value.boolean ? "true" : "false");
        case Type::integer:
            return out.add(std::to_string(value.integer));
        case Type::number:
            if (std::isnan(value.number)) return out.add("NaN");
            if (std::isinf(value.number)) return out.add(value.number < 0 ? "-Infinity" : "Infinity");
            return out.add(number_text(value.number));
        default:
            refuse("writes " + described(value) + " as JSON", "text, numbers, lists, dicts, true, false or none");
    }
}

void add_json_key(TextBuilder& out, const Value& key, bool only_ascii) {
    if (key.is_text()) return add_json_text(out, key, only_ascii);
    if (key.type == Type::tuple || key.type == Type::undefined)
        refuse("writes a dict as JSON of which a key is " + described(key), "keys that are texts or numbers");
    out.add("\"");
    add_json_scalar(out, key);
    out.add("\"");
}

void add_json_line(TextBuilder& out, const JsonStyle& style, int depth) {
    if (!style.has_indent) return;
    out.add("\n");
    for (int i = 0; i < depth; ++i) out.add(style.indent);
}

void add_json_dict(TextBuilder& out, const Dict& dict, const JsonStyle& style, int depth) {
    if (dict.size == 0) return out.add("{}");
    std::vector<const Entry*> order(dict.size);
    for (size_t i = 0; i < dict.size; ++i) order[i] = &dict.entries[i];
    if (style.sort_keys)
        std::stable_sort(order.begin(), order.end(),
                         [](const Entry* a, const Entry* b) { return compare(a->key, b->key) < 0; });
    out.add("{");
    for (size_t i = 0; i < order.size(); ++i) {
        if (i > 0) out.add(style.between_items);
        add_json_line(out, style, depth + 1);
        add_json_key(out, order[i]->key, style.only_ascii);
        out.add(style.after_key);
        add_json(out, order[i]->value, style, depth + 1);
    }
    add_json_line(out, style, depth);
    out.add("}");
}

}  // namespace

std::string number_text(double number) {
    if (std::isnan(number)) return "nan";
    if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
    char buffer[40];
    const auto end = std::to_chars(buffer, buffer + sizeof buffer, number, std::chars_format::scientific).ptr;
    std::string_view text(buffer, static_cast<size_t>(end - buffer));
    std::string sign;
    if (text[0] == '-') {
        sign = "-";
        text.remove_prefix(1);
    }
    const size_t e = text.find('e');
    int exponent = 0;
    const char* const digits_of_exponent = text.data() + e + (text[e + 1] == '+' ? 2 : 1);
    std::from_chars(digits_of_exponent, text.data() + text.size(), exponent);
    std::string digits(1, text[0]);
    if (e > 2) digits += text.substr(2, e - 2);
    if (exponent < -4 || exponent >= 16) {
        std::string shown = sign + digits[0];
        if (digits.size() > 1) shown += "." + digits.substr(1);
        const std::string power = std::to_string(std::abs(exponent));
        return shown + (exponent < 0 ? "e-" : "e+") + (power.size() < 2 ? "0" : "") + power;
    }
    if (exponent < 0) return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
    const auto whole = static_cast<size_t>(exponent) + 1;
    if (digits.size() <= whole) return sign + digits + std::string(whole - digits.size(), '0') + ".0";
    return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

void add_str(TextBuilder& out, const Value& value) {
    if (value.is_text()) return out.add(value);
    if (value.type != Type::undefined) add_repr(out, value);
}

void add_repr(TextBuilder& out, const Value& value, int depth) {
    check_depth(depth);
    switch (value.type) {
        case Type::undefined:
            return out.add("Undefined");
        case Type::none:
            return out.add("None");
        case Type::boolean:
            return out.add(value.boolean ? "True" : "False");
        case Type::integer:
            return out.add(std::to_string(value.integer));
        case Type::number:
            return out.add(number_text(value.number));
        case Type::string:
            return add_repr_text(out, value);
        case Type::list:
            return add_repr_items(out, value, "[", "]", depth);
        case Type::tuple:
            return add_repr_items(out, value, "(", ")", depth);
        case Type::dict:
            return add_repr_dict(out, value.dict->entries, value.dict->size, depth);
        case Type::view:
            return add_repr_view(out, value, depth);
        case Type::range: {
            const Range& r = *value.range;
            std::string text = "range(" + std::to_string(r.start) + ", " + std::to_string(r.stop);
            if (r.step != 1) text += ", " + std::to_string(r.step);
            return out.add(text + ")");
        }
        case Type::name_space:
            out.add("<Namespace ");
            add_repr_dict(out, value.name_space->attributes, value.name_space->size, depth);
            return out.add(">");
        default:
            refuse("prints " + described(value), "text", "Python would print an address in memory here");
    }
}

void add_json(TextBuilder& out, const Value& value, const JsonStyle& style, int depth) {
    check_depth(depth);
    if (value.is_text()) return add_json_text(out, value, style.only_ascii);
    if (value.type == Type::dict) return add_json_dict(out, *value.dict, style, depth);
    if (!value.is_list()) return add_json_scalar(out, value);
    if (value.size == 0) return out.add("[]");
    out.add("[");
    for (size_t i = 0; i < value.size; ++i) {
        if (i > 0) out.add(style.between_items);
        add_json_line(out, style, depth + 1);
        add_json(out, value.items[i], style, depth + 1);
    }
    add_json_line(out, style, depth);
    out.add("]");
}

}  // namespace slab::data::jinja
