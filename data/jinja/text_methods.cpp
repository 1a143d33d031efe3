// Methods of texts. Positions that templates give and get count characters.
#include <algorithm>
#include <unordered_map>

#include "data/jinja/evaluator.h"
#include "data/jinja/format.h"
#include "data/jinja/methods.h"
#include "data/jinja/unicode.h"

namespace slab::data::jinja {
namespace {

using TextMethod = Value (*)(Evaluator&, const Value&, const Arguments&);

void check_count(const Arguments& arguments, size_t least, size_t most, const char* of) {
    if (arguments.keyword_count > 0) refuse(std::string("gives named arguments to ") + of + "()");
    if (arguments.count < least || arguments.count > most)
        refuse("gives " + std::to_string(arguments.count) + " arguments to " + of + "()",
               least == most ? std::to_string(least) : std::to_string(least) + " to " + std::to_string(most));
}

const Value* given(const Arguments& arguments, size_t i) {
    return i < arguments.count && arguments.values[i].type != Type::none ? &arguments.values[i] : nullptr;
}

// The part of a text that find(), count() and others look at, by their arguments i and i+1.
struct Window {
    size_t begin, end;
    bool is_empty;  // begins after its end: not even "" is found there
};

Window window_of(std::string_view text, const Arguments& arguments, size_t i) {
    const Value *const from = given(arguments, i), *const to = given(arguments, i + 1);
    if (from == nullptr && to == nullptr) return {0, text.size(), false};
    const auto size = static_cast<int64_t>(count_chars(text));
    const auto place = [&](const Value* bound, int64_t otherwise) {
        int64_t at = bound == nullptr ? otherwise : whole_of(*bound, "a bound");
        if (at < 0) at = at < -size ? 0 : at + size;
        return at;
    };
    const int64_t begin = place(from, 0), end = std::min(place(to, size), size);
    if (begin > end) return {0, 0, true};
    return {byte_of_char(text, static_cast<size_t>(begin)), byte_of_char(text, static_cast<size_t>(end)), false};
}

Value find_in(Evaluator& evaluator, const Value& of, const Arguments& arguments, const char* name, bool last,
              bool must) {
    check_count(arguments, 1, 3, name);
    const std::string_view wanted = text_of(arguments.values[0], "what is looked for");
    const Window window = window_of(of.text(), arguments, 1);
    evaluator.charge_text(2 * of.size);
    const std::string_view text = of.text().substr(0, window.end);
    size_t found = text.npos;
    if (!window.is_empty) found = last ? rfind_text(text, wanted) : find_text(text, wanted, window.begin);
    if (last && found < window.begin) found = text.npos;
    if (found == text.npos && must) refuse(std::string("calls ") + name + "() for a text that is not in the other");
    return Value::of(found == text.npos ? int64_t{-1} : static_cast<int64_t>(count_chars(text.substr(0, found))));
}

Value count_in(Evaluator& evaluator, const Value& of, const Arguments& arguments) {
    check_count(arguments, 1, 3, "count");
    const std::string_view wanted = text_of(arguments.values[0], "what is counted");
    const Window window = window_of(of.text(), arguments, 1);
    evaluator.charge_text(of.size);
    if (window.is_empty) return Value::of(int64_t{0});
    const std::string_view text = of.text().substr(window.begin, window.end - window.begin);
    if (wanted.empty()) return Value::of(static_cast<int64_t>(count_chars(text)) + 1);
    int64_t count = 0;
    for (size_t at = find_text(text, wanted); at != text.npos; at = find_text(text, wanted, at + wanted.size()))
        ++count;
    return Value::of(count);
}

Value has_end(const Value& of, const Arguments& arguments, bool at_begin) {
    check_count(arguments, 1, 3, at_begin ? "startswith" : "endswith");
    const Window window = window_of(of.text(), arguments, 1);
    const std::string_view text = of.text().substr(window.begin, window.end - window.begin);
    const auto fits = [&](const Value& wanted) {
        const std::string_view end = text_of(wanted, "a beginning or end");
        return !window.is_empty && (at_begin ? text.starts_with(end) : text.ends_with(end));
    };
    const Value& wanted = arguments.values[0];
    if (wanted.type != Type::tuple) return Value::of(fits(wanted));
    return Value::of(std::any_of(wanted.items, wanted.items + wanted.size, fits));
}

Value strip(Evaluator& evaluator, const Value& of, const Arguments& arguments, bool at_begin, bool at_end) {
    check_count(arguments, 0, 1, "strip");
    return stripped(evaluator, of, given(arguments, 0), at_begin, at_end);
}

// Pieces between white space, from one end on, at most max+1 of them.
Value split_at_space(Evaluator& evaluator, const Value& of, int64_t max, bool from_end) {
    const std::string_view text = of.text();
    std::vector<std::pair<size_t, size_t>> pieces;
    size_t begin = leading_space(text), end = text.size() - std::min(trailing_space(text), text.size() - begin);
    while (begin < end) {
        size_t at = from_end ? end : begin;
        if (max == static_cast<int64_t>(pieces.size())) {
            // the rest keeps the blanks at its far end
            pieces.emplace_back(from_end ? 0 : begin, from_end ? end : text.size());
            break;
        }
        if (from_end) {
            while (at > begin && trailing_space(text.substr(begin, at - begin)) == 0) --at;
            pieces.emplace_back(at, end);
            end = at - trailing_space(text.substr(begin, at - begin));
        } else {
            while (at < end && leading_space(text.substr(at, end - at)) == 0) at += char_bytes(text, at);
            pieces.emplace_back(begin, at);
            begin = at + leading_space(text.substr(at, end - at));
        }
    }
    if (from_end) std::reverse(pieces.begin(), pieces.end());
    ListBuilder list(evaluator.arena(), pieces.size());
    for (const auto& [first, last] : pieces) list.add(evaluator.part(of, first, last));
    return list.finish();
}

Value split(Evaluator& evaluator, const Value& of, const Arguments& arguments, bool from_end) {
    const auto [separator, limit] = bind(arguments, from_end ? "rsplit()" : "split()", {"sep", "maxsplit"});
    const int64_t max = limit == nullptr ? -1 : whole_of(*limit, "the number of splits");
    evaluator.charge_text(of.size);
    if (separator == nullptr || separator->type == Type::none) {
        evaluator.charge(of.size / 8);
        return split_at_space(evaluator, of, max, from_end);
    }
    const std::string_view text = of.text(), between = text_of(*separator, "a separator");
    if (between.empty()) refuse("splits at an empty text", "a separator");
    std::vector<size_t> places;
    if (!from_end) {
        for (size_t at = find_text(text, between); at != text.npos;
             at = find_text(text, between, at + between.size())) {
            if (max >= 0 && places.size() == static_cast<size_t>(max)) break;
            places.push_back(at);
        }
    } else {
        for (size_t end = text.size(); max < 0 || places.size() < static_cast<size_t>(max);) {
            evaluator.charge(1 + end / 64);
            const size_t at = rfind_text(text.substr(0, end), between);
            if (at == text.npos) break;
            places.push_back(at);
            end = at;
        }
        std::reverse(places.begin(), places.end());
    }
    evaluator.charge(places.size());
    ListBuilder list(evaluator.arena(), places.size() + 1);
    size_t begin = 0;
    for (const size_t at : places) {
        list.add(evaluator.part(of, begin, at));
        begin = at + between.size();
    }
    list.add(evaluator.part(of, begin, text.size()));
    return list.finish();
}

Value partition(Evaluator& evaluator, const Value& of, const Arguments& arguments, bool from_end) {
    check_count(arguments, 1, 1, "partition");
    const std::string_view text = of.text(), between = text_of(arguments.values[0], "a separator");
    if (between.empty()) refuse("splits at an empty text", "a separator");
    const size_t at = from_end ? rfind_text(text, between) : find_text(text, between);
    evaluator.charge_text(of.size);
    ListBuilder list(evaluator.arena(), 3);
    if (at == text.npos) {
        const Value nothing = evaluator.part(of, 0, 0);
        for (int i = 0; i < 3; ++i) list.add(i == (from_end ? 2 : 0) ? of : nothing);
    } else {
        list.add(evaluator.part(of, 0, at));
        list.add(evaluator.part(of, at, at + between.size()));
        list.add(evaluator.part(of, at + between.size(), text.size()));
    }
    return list.finish(Type::tuple);
}

Value join(Evaluator& evaluator, const Value& of, const Arguments& arguments) {
    check_count(arguments, 1, 1, "join");
    Evaluator::Scratch text(evaluator);
    Cursor cursor = evaluator.cursor_of(arguments.values[0]);
    bool is_first = true;
    for (Value value; evaluator.next(cursor, value); is_first = false) {
        if (!value.is_text()) refuse("joins " + described(value), "texts", "the filter join makes text of everything");
        if (!is_first) text->add(of);
        text->add(value);
    }
    evaluator.charge_text(text->size());
    return text.value();
}

Value replace(Evaluator& evaluator, const Value& of, const Arguments& arguments) {
    check_count(arguments, 2, 3, "replace");
    text_of(arguments.values[0], "what is replaced");
    text_of(arguments.values[1], "what replaces it");
    const int64_t max = arguments.count == 3 ? whole_of(arguments.values[2], "a number of replacements") : -1;
    return replaced(evaluator, of, arguments.values[0], arguments.values[1], max);
}

Value title(Evaluator& evaluator, const Value& of) {
    Evaluator::Scratch text(evaluator);
    bool after_letter = false;
    for (CharReader reader(of); !reader.at_end();) {
        const uint32_t c = reader.next();
        const bool is_cased = is_cased_ascii(c);
        add_in_case(*text, c, reader.origin(), after_letter ? Case::lower : Case::title);
        after_letter = is_cased;
    }
    return text.value();
}

template <class Test>
Value all_chars(const Value& of, Test test) {
    for (CharReader reader(of); !reader.at_end();)
        if (!test(reader.next())) return Value::of(false);
    return Value::of(of.size > 0);
}

Value without_end(Evaluator& evaluator, const Value& of, const Arguments& arguments, bool at_begin) {
    check_count(arguments, 1, 1, at_begin ? "removeprefix" : "removesuffix");
    const std::string_view end = text_of(arguments.values[0], "a beginning or end");
    if (at_begin) return evaluator.part(of, of.text().starts_with(end) ? end.size() : 0, of.size);
    return evaluator.part(of, 0, of.size - (of.text().ends_with(end) ? end.size() : 0));
}

Value pad(Evaluator& evaluator, const Value& of, const Arguments& arguments, int before_of_two) {
    check_count(arguments, 1, 2, "a method that pads");
    const std::string_view fill = arguments.count == 2 ? text_of(arguments.values[1], "what fills") : " ";
    return padded(evaluator, of, whole_of(arguments.values[0], "a width"), fill, before_of_two);
}

Value zero_fill(Evaluator& evaluator, const Value& of, const Arguments& arguments) {
    check_count(arguments, 1, 1, "zfill");
    const size_t sign = of.text().starts_with('-') || of.text().starts_with('+') ? 1 : 0;
    const int64_t width = whole_of(arguments.values[0], "a width");
    const Value digits = evaluator.part(of, sign, of.size);
    const Value filled = padded(evaluator, digits, width < 0 ? 0 : width - static_cast<int64_t>(sign), "0", 2);
    return evaluator.binary(Operator::add, evaluator.part(of, 0, sign), filled);
}

#define METHOD(body)                                                    \
    +[]([[maybe_unused]] Evaluator& e, [[maybe_unused]] const Value& t, \
        [[maybe_unused]] const Arguments& a) -> Value { body; }
#define PLAIN(name, body) \
    { name, METHOD(check_count(a, 0, 0, name); body) }

const std::unordered_map<std::string_view, TextMethod>& methods() {
    static const std::unordered_map<std::string_view, TextMethod> kMethods = {
        {"strip", METHOD(return strip(e, t, a, true, true))},
        {"lstrip", METHOD(return strip(e, t, a, true, false))},
        {"rstrip", METHOD(return strip(e, t, a, false, true))},
        {"split", METHOD(return split(e, t, a, false))},
        {"rsplit", METHOD(return split(e, t, a, true))},
        {"splitlines", METHOD(const auto [keep] = bind(a, "splitlines()", {"keepends"});
                              return lines_of(e, t, keep != nullptr && truthy(*keep)))},
        {"startswith", METHOD(return has_end(t, a, true))},
        {"endswith", METHOD(return has_end(t, a, false))},
        {"find", METHOD(return find_in(e, t, a, "find", false, false))},
        {"rfind", METHOD(return find_in(e, t, a, "rfind", true, false))},
        {"index", METHOD(return find_in(e, t, a, "index", false, true))},
        {"rindex", METHOD(return find_in(e, t, a, "rindex", true, true))},
        {"count", METHOD(return count_in(e, t, a))},
        {"replace", METHOD(return replace(e, t, a))},
        {"join", METHOD(return join(e, t, a))},
        {"format", METHOD(return brace_format(e, t, a))},
        {"partition", METHOD(return partition(e, t, a, false))},
        {"rpartition", METHOD(return partition(e, t, a, true))},
        {"removeprefix", METHOD(return without_end(e, t, a, true))},
        {"removesuffix", METHOD(return without_end(e, t, a, false))},
        {"center", METHOD(return pad(e, t, a, 1))},
        {"ljust", METHOD(return pad(e, t, a, 0))},
        {"rjust", METHOD(return pad(e, t, a, 2))},
        {"zfill", METHOD(return zero_fill(e, t, a))},
        PLAIN("upper", return in_case(t, Case::upper, *Evaluator::Scratch(e), e.arena())),
        PLAIN("lower", return in_case(t, Case::lower, *Evaluator::Scratch(e), e.arena())),
        PLAIN("capitalize", return capitalized(t, *Evaluator::Scratch(e), e.arena())),
        PLAIN("title", return title(e, t)),
        PLAIN("isdigit", return all_chars(t, is_digit)),
        PLAIN("isdecimal", return all_chars(t, is_decimal)),
        PLAIN("isnumeric", return all_chars(t, is_numeric)),
        PLAIN("isalpha", return all_chars(t, is_alphabetic)),
        PLAIN("isalnum", return all_chars(t, [](uint32_t c) { return is_alphabetic(c) || is_numeric(c); })),
        PLAIN("isspace", return all_chars(t, is_space)),
        PLAIN("isascii", return Value::of(ascii_bytes(t.text()) == t.size)),
        PLAIN("isprintable", return Value::of(t.size == 0 || all_chars(t, is_printable).boolean)),
        PLAIN("isupper", return Value::of(is_upper(t.text()))),
        PLAIN("islower", return Value::of(is_lower(t.text()))),
        {"casefold", nullptr},
        {"encode", nullptr},
        {"expandtabs", nullptr},
        {"format_map", nullptr},
        {"isidentifier", nullptr},
        {"istitle", nullptr},
        {"maketrans", nullptr},
        {"swapcase", nullptr},
        {"translate", nullptr},
    };
    return kMethods;
}

#undef PLAIN
#undef METHOD

}  // namespace

bool has_text_method(std::string_view name) {
    return methods().count(name) != 0;
}

Value call_text_method(Evaluator& evaluator, const Value& text, std::string_view name, const Arguments& arguments) {
    const auto found = methods().find(name);
    if (found == methods().end() || found->second == nullptr)
        refuse("calls " + std::string(name) + "() of a text, which is not implemented");
    const bool escapes = name == "replace" || name == "join" || name == "format" || name == "partition";
    if (text.is_safe && escapes)
        refuse("calls " + std::string(name) + "() of a text marked safe, which is not implemented", "",
               "take the filter \"safe\" away, or put it last");
    evaluator.charge(text.size / 16);
    return found->second(evaluator, text, arguments);
}

}  // namespace slab::data::jinja
