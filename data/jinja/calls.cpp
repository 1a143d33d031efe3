// Variables, macros and the functions that every template has.
#include <algorithm>
#include <ctime>

#include "data/jinja/evaluator.h"
#include "data/jinja/methods.h"

namespace slab::data::jinja {
namespace {

constexpr size_t kMaxRange = 100'000;  // as Jinja's sandbox has it

Value range_of(Evaluator& evaluator, const Arguments& arguments) {
    const auto [first, second, third] = bind(arguments, "range()", {"start", "stop", "step"}, 1);
    int64_t start = 0, stop = whole_of(*first, "a range's bound"), step = 1;
    if (second != nullptr) {
        start = stop;
        stop = whole_of(*second, "a range's bound");
    }
    if (third != nullptr) step = whole_of(*third, "a range's step");
    if (step == 0) refuse("makes a range with a step of 0");
    // Unsigned, since the distance of two integers of 64 bits may need all of them.
    const auto from = static_cast<uint64_t>(start), to = static_cast<uint64_t>(stop), by = static_cast<uint64_t>(step);
    uint64_t size = 0;
    if (step > 0 && start < stop) size = (to - from - 1) / by + 1;
    if (step < 0 && start > stop) size = (from - to - 1) / (0 - by) + 1;
    if (size > kMaxRange)
        refuse("makes a range of " + std::to_string(size) + " numbers", std::to_string(kMaxRange) + " at most");
    Value value = Value::of_type(Type::range);
    value.range = evaluator.arena().make<Range>(start, stop, step, static_cast<size_t>(size));
    return value;
}

// dict(mapping or pairs, name=value ...)
void add_dict_arguments(Evaluator& evaluator, const Arguments& arguments, const char* of, DictBuilder& dict) {
    if (arguments.count > 1) refuse(std::string("gives several values to ") + of, "one dict, and NAME=VALUE");
    if (arguments.count == 1) {
        const Value& given = arguments.values[0];
        if (given.type == Type::undefined) refuse_undefined(given);
        if (given.type == Type::dict) {
            for (size_t i = 0; i < given.dict->size; ++i)
                dict.set(given.dict->entries[i].key, given.dict->entries[i].value);
        } else {
            Cursor cursor = evaluator.cursor_of(given);
            for (Value pair; evaluator.next(cursor, pair);) {
                const Value both = evaluator.list_of(pair);
                if (both.size != 2)
                    refuse(std::string("gives a pair of ") + std::to_string(both.size) + " values to " + of);
                dict.set(both.items[0], both.items[1]);
            }
        }
    }
    for (size_t i = 0; i < arguments.keyword_count; ++i)
        dict.set(Value::text_of(arguments.keywords[i].name), arguments.keywords[i].value);
}

Value namespace_of(Evaluator& evaluator, const Arguments& arguments) {
    DictBuilder dict(evaluator.arena());
    add_dict_arguments(evaluator, arguments, "namespace()", dict);
    const Dict& given = *dict.finish().dict;
    Namespace& space = *evaluator.arena().make<Namespace>(nullptr, size_t{0}, size_t{0});
    for (size_t i = 0; i < given.size; ++i) {
        const std::string_view name = text_of(given.entries[i].key, "a name of namespace()");
        if (name.starts_with('_'))
            refuse("makes a namespace with the name \"" + std::string(name) + "\"",
                   "a name that begins with no underscore");
        space.add(name, given.entries[i].value, evaluator.arena());
    }
    Value value = Value::of_type(Type::name_space);
    value.name_space = &space;
    return value;
}

Value now_as(Evaluator& evaluator, const Arguments& arguments) {
    const auto [format] = bind(arguments, "strftime_now()", {"format"}, 1);
    const std::string_view text = text_of(*format, "the format of strftime_now()");
    Evaluator::Scratch out(evaluator);
    for (size_t i = 0; i < text.size(); ++i) {
        if (text[i] != '%') {
            out->add(text.substr(i, 1));
            continue;
        }
        std::string conversion = "%";
        size_t at = i + 1;
        if (at < text.size() && text[at] == '-') conversion += text[at++];  // without padding
        if (at == text.size() || std::string_view("aAbBcCdDeFgGhHIjklmMnpPrRStTuUVwWxXyY%").find(text[at]) == text.npos)
            refuse("asks strftime_now() for \"" + std::string(text.substr(i, at - i + 1)) + "\"",
                   "a conversion of strftime, such as %Y or %d");
        conversion += text[at];
        char shown[128];
        out->add({shown, std::strftime(shown, sizeof shown, conversion.c_str(), &evaluator.options().now)});
        i = at;
    }
    return out.value();
}

}  // namespace

Value* Evaluator::slot(const Place& place) {
    Activation* activation = activation_;
    for (uint32_t i = 0; i < place.hops; ++i) activation = activation->outer;
    return &activation->slots[place.index];
}

Value Evaluator::value_at(const Place& place) {
    return place.kind == Place::Kind::slot ? *slot(place) : context_[place.index];
}

Activation* Evaluator::activate(uint32_t slots, uint32_t id, Activation* outer) {
    Activation* activation = free_[id];
    if (activation != nullptr) {
        free_[id] = activation->next_free;
        activation->outer = outer;
    } else {
        activation = arena_.make<Activation>(outer, arena_.array<Value>(slots), false, nullptr);
    }
    std::fill_n(activation->slots, slots, Value::missing());
    return activation;
}

void Evaluator::deactivate(Activation* activation, uint32_t id) {
    if (activation->is_kept) return;
    activation->next_free = free_[id];
    free_[id] = activation;
}

Value Evaluator::make_macro(const MacroNode& node) {
    for (Activation* kept = activation_; kept != nullptr; kept = kept->outer) kept->is_kept = true;
    Value value = Value::of_type(Type::macro);
    value.macro = arena_.make<Macro>(&node, activation_);
    return value;
}

void Evaluator::bind_macro(const MacroNode& node, const Arguments& arguments, Value* slots) {
    const size_t count = node.parameters.size();
    const auto name = [&] { return node.name == nullptr ? "the call block" : "macro \"" + node.name->name + "\""; };
    for (size_t i = 0; i < std::min(count, arguments.count); ++i)
        slots[node.parameters[i].name->place.index] = arguments.values[i];
    if (arguments.count > count && node.rest_slot < 0)
        refuse("gives " + std::to_string(arguments.count) + " arguments to " + name(),
               std::to_string(count) + " at most");
    if (node.rest_slot >= 0) {
        ListBuilder rest(arena_);
        for (size_t i = count; i < arguments.count; ++i) rest.add(arguments.values[i]);
        slots[node.rest_slot] = rest.finish(Type::tuple);
    }
    DictBuilder others(arena_);
    charge(arguments.keyword_count * (1 + count / 8));
    for (size_t k = 0; k < arguments.keyword_count; ++k) {
        const Keyword& keyword = arguments.keywords[k];
        if (keyword.name == "caller" && node.caller_slot >= 0) continue;
        size_t i = arguments.count;
        while (i < count && node.parameters[i].name->name != keyword.name) ++i;
        if (i < count) {
            slots[node.parameters[i].name->place.index] = keyword.value;
        } else if (node.keywords_slot >= 0) {
            others.set(Value::text_of(keyword.name), keyword.value);
        } else {
            refuse("gives the argument \"" + std::string(keyword.name) + "\" to " + name() +
                   ", which does not take it");
        }
    }
    if (node.keywords_slot >= 0) slots[node.keywords_slot] = others.finish();
    if (node.caller_slot >= 0) {
        const Value* const caller = arguments.keyword("caller");
        slots[node.caller_slot] =
            caller != nullptr && caller->type != Type::none ? *caller : Value::undefined("caller");
    }
}

Value Evaluator::call_macro(const Macro& macro, const Arguments& arguments) {
    const Deeper deeper(*this);
    const MacroNode& node = *macro.node;
    Activation* const inner = activate(node.slots, node.id, macro.outer);
    bind_macro(node, arguments, inner->slots);
    Activation* const before = activation_;
    activation_ = inner;
    Scratch printed(*this);
    TextBuilder* const outer = out_;
    out_ = &*printed;
    open(node.scope);
    for (const MacroNode::Parameter& parameter : node.parameters) {
        Value& value = inner->slots[parameter.name->place.index];
        if (value.type != Type::missing) continue;
        value = parameter.preset != nullptr ? eval(*parameter.preset) : Value::undefined(parameter.name->name);
    }
    run_all(node.body);
    out_ = outer;
    activation_ = before;
    deactivate(inner, node.id);
    return printed.value();
}

Value Evaluator::call_function(Function function, const Arguments& arguments) {
    switch (function) {
        case Function::range:
            return range_of(*this, arguments);
        case Function::dict: {
            DictBuilder dict(arena_);
            add_dict_arguments(*this, arguments, "dict()", dict);
            return dict.finish();
        }
        case Function::name_space:
            return namespace_of(*this, arguments);
        case Function::raise_exception: {
            const auto [message] = bind(arguments, "raise_exception()", {"message"}, 1);
            Problem problem;
            problem.given = str(*message).text();
            problem.raised = true;
            throw problem;
        }
        case Function::strftime_now:
            return now_as(*this, arguments);
    }
    throw std::logic_error("an unknown function");
}

Value Evaluator::call(const Value& function, const Arguments& arguments) {
    switch (function.type) {
        case Type::macro:
            return call_macro(*function.macro, arguments);
        case Type::function:
            return call_function(static_cast<Function>(function.kind), arguments);
        case Type::method:
            return call_method(*this, function.method->of, function.method->name, arguments);
        case Type::loop:
            refuse("calls \"loop\"", "", "recursive loops are not implemented; a macro can call itself");
        case Type::undefined:
            refuse_undefined(function);
        default:
            refuse("calls " + described(function), "a macro, function or method");
    }
}

}  // namespace slab::data::jinja
