// Filters that make texts or numbers of one value.
#include <charconv>
#include <cmath>

#include "data/jinja/evaluator.h"
#include "data/jinja/filters.h"
#include "data/jinja/format.h"
#include "data/jinja/methods.h"
#include "data/jinja/unicode.h"

namespace slab::data::jinja {
namespace {

Value trim(Evaluator& e, const Value& value, const Arguments& arguments) {
    const auto [chars] = bind(arguments, "trim", {"chars"});
    return stripped(e, e.str(value), chars, true, true);
}

Value upper(Evaluator& e, const Value& value, const Arguments& arguments) {
    check_no_arguments(arguments, "upper");
    return in_case(e.str(value), Case::upper, *Evaluator::Scratch(e), e.arena());
}

Value lower(Evaluator& e, const Value& value, const Arguments& arguments) {
    check_no_arguments(arguments, "lower");
    return in_case(e.str(value), Case::lower, *Evaluator::Scratch(e), e.arena());
}

Value capitalize(Evaluator& e, const Value& value, const Arguments& arguments) {
    check_no_arguments(arguments, "capitalize");
    return capitalized(e.str(value), *Evaluator::Scratch(e), e.arena());
}

// Words begin after white space and after - ( { [ <.
Value title(Evaluator& e, const Value& value, const Arguments& arguments) {
    check_no_arguments(arguments, "title");
    const Value text = e.str(value);
    Evaluator::Scratch out(e);
    bool begins_word = true;
    for (CharReader reader(text); !reader.at_end();) {
        const uint32_t c = reader.next();
        const bool separates =
            is_space(c) || (c < 0x80 && std::string_view("-({[<").find(static_cast<char>(c)) != std::string_view::npos);
        add_in_case(*out, c, reader.origin(), begins_word || separates ? Case::upper : Case::lower);
        begins_word = separates;
    }
    return out.value();
}

Value string(Evaluator& e, const Value& value, const Arguments& arguments) {
    check_no_arguments(arguments, "string");
    return e.str(value);
}

Value plain(Evaluator& e, const Value& value) {
    Value text = e.str(value);
    text.is_safe = false;
    return text;
}

Value replace(Evaluator& e, const Value& value, const Arguments& arguments) {
    const auto [old, with, count] = bind(arguments, "replace", {"old", "new", "count"}, 2);
    const bool all = count == nullptr || count->type == Type::none;
    return replaced(e, plain(e, value), plain(e, *old), plain(e, *with),
                    all ? -1 : whole_of(*count, "a number of replacements"));
}

Value safe(Evaluator& e, const Value& value, const Arguments& arguments) {
    check_no_arguments(arguments, "safe");
    Value text = e.str(value);
    text.is_safe = true;
    return text;
}

Value escape(Evaluator& e, const Value& value, const Arguments& arguments) {
    check_no_arguments(arguments, "escape");
    const Value text = e.str(value);
    if (text.is_safe) return text;
    Evaluator::Scratch out(e);
    add_escaped(*out, text);
    Value escaped = out.value();
    escaped.is_safe = true;
    return escaped;
}

Value format(Evaluator& e, const Value& value, const Arguments& arguments) {
    if (arguments.count > 0 && arguments.keyword_count > 0) refuse("formats with values and with names", "one of them");
    const Value text = e.str(value);
    if (arguments.keyword_count == 0)
        return printf_format(e, text, Value::list_of(arguments.values, arguments.count, Type::tuple));
    DictBuilder names(e.arena());
    for (size_t i = 0; i < arguments.keyword_count; ++i)
        names.set(Value::text_of(arguments.keywords[i].name), arguments.keywords[i].value);
    return printf_format(e, text, names.finish());
}

Value indent(Evaluator& e, const Value& value, const Arguments& arguments) {
    const auto [width, first, blank] = bind(arguments, "indent", {"width", "first", "blank"});
    if (value.type == Type::undefined) refuse_undefined(value);
    text_of(value, "what is indented");
    Value indention = Value::text_of("    ");
    if (width != nullptr)
        indention = width->is_text()
                        ? *width
                        : e.binary(Operator::multiply, Value::text_of(" "), Value::of(whole_of(*width, "a width")));
    Evaluator::Scratch out(e);
    Evaluator::Scratch with_end(e);
    with_end->add(value);
    with_end->add("\n");
    const Value lines = lines_of(e, with_end.value(), false);
    if (first != nullptr && truthy(*first)) out->add(indention);
    const bool blanks_too = blank != nullptr && truthy(*blank);
    for (size_t i = 0; i < lines.size; ++i) {
        if (i > 0) out->add("\n");
        if (i > 0 && (blanks_too || lines.items[i].size > 0)) out->add(indention);
        out->add(lines.items[i]);
    }
    e.charge_text(out->size());
    Value text = out.value();
    text.is_safe = value.is_safe;
    return text;
}

Value tojson(Evaluator& e, const Value& value, const Arguments& arguments) {
    const auto [ascii, indent, separators, sort] =
        bind(arguments, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
    JsonStyle style;
    style.only_ascii = ascii != nullptr && truthy(*ascii);
    style.sort_keys = sort != nullptr && truthy(*sort);
    if (indent != nullptr && indent->type != Type::none) {
        style.has_indent = true;
        style.between_items = ",";
        const int64_t width = indent->is_text() ? 0 : whole_of(*indent, "the indent of tojson");
        if (width > 100) refuse("gives tojson an indent of " + std::to_string(width), "100 at most");
        style.indent = indent->is_text() ? std::string(indent->text())
                                         : std::string(static_cast<size_t>(std::max<int64_t>(0, width)), ' ');
    }
    if (separators != nullptr && separators->type != Type::none) {
        if (!separators->is_list() || separators->size != 2)
            refuse("gives tojson " + described(*separators) + " as separators", "two texts");
        style.between_items = text_of(separators->items[0], "a separator");
        style.after_key = text_of(separators->items[1], "a separator");
    }
    Evaluator::Scratch out(e);
    add_json(*out, value, style);
    e.charge_text(8 * out->size());
    return out.value();
}

// What Python's int(text, base) reads; false where it raises an error.
bool read_whole(std::string_view text, int64_t base, int64_t& number) {
    text.remove_prefix(leading_space(text));
    text.remove_suffix(trailing_space(text));
    const bool negative = text.starts_with('-');
    if (negative || text.starts_with('+')) text.remove_prefix(1);
    const auto prefix = [&](char lower, int64_t of) {
        if ((base != of && base != 0) || text.size() < 2 || text[0] != '0' || (text[1] | 32) != lower) return false;
        base = of;
        text.remove_prefix(2);
        if (text.starts_with('_')) text.remove_prefix(1);
        return true;
    };
    if (!prefix('x', 16) && !prefix('o', 8) && !prefix('b', 2) && base == 0) {
        if (text.size() > 1 && text[0] == '0' && text.find_first_not_of("0_") != text.npos) return false;
        base = 10;
    }
    std::string digits(negative ? "-" : "");
    for (size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '_') {
            if (i == 0 || i + 1 == text.size() || text[i + 1] == '_') return false;
            continue;
        }
        if (static_cast<unsigned char>(text[i]) >= 0x80) refuse("reads a number with digits that are not ASCII");
        digits += text[i];
    }
    if (text.starts_with('-') || text.starts_with('+')) return false;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), number, static_cast<int>(base));
    if (error == std::errc::result_out_of_range && end == digits.data() + digits.size())
        refuse("reads the integer " + digits.substr(0, 40), "integers of 64 bits");
    return error == std::errc() && end == digits.data() + digits.size();
}

bool read_number(std::string_view text, double& number) {
    text.remove_prefix(leading_space(text));
    text.remove_suffix(trailing_space(text));
    std::string plain;
    for (size_t i = 0; i < text.size(); ++i) {
        const auto is_digit = [&](size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '9'; };
        if (text[i] == '_') {
            if (i == 0 || !is_digit(i - 1) || !is_digit(i + 1)) return false;
            continue;
        }
        if (static_cast<unsigned char>(text[i]) >= 0x80) refuse("reads a number with digits that are not ASCII");
        plain += text[i];
    }
    // strtod takes hexadecimal digits and "nan(...)", which Python does not
    if (plain.empty() || plain.find_first_of("xXpP(") != plain.npos) return false;
    if (std::string_view(" \t\n\v\f\r").find(plain[0]) != std::string_view::npos) return false;
    char* end = nullptr;
    number = std::strtod(plain.c_str(), &end);
    return end == plain.c_str() + plain.size();
}

int64_t truncated(double number) {
    if (!(std::abs(number) < 9.2e18)) refuse("makes an integer of " + number_text(number), "64 bits");
    return static_cast<int64_t>(number);
}

Value to_whole(Evaluator&, const Value& value, const Arguments& arguments) {
    const auto [otherwise, base] = bind(arguments, "int", {"default", "base"});
    const Value fallback = otherwise != nullptr ? *otherwise : Value::of(int64_t{0});
    if (value.type == Type::undefined) refuse_undefined(value);
    if (value.is_whole()) return Value::of(value.whole());
    if (value.type == Type::number) {
        if (!std::isfinite(value.number))
            return std::isnan(value.number) ? fallback : (refuse("makes an integer of infinity"), fallback);
        return Value::of(truncated(value.number));
    }
    if (!value.is_text()) return fallback;
    int64_t whole = 0;
    const int64_t digits = base == nullptr ? 10 : whole_of(*base, "a base");
    if (digits != 0 && (digits < 2 || digits > 36)) return fallback;
    if (read_whole(value.text(), digits, whole)) return Value::of(whole);
    double number = 0;
    if (!read_number(value.text(), number) || !std::isfinite(number)) return fallback;
    return Value::of(truncated(number));
}

Value to_number(Evaluator&, const Value& value, const Arguments& arguments) {
    const auto [otherwise] = bind(arguments, "float", {"default"});
    if (value.type == Type::undefined) refuse_undefined(value);
    if (value.is_number()) return Value::of(value.real());
    double number = 0;
    if (value.is_text() && read_number(value.text(), number)) return Value::of(number);
    return otherwise != nullptr ? *otherwise : Value::of(0.0);
}

Value absolute(Evaluator&, const Value& value, const Arguments& arguments) {
    check_no_arguments(arguments, "abs");
    if (value.type == Type::undefined) refuse_undefined(value);
    if (!value.is_number()) refuse("takes the absolute value of " + described(value), "a number");
    if (value.type == Type::number) return Value::of(std::abs(value.number));
    if (value.whole() == INT64_MIN) refuse("computes an integer of more than 64 bits");
    return Value::of(std::abs(value.whole()));
}

Value rounded(Evaluator&, const Value& value, const Arguments& arguments) {
    const auto [precision, method] = bind(arguments, "round", {"precision", "method"});
    const int64_t digits = precision == nullptr ? 0 : whole_of(*precision, "a precision");
    const std::string_view how = method == nullptr ? "common" : text_of(*method, "a method of rounding");
    if (value.type == Type::undefined) refuse_undefined(value);
    if (!value.is_number()) refuse("rounds " + described(value), "a number");
    if (digits < 0 || digits > 100) refuse("rounds to " + std::to_string(digits) + " digits", "0 to 100");
    if (how == "common") {
        if (value.is_whole()) return Value::of(value.whole());
        if (!std::isfinite(value.number)) return value;
        char text[512];
        std::snprintf(text, sizeof text, "%.*f", static_cast<int>(digits), value.number);
        return Value::of(std::strtod(text, nullptr));
    }
    if (how != "ceil" && how != "floor")
        refuse("rounds with the method \"" + std::string(how) + "\"", "common, ceil or floor");
    const double scale = std::pow(10.0, static_cast<double>(digits)), scaled = value.real() * scale;
    if (!std::isfinite(scaled)) refuse("rounds a number that is too large");
    // + 0.0: Python's ceil() gives an integer, which has no negative zero
    return Value::of(((how == "ceil" ? std::ceil(scaled) : std::floor(scaled)) + 0.0) / scale);
}

Value fallback(Evaluator&, const Value& value, const Arguments& arguments) {
    const auto [otherwise, boolean] = bind(arguments, "default", {"default_value", "boolean"});
    const bool is_absent = value.type == Type::undefined || (boolean != nullptr && truthy(*boolean) && !truthy(value));
    if (!is_absent) return value;
    return otherwise != nullptr ? *otherwise : Value::text_of("");
}

}  // namespace

const NamedFilter kTextFilters[] = {
    {"abs", absolute},  {"capitalize", capitalize}, {"d", fallback},    {"default", fallback}, {"e", escape},
    {"escape", escape}, {"float", to_number},       {"format", format}, {"indent", indent},    {"int", to_whole},
    {"lower", lower},   {"replace", replace},       {"round", rounded}, {"safe", safe},        {"string", string},
    {"title", title},   {"tojson", tojson},         {"trim", trim},     {"upper", upper},      {{}, nullptr},
};

}  // namespace slab::data::jinja
