// Going through sequences, and what the variable `loop` knows.
#include "data/jinja/evaluator.h"
#include "data/jinja/methods.h"

namespace slab::data::jinja {

Cursor Evaluator::cursor_of(const Value& source) {
    switch (source.type) {
        case Type::string:
        case Type::list:
        case Type::tuple:
        case Type::dict:
        case Type::view:
        case Type::range:
        case Type::generator:
        case Type::undefined:
            return {source};
        default:
            refuse("goes through " + described(source), "a list, text, dict or other sequence");
    }
}

bool Evaluator::next(Cursor& cursor, Value& value) {
    charge(1);
    const Value& source = cursor.source;
    switch (source.type) {
        case Type::list:
        case Type::tuple:
            if (cursor.at >= source.size) return false;
            value = source.items[cursor.at++];
            return true;
        case Type::string: {
            if (cursor.at >= source.size) return false;
            const size_t bytes = char_bytes(source.text(), cursor.at);
            value = part(source, cursor.at, cursor.at + bytes);
            cursor.at += bytes;
            return true;
        }
        case Type::dict:
        case Type::view: {
            if (cursor.at >= source.dict->size) return false;
            const Entry& entry = source.dict->entries[cursor.at++];
            const ViewOf of = source.type == Type::dict ? ViewOf::keys : static_cast<ViewOf>(source.kind);
            value = of == ViewOf::keys ? entry.key : of == ViewOf::values ? entry.value : pair_of(entry);
            return true;
        }
        case Type::range:
            if (cursor.at >= source.range->size) return false;
            value = Value::of(source.range->start + static_cast<int64_t>(cursor.at++) * source.range->step);
            return true;
        case Type::generator: {
            const Deeper deeper(*this);
            return source.generator->next(*this, *source.generator, value);
        }
        default:
            return false;
    }
}

Value Evaluator::pair_of(const Entry& entry) {
    Value* const pair = arena_.array<Value>(2);
    pair[0] = entry.key;
    pair[1] = entry.value;
    return Value::list_of(pair, 2, Type::tuple);
}

Value Evaluator::list_of(const Value& source) {
    if (source.is_list()) return source;
    ListBuilder list(arena_);
    Cursor cursor = cursor_of(source);
    for (Value value; next(cursor, value);) list.add(value);
    return list.finish();
}

Value Evaluator::generator(const Generator& generator) {
    Value value = Value::of_type(Type::generator);
    value.generator = arena_.make<Generator>(generator);
    return value;
}

Arguments Evaluator::kept(const Arguments& arguments) {
    Arguments copy = arguments;
    Value* const values = arena_.array<Value>(arguments.count);
    std::copy_n(arguments.values, arguments.count, values);
    Keyword* const keywords = arena_.array<Keyword>(arguments.keyword_count);
    std::copy_n(arguments.keywords, arguments.keyword_count, keywords);
    copy.values = values;
    copy.keywords = keywords;
    return copy;
}

bool Evaluator::advance(Loop& loop, Value& value) {
    if (loop.after.type != Type::missing) {
        value = loop.after;
        loop.after = Value::missing();
    } else if (!next(loop.cursor, value)) {
        return false;
    }
    ++loop.index0;
    loop.before = loop.current;
    loop.current = value;
    return true;
}

// Whether there is a value after the current one, which is then loop.after.
bool Evaluator::peek(Loop& loop) {
    Value value;
    if (loop.after.type == Type::missing && next(loop.cursor, value)) loop.after = value;
    return loop.after.type != Type::missing;
}

int64_t Evaluator::length_of(Loop& loop) {
    if (loop.length >= 0) return loop.length;
    const Value& source = loop.cursor.source;
    size_t size = 0;
    if (source.is_text()) {
        charge_text(source.size);
        size = count_chars(source.text());
    } else if (!has_length(source, size)) {
        const Value rest = list_of(source);
        loop.cursor = {rest};
        size = rest.size + static_cast<size_t>(loop.index0) + 1 + (loop.after.type != Type::missing);
    }
    return loop.length = static_cast<int64_t>(size);
}

Value Evaluator::loop_attribute(const Value& of, std::string_view name) {
    Loop& loop = *of.loop;
    if (name == "index0") return Value::of(loop.index0);
    if (name == "index") return Value::of(loop.index0 + 1);
    if (name == "first") return Value::of(loop.index0 == 0);
    if (name == "last") return Value::of(!peek(loop));
    if (name == "length") return Value::of(length_of(loop));
    if (name == "revindex") return Value::of(length_of(loop) - loop.index0);
    if (name == "revindex0") return Value::of(length_of(loop) - loop.index0 - 1);
    if (name == "previtem")
        return loop.index0 == 0 ? Value::undefined("there is no previous item", Undefined::nothing) : loop.before;
    if (name == "nextitem")
        return peek(loop) ? loop.after : Value::undefined("there is no next item", Undefined::nothing);
    if (name == "depth") return Value::of(int64_t{1});
    if (name == "depth0") return Value::of(int64_t{0});
    if (name == "cycle" || name == "changed") return method_of(of, name);
    return Value::undefined(name, Undefined::attribute, Type::loop);
}

Value Evaluator::method_of(const Value& of, std::string_view name) {
    Value value = Value::of_type(Type::method);
    value.method = arena_.make<Method>(of, name);
    return value;
}

Value Evaluator::call_loop_method(Loop& loop, std::string_view name, const Arguments& arguments) {
    if (arguments.keyword_count > 0) refuse("gives named arguments to loop." + std::string(name) + "()");
    if (name == "cycle") {
        if (arguments.count == 0) refuse("calls loop.cycle() without values");
        return arguments.values[static_cast<size_t>(loop.index0) % arguments.count];
    }
    const Value values = Value::list_of(kept(arguments).values, arguments.count, Type::tuple);
    const bool is_same = loop.last_changed.type != Type::missing && same(loop.last_changed, values);
    if (!is_same) loop.last_changed = values;
    return Value::of(!is_same);
}

}  // namespace slab::data::jinja
