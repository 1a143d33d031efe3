// Filters that look at a whole sequence at once.
#include <algorithm>

#include "data/jinja/evaluator.h"
#include "data/jinja/filters.h"
#include "data/jinja/paths.h"
#include "data/jinja/unicode.h"

namespace slab::data::jinja {
namespace {

Value length(Evaluator& e, const Value& value, const Arguments& arguments) {
    check_no_arguments(arguments, "length");
    if (value.is_text()) return Value::of(static_cast<int64_t>(count_chars(value.text())));
    size_t size = 0;
    if (value.type == Type::loop) return e.attribute_of(value, "length");
    if (!has_length(value, size)) refuse("asks for the length of " + described(value), "text, a list or a dict");
    return Value::of(static_cast<int64_t>(size));
}

Value join(Evaluator& e, const Value& value, const Arguments& arguments) {
    const auto [between, attribute] = bind(arguments, "join", {"d", "attribute"});
    const Path path = path_of(e, attribute);
    Evaluator::Scratch separator(e);
    if (between != nullptr) add_str(*separator, *between);
    const Value separator_text = separator.value();
    Evaluator::Scratch out(e);
    Cursor cursor = e.cursor_of(value);
    bool is_first = true;
    for (Value item; e.next(cursor, item); is_first = false) {
        if (!is_first) out->add(separator_text);
        add_str(*out, follow(e, path, item));
    }
    e.charge_text(out->size());
    return out.value();
}

Value first(Evaluator& e, const Value& value, const Arguments& arguments) {
    check_no_arguments(arguments, "first");
    Cursor cursor = e.cursor_of(value);
    Value item;
    return e.next(cursor, item) ? item : Value::undefined("the first item of an empty sequence", Undefined::nothing);
}

Value last(Evaluator& e, const Value& value, const Arguments& arguments) {
    check_no_arguments(arguments, "last");
    if (value.type == Type::generator) refuse("asks for the last item of a generator", "a list", "|list|last");
    if (value.is_text()) {
        if (value.size > 0)
            return e.part(value, value.size - std::max<size_t>(1, utf8_char_before(value.text(), value.size).bytes),
                          value.size);
    } else {
        const Value items = e.list_of(value);
        if (items.size > 0) return items.items[items.size - 1];
    }
    return Value::undefined("the last item of an empty sequence", Undefined::nothing);
}

Value list(Evaluator& e, const Value& value, const Arguments& arguments) {
    check_no_arguments(arguments, "list");
    Value items = e.list_of(value);
    items.type = Type::list;
    return items;
}

// Texts in lower case, so that they sort without regard to it; everything else as it is.
Value sort_key(Evaluator& e, const Value& value, bool case_sensitive) {
    if (case_sensitive || !value.is_text()) return value;
    e.charge(value.size / 16);
    return in_case(value, Case::lower, *Evaluator::Scratch(e), e.arena());
}

// The items in the order of their keys; items with equal keys keep theirs.
Value sorted(Evaluator& e, const Value& items, const Value* keys, bool reverse) {
    std::vector<size_t> order(items.size);
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
        if (keys[a].type == Type::undefined) refuse_undefined(keys[a]);
        return reverse ? e.order(keys[b], keys[a]) < 0 : e.order(keys[a], keys[b]) < 0;
    });
    ListBuilder list(e.arena(), items.size);
    for (const size_t i : order) list.add(items.items[i]);
    return list.finish();
}

Value sort(Evaluator& e, const Value& value, const Arguments& arguments) {
    const auto [reverse, case_sensitive, attribute] =
        bind(arguments, "sort", {"reverse", "case_sensitive", "attribute"});
    const bool by_case = case_sensitive != nullptr && truthy(*case_sensitive);
    const std::vector<Path> paths = paths_of(e, attribute);
    const Value items = e.list_of(value);
    Value* const keys = e.arena().array<Value>(items.size);
    for (size_t i = 0; i < items.size; ++i) {
        ListBuilder key(e.arena(), paths.size());
        for (const Path& path : paths) key.add(sort_key(e, follow(e, path, items.items[i]), by_case));
        keys[i] = key.finish();  // a list even of one: equal values need no order then, as undefined ones have none
    }
    return sorted(e, items, keys, reverse != nullptr && truthy(*reverse));
}

Value dictsort(Evaluator& e, const Value& value, const Arguments& arguments) {
    const auto [case_sensitive, by, reverse] = bind(arguments, "dictsort", {"case_sensitive", "by", "reverse"});
    if (value.type == Type::undefined) refuse_undefined(value);
    if (value.type != Type::dict) refuse("sorts " + described(value) + " as a dict", "a dict");
    const std::string_view what = by == nullptr ? "key" : text_of(*by, "what to sort by");
    if (what != "key" && what != "value")
        refuse("sorts a dict by \"" + std::string(what) + "\"", "\"key\" or \"value\"");
    const bool by_case = case_sensitive != nullptr && truthy(*case_sensitive);
    Value* const keys = e.arena().array<Value>(value.dict->size);
    ListBuilder pairs(e.arena(), value.dict->size);
    for (size_t i = 0; i < value.dict->size; ++i) {
        const Entry& entry = value.dict->entries[i];
        keys[i] = sort_key(e, what == "key" ? entry.key : entry.value, by_case);
        pairs.add(e.pair_of(entry));
    }
    return sorted(e, pairs.finish(), keys, reverse != nullptr && truthy(*reverse));
}

Value extreme(Evaluator& e, const Value& value, const Arguments& arguments, bool largest) {
    const auto [case_sensitive, attribute] = bind(arguments, largest ? "max" : "min", {"case_sensitive", "attribute"});
    const bool by_case = case_sensitive != nullptr && truthy(*case_sensitive);
    const Path path = path_of(e, attribute);
    Cursor cursor = e.cursor_of(value);
    Value best, best_key;
    bool is_first = true;
    for (Value item; e.next(cursor, item); is_first = false) {
        const Value key = sort_key(e, follow(e, path, item), by_case);
        if (!is_first && (largest ? e.order(key, best_key) <= 0 : e.order(key, best_key) >= 0)) continue;
        best = item;
        best_key = key;
    }
    return is_first ? Value::undefined("the least or largest item of an empty sequence", Undefined::nothing) : best;
}

Value minimum(Evaluator& e, const Value& value, const Arguments& arguments) {
    return extreme(e, value, arguments, false);
}
Value maximum(Evaluator& e, const Value& value, const Arguments& arguments) {
    return extreme(e, value, arguments, true);
}

Value sum(Evaluator& e, const Value& value, const Arguments& arguments) {
    const auto [attribute, start] = bind(arguments, "sum", {"attribute", "start"});
    const Path path = path_of(e, attribute);
    Value total = start == nullptr ? Value::of(int64_t{0}) : *start;
    if (total.is_text()) refuse("sums up texts", "numbers", "the filter join puts texts together");
    Cursor cursor = e.cursor_of(value);
    for (Value item; e.next(cursor, item);) total = e.binary(Operator::add, total, follow(e, path, item));
    return total;
}

}  // namespace

const NamedFilter kListFilters[] = {
    {"count", length}, {"dictsort", dictsort}, {"first", first}, {"join", join}, {"last", last}, {"length", length},
    {"list", list},    {"max", maximum},       {"min", minimum}, {"sort", sort}, {"sum", sum},   {{}, nullptr},
};

}  // namespace slab::data::jinja
