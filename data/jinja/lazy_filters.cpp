// Filters that Python makes generators of, and the paths that they follow. What they give can be gone through once.
#include <algorithm>
#include <charconv>

#include "data/jinja/evaluator.h"
#include "data/jinja/filters.h"
#include "data/jinja/paths.h"
#include "data/jinja/predicates.h"
#include "data/jinja/unicode.h"

namespace slab::data::jinja {

Path path_of(Evaluator& e, const Value* attribute) {
    if (attribute == nullptr || attribute->type == Type::none) return {};
    ListBuilder steps(e.arena());
    if (!attribute->is_text()) {
        steps.add(*attribute);
    } else {
        const std::string_view text = attribute->text();
        for (size_t at = 0; at <= text.size();) {
            const size_t dot = std::min(text.find('.', at), text.size());
            const std::string_view step = text.substr(at, dot - at);
            int64_t number = 0;
            const bool is_number = !step.empty() && step.find_first_not_of("0123456789") == step.npos &&
                                   std::from_chars(step.data(), step.data() + step.size(), number).ec == std::errc();
            steps.add(is_number ? Value::of(number) : Value::text_of(step));
            at = dot + 1;
        }
    }
    return {steps.items(), steps.size()};
}

std::vector<Path> paths_of(Evaluator& e, const Value* attribute) {
    if (attribute == nullptr || !attribute->is_text()) return {path_of(e, attribute)};
    std::vector<Path> paths;
    const std::string_view text = attribute->text();
    for (size_t at = 0; at <= text.size();) {
        const size_t comma = std::min(text.find(',', at), text.size());
        const Value one = Value::text_of(text.substr(at, comma - at));
        paths.push_back(path_of(e, &one));
        at = comma + 1;
    }
    return paths;
}

Value follow(Evaluator& e, const Path& path, const Value& item, const Value* otherwise) {
    Value value = item;
    for (size_t i = 0; i < path.size; ++i) {
        value = e.item_of(value, path.steps[i]);
        if (otherwise != nullptr && value.type == Type::undefined) value = *otherwise;
    }
    return value;
}

namespace {

// A generator without values, for what is empty: Python looks at nothing else then.
Value empty(Evaluator& e) {
    return e.generator({[](Evaluator&, Generator&, Value&) { return false; }, {}});
}

Value over(Evaluator& e, const Value& value, Generator::Next next) {
    return e.generator({next, e.cursor_of(value)});
}

bool next_attribute(Evaluator& e, Generator& g, Value& value) {
    if (!e.next(g.source, value)) return false;
    value = follow(e, {g.path, g.path_size}, value, g.state.type == Type::none ? nullptr : &g.state);
    return true;
}

bool next_filtered(Evaluator& e, Generator& g, Value& value) {
    if (!e.next(g.source, value)) return false;
    if (value.is_text()) e.charge(value.size / 16);
    value = g.filter(e, value, g.arguments);
    return true;
}

Value map(Evaluator& e, const Value& value, const Arguments& arguments) {
    if (!truthy(value)) return empty(e);
    Generator made{next_attribute, e.cursor_of(value)};
    if (arguments.count == 0 && arguments.keyword("attribute") != nullptr) {
        const auto [attribute, otherwise] = bind(arguments, "map", {"attribute", "default"}, 1);
        const Path path = path_of(e, attribute);
        made.path = path.steps;
        made.path_size = path.size;
        if (otherwise != nullptr) made.state = *otherwise;
        return e.generator(made);
    }
    if (arguments.count == 0) refuse("calls map without a filter", "map(\"FILTER\") or map(attribute=\"NAME\")");
    const std::string_view name = text_of(arguments.values[0], "the filter of map");
    made.next = next_filtered;
    made.filter = filter_named(name);
    if (made.filter == nullptr) refuse("uses the unknown filter \"" + std::string(name) + "\" in map");
    made.arguments = e.kept(arguments.after(1));
    return e.generator(made);
}

bool next_selected(Evaluator& e, Generator& g, Value& value) {
    while (e.next(g.source, value)) {
        const Value looked_at = follow(e, {g.path, g.path_size}, value);
        const bool holds = g.predicate == nullptr ? truthy(looked_at) : g.predicate(e, looked_at, g.arguments);
        if (holds != g.reject) return true;
    }
    return false;
}

Value selected(Evaluator& e, const Value& value, const Arguments& arguments, bool by_attribute, bool reject) {
    if (!truthy(value)) return empty(e);
    Generator made{next_selected, e.cursor_of(value)};
    made.reject = reject;
    if (by_attribute) {
        if (arguments.count == 0) refuse("selects by an attribute without its name", "selectattr(\"NAME\")");
        const Path path = path_of(e, &arguments.values[0]);
        made.path = path.steps;
        made.path_size = path.size;
    }
    if (arguments.count > by_attribute) {
        const std::string_view name = text_of(arguments.values[by_attribute], "the test of a selection");
        made.predicate = predicate_named(name);
        if (made.predicate == nullptr) refuse("uses the unknown test \"" + std::string(name) + "\" in a selection");
        made.arguments = e.kept(arguments.after(size_t{1} + by_attribute));
    }
    return e.generator(made);
}

Value select(Evaluator& e, const Value& v, const Arguments& a) {
    return selected(e, v, a, false, false);
}
Value reject(Evaluator& e, const Value& v, const Arguments& a) {
    return selected(e, v, a, false, true);
}
Value selectattr(Evaluator& e, const Value& v, const Arguments& a) {
    return selected(e, v, a, true, false);
}
Value rejectattr(Evaluator& e, const Value& v, const Arguments& a) {
    return selected(e, v, a, true, true);
}

Value items(Evaluator& e, const Value& value, const Arguments& arguments) {
    check_no_arguments(arguments, "items");
    if (value.type == Type::undefined) return empty(e);
    if (value.type != Type::dict) refuse("asks for the items of " + described(value), "a dict");
    Value view = value;
    view.type = Type::view;
    view.kind = static_cast<uint8_t>(ViewOf::items);
    return over(e, view, [](Evaluator& of, Generator& g, Value& item) { return of.next(g.source, item); });
}

Value reverse(Evaluator& e, const Value& value, const Arguments& arguments) {
    check_no_arguments(arguments, "reverse");
    if (value.is_text()) return e.slice_of(value, {}, {}, -1);
    const Value reversed = e.slice_of(e.list_of(value), {}, {}, -1);
    if (value.type == Type::generator) {  // Python takes a list here
        Value list = reversed;
        list.type = Type::list;
        return list;
    }
    return over(e, reversed, [](Evaluator& of, Generator& g, Value& item) { return of.next(g.source, item); });
}

bool next_unique(Evaluator& e, Generator& g, Value& value) {
    while (e.next(g.source, value)) {
        Value key = follow(e, {g.path, g.path_size}, value);
        if (key.is_text()) e.charge(key.size / 16);
        if (!g.case_sensitive && key.is_text()) key = in_case(key, Case::lower, *Evaluator::Scratch(e), e.arena());
        if (g.seen->find(key) != nullptr) continue;
        g.seen->set(key, Value::none());
        return true;
    }
    return false;
}

Value unique(Evaluator& e, const Value& value, const Arguments& arguments) {
    const auto [case_sensitive, attribute] = bind(arguments, "unique", {"case_sensitive", "attribute"});
    Generator made{next_unique, e.cursor_of(value)};
    const Path path = path_of(e, attribute);
    made.path = path.steps;
    made.path_size = path.size;
    made.case_sensitive = case_sensitive != nullptr && truthy(*case_sensitive);
    made.seen = e.arena().make<DictBuilder>(e.arena());
    return e.generator(made);
}

Value batch(Evaluator& e, const Value& value, const Arguments& arguments) {
    const auto [count, fill] = bind(arguments, "batch", {"linecount", "fill_with"}, 1);
    const int64_t size = whole_of(*count, "the size of a batch");
    const Value all = e.list_of(value);
    ListBuilder batches(e.arena());
    for (size_t at = 0; at < all.size;) {
        const size_t end = size <= 0 ? all.size : std::min(all.size, at + static_cast<size_t>(size));
        ListBuilder one(e.arena(), end - at);
        for (; at < end; ++at) one.add(all.items[at]);
        if (fill != nullptr && fill->type != Type::none)
            for (e.charge(static_cast<size_t>(std::max<int64_t>(size, 0))); static_cast<int64_t>(one.size()) < size;)
                one.add(*fill);
        batches.add(one.finish());
    }
    return over(e, batches.finish(), [](Evaluator& of, Generator& g, Value& item) { return of.next(g.source, item); });
}

Value slice(Evaluator& e, const Value& value, const Arguments& arguments) {
    const auto [count, fill] = bind(arguments, "slice", {"slices", "fill_with"}, 1);
    const int64_t slices = whole_of(*count, "the number of slices");
    if (slices < 1) refuse("makes " + std::to_string(slices) + " slices", "1 or more");
    const Value all = e.list_of(value);
    const auto number = static_cast<size_t>(slices);
    e.charge(number);
    ListBuilder lists(e.arena());
    for (size_t i = 0, at = 0; i < number; ++i) {
        const bool is_longer = i < all.size % number;
        const size_t size = all.size / number + is_longer;
        ListBuilder one(e.arena(), size + 1);
        for (size_t k = 0; k < size; ++k) one.add(all.items[at++]);
        if (fill != nullptr && fill->type != Type::none && !is_longer) one.add(*fill);
        lists.add(one.finish());
    }
    return over(e, lists.finish(), [](Evaluator& of, Generator& g, Value& item) { return of.next(g.source, item); });
}

}  // namespace

const NamedFilter kLazyFilters[] = {
    {"batch", batch},           {"items", items},     {"map", map},       {"reject", reject},
    {"rejectattr", rejectattr}, {"reverse", reverse}, {"select", select}, {"selectattr", selectattr},
    {"slice", slice},           {"unique", unique},   {{}, nullptr},
};

Filter filter_named(std::string_view name) {
    for (const NamedFilter* table : {kTextFilters, kListFilters, kLazyFilters})
        for (; !table->name.empty(); ++table)
            if (table->name == name) return table->filter;
    return nullptr;
}

}  // namespace slab::data::jinja
