// Operators, attributes, items and slices.
#include <algorithm>
#include <cmath>

#include "data/jinja/evaluator.h"
#include "data/jinja/format.h"
#include "data/jinja/methods.h"

namespace slab::data::jinja {
namespace {

[[noreturn]] void refuse_operands(const char* what, const Value& left, const Value& right) {
    if (left.type == Type::undefined) refuse_undefined(left);
    if (right.type == Type::undefined) refuse_undefined(right);
    refuse(std::string(what) + " " + described(left) + " and " + described(right));
}

Value checked(bool overflows, int64_t result) {
    if (overflows) refuse("computes an integer of more than 64 bits");
    return Value::of(result);
}

int64_t floor_quotient(int64_t a, int64_t b) {
    const int64_t quotient = a / b;
    return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

int64_t floor_remainder(int64_t a, int64_t b) {
    if (b == -1) return 0;  // the least integer % -1 would overflow
    const int64_t rest = a % b;
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

double floor_modulo(double a, double b) {
    const double rest = std::fmod(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest == 0 ? std::copysign(0.0, b) : rest;
}

double floor_quotient(double a, double b) {
    const double quotient = (a - floor_modulo(a, b)) / b;
    const double whole = std::floor(quotient);
    return quotient - whole > 0.5 ? whole + 1 : whole;
}

Value whole_power(int64_t base, int64_t exponent) {
    int64_t result = 1;
    bool overflows = false;
    while (exponent > 0 && !overflows) {
        if (exponent & 1) overflows |= __builtin_mul_overflow(result, base, &result);
        exponent >>= 1;
        if (exponent > 0) overflows |= __builtin_mul_overflow(base, base, &base);
    }
    return checked(overflows, result);
}

Value power(const Value& left, const Value& right) {
    if (left.is_whole() && right.is_whole() && right.whole() >= 0) return whole_power(left.whole(), right.whole());
    const double base = left.real(), exponent = right.real();
    if (base == 0 && exponent < 0) refuse("divides by zero");
    if (base < 0 && exponent != std::floor(exponent)) refuse("takes a root of a negative number");
    const double result = std::pow(base, exponent);
    if (std::isinf(result) && std::isfinite(base) && std::isfinite(exponent))
        refuse("computes a number that is too large");
    return Value::of(result);
}

Value number_operation(Operator op, const Value& left, const Value& right) {
    const bool whole = left.is_whole() && right.is_whole();
    const bool divides = op == Operator::divide || op == Operator::floor_divide || op == Operator::modulo;
    if (divides && right.real() == 0) refuse("divides by zero");
    if (op == Operator::power) return power(left, right);
    if (op == Operator::divide || !whole) {
        const double a = left.real(), b = right.real();
        switch (op) {
            case Operator::add:
                return Value::of(a + b);
            case Operator::subtract:
                return Value::of(a - b);
            case Operator::multiply:
                return Value::of(a * b);
            case Operator::divide:
                return Value::of(a / b);
            case Operator::floor_divide:
                return Value::of(floor_quotient(a, b));
            default:
                return Value::of(floor_modulo(a, b));
        }
    }
    const int64_t a = left.whole(), b = right.whole();
    int64_t result = 0;
    bool overflows = false;
    switch (op) {
        case Operator::add:
            overflows = __builtin_add_overflow(a, b, &result);
            break;
        case Operator::subtract:
            overflows = __builtin_sub_overflow(a, b, &result);
            break;
        case Operator::multiply:
            overflows = __builtin_mul_overflow(a, b, &result);
            break;
        case Operator::floor_divide:
            if (b != -1) return Value::of(floor_quotient(a, b));
            overflows = __builtin_sub_overflow(int64_t{0}, a, &result);
            break;
        default:
            return Value::of(floor_remainder(a, b));
    }
    return checked(overflows, result);
}

Value repeated(Evaluator& evaluator, const Value& of, int64_t times) {
    const size_t count = static_cast<size_t>(std::max<int64_t>(times, 0));
    if (of.is_text()) {
        Evaluator::Scratch text(evaluator);
        for (size_t i = 0; i < count && of.size > 0; ++i) {
            evaluator.charge(1 + of.size / 64);
            text->add(of);
        }
        Value value = text.value();
        value.is_safe = of.is_safe;
        return value;
    }
    ListBuilder list(evaluator.arena());
    for (size_t i = 0; i < count && of.size > 0; ++i) {
        evaluator.charge(of.size);
        for (size_t k = 0; k < of.size; ++k) list.add(of.items[k]);
    }
    return list.finish(of.type);
}

Value sum_of(Evaluator& evaluator, const Value& left, const Value& right) {
    if (left.is_text()) {
        Evaluator::Scratch text(evaluator);
        const bool is_safe = left.is_safe || right.is_safe;
        is_safe && !left.is_safe ? add_escaped(*text, left) : text->add(left);
        is_safe && !right.is_safe ? add_escaped(*text, right) : text->add(right);
        evaluator.charge_text(text->size());
        Value value = text.value();
        value.is_safe = is_safe;
        return value;
    }
    ListBuilder list(evaluator.arena(), left.size + right.size);
    evaluator.charge(left.size + right.size);
    for (const Value* const of : {&left, &right})
        for (size_t i = 0; i < of->size; ++i) list.add(of->items[i]);
    return list.finish(left.type);
}

// The places begin, begin + step ... before end, as Python's slices have them.
struct Places {
    int64_t begin, end, step;
    size_t count;
};

Places places_of(size_t length, std::optional<int64_t> from, std::optional<int64_t> to, int64_t step) {
    const auto size = static_cast<int64_t>(length);
    const int64_t lowest = step > 0 ? 0 : -1, highest = step > 0 ? size : size - 1;
    const auto clamped = [&](int64_t bound) {
        if (bound < 0) bound = bound < -size ? lowest : bound + size;
        return std::clamp(bound, lowest, highest);
    };
    step = std::clamp(step, -(size + 1), size + 1);  // larger ones do the same and could overflow
    const int64_t begin = from ? clamped(*from) : step > 0 ? 0 : size - 1;
    const int64_t end = to ? clamped(*to) : step > 0 ? size : -1;
    const int64_t distance = step > 0 ? end - begin : begin - end;
    return {begin, end, step, distance > 0 ? static_cast<size_t>((distance - 1) / std::abs(step) + 1) : 0};
}

}  // namespace

Value Evaluator::binary(Operator op, const Value& left, const Value& right) {
    if (left.is_number() && right.is_number()) return number_operation(op, left, right);
    switch (op) {
        case Operator::add:
            if ((left.is_text() && right.is_text()) || (left.is_list() && left.type == right.type))
                return sum_of(*this, left, right);
            refuse_operands("adds", left, right);
        case Operator::multiply:
            if ((left.is_text() || left.is_list()) && right.is_whole()) return repeated(*this, left, right.whole());
            if ((right.is_text() || right.is_list()) && left.is_whole()) return repeated(*this, right, left.whole());
            refuse_operands("multiplies", left, right);
        case Operator::modulo:
            if (left.is_text()) return printf_format(*this, left, right);
            refuse_operands("divides", left, right);
        case Operator::subtract:
            refuse_operands("subtracts", left, right);
        case Operator::power:
            refuse_operands("raises to a power", left, right);
        default:
            refuse_operands("divides", left, right);
    }
}

bool Evaluator::same(const Value& a, const Value& b) {
    charge(std::min(a.weight(), b.weight()));
    return equal(a, b);
}

int Evaluator::order(const Value& a, const Value& b) {
    charge(std::min(a.weight(), b.weight()));
    return compare(a, b);
}

bool Evaluator::compare_by(Operator op, const Value& left, const Value& right) {
    switch (op) {
        case Operator::equal:
            return same(left, right);
        case Operator::not_equal:
            return !same(left, right);
        case Operator::in:
            return contains(right, left);
        case Operator::not_in:
            return !contains(right, left);
        default:
            break;
    }
    if (left.type == Type::undefined) refuse_undefined(left);
    if (right.type == Type::undefined) refuse_undefined(right);
    if (left.is_number() && right.is_number() && (std::isnan(left.real()) || std::isnan(right.real()))) return false;
    const int sign = order(left, right);
    switch (op) {
        case Operator::less:
            return sign < 0;
        case Operator::less_equal:
            return sign <= 0;
        case Operator::greater:
            return sign > 0;
        default:
            return sign >= 0;
    }
}

bool Evaluator::contains(const Value& container, const Value& item) {
    switch (container.type) {
        case Type::string:
            if (!item.is_text()) refuse("looks for " + described(item) + " in text", "text");
            charge_text(container.size);
            return find_text(container.text(), item.text()) != std::string_view::npos;
        case Type::dict:
            return container.dict->find(item) != nullptr;
        case Type::view:
            if (container.kind == static_cast<uint8_t>(ViewOf::keys)) return container.dict->find(item) != nullptr;
            break;
        case Type::range: {
            if (!item.is_number() || item.real() != std::floor(item.real())) return false;
            const Range& range = *container.range;
            if (range.size == 0) return false;
            const double index = (item.real() - static_cast<double>(range.start)) / static_cast<double>(range.step);
            return index >= 0 && index < static_cast<double>(range.size) && index == std::floor(index);
        }
        default:
            break;
    }
    Cursor cursor = cursor_of(container);
    for (Value value; next(cursor, value);)
        if (same(value, item)) return true;
    return false;
}

Value Evaluator::attribute_of(const Value& object, std::string_view name) {
    switch (object.type) {
        case Type::undefined:
            refuse_undefined(object);
        case Type::name_space: {
            charge(object.name_space->size / 8);
            const Value* const found = object.name_space->find(name);
            return found != nullptr ? *found : Value::undefined(name, Undefined::attribute, object.type);
        }
        case Type::loop:
            return loop_attribute(object, name);
        case Type::macro:
            if (name == "name" && object.macro->node->name != nullptr)
                return Value::text_of(object.macro->node->name->name);
            break;
        case Type::range:
            if (name == "start") return Value::of(object.range->start);
            if (name == "stop") return Value::of(object.range->stop);
            if (name == "step") return Value::of(object.range->step);
            break;
        default:
            break;
    }
    if (has_method(object, name)) {
        if (changes_its_object(object, name)) return Value::undefined(name, Undefined::forbidden);
        return method_of(object, name);
    }
    if (name.starts_with("__")) return Value::undefined(name, Undefined::forbidden);
    if (object.type == Type::dict)
        if (const Value* const found = object.dict->find(name)) return *found;
    return Value::undefined(name, Undefined::attribute, object.type);
}

Value Evaluator::item_of(const Value& object, const Value& index) {
    if (object.type == Type::undefined) refuse_undefined(object);
    if (object.type == Type::dict) {
        if (const Value* const found = can_be_key(index) ? object.dict->find(index) : nullptr) return *found;
    } else if (index.is_whole()) {
        int64_t at = index.whole(), size = 0;
        size_t length = 0;
        if (object.is_text()) charge_text(object.size);
        if (object.is_text())
            size = static_cast<int64_t>(count_chars(object.text()));
        else if (object.type != Type::view && has_length(object, length))
            size = static_cast<int64_t>(length);
        if (at < 0) at += size;
        if (at >= 0 && at < size) {
            if (object.is_list()) return object.items[at];
            if (object.type == Type::range) return Value::of(object.range->start + at * object.range->step);
            const size_t begin = byte_of_char(object.text(), static_cast<size_t>(at));
            return part(object, begin, begin + char_bytes(object.text(), begin));
        }
    }
    if (!index.is_text()) return Value::undefined("an item", Undefined::attribute, object.type);
    if (object.type == Type::dict && !has_method(object, index.text()))
        return Value::undefined(index.text(), Undefined::attribute, object.type);
    return attribute_of(object, index.text());
}

Value Evaluator::slice_of(const Value& object, std::optional<int64_t> from, std::optional<int64_t> to, int64_t step) {
    if (object.type == Type::undefined) refuse_undefined(object);
    if (step == 0) refuse("takes a slice with a step of 0");
    if (object.is_text()) return text_slice(object, from, to, step);
    if (!object.is_list() && object.type != Type::range)
        refuse("takes a slice of " + described(object), "text or a list");
    size_t size = 0;
    has_length(object, size);
    const Places places = places_of(size, from, to, step);
    if (object.type == Type::range) {
        const Range& range = *object.range;
        Value value = object;
        int64_t by = 0;
        if (__builtin_mul_overflow(range.step, step, &by)) refuse("computes an integer of more than 64 bits");
        value.range = arena_.make<Range>(range.start + places.begin * range.step, range.start + places.end * range.step,
                                         by, places.count);
        return value;
    }
    if (places.step == 1) return Value::list_of(object.items + places.begin, places.count, object.type);
    charge(places.count);
    ListBuilder list(arena_, places.count);
    for (size_t i = 0; i < places.count; ++i)
        list.add(object.items[places.begin + static_cast<int64_t>(i) * places.step]);
    return list.finish(object.type);
}

Value Evaluator::text_slice(const Value& object, std::optional<int64_t> from, std::optional<int64_t> to, int64_t step) {
    charge_text(object.size);
    const std::string_view text = object.text();
    const Places places = places_of(count_chars(text), from, to, step);
    if (places.count == 0) return part(object, 0, 0);
    if (places.step == 1) {
        const size_t first = byte_of_char(text, static_cast<size_t>(places.begin));
        return part(object, first, first + byte_of_char(text.substr(first), places.count));
    }
    charge(text.size());
    std::vector<size_t> begins;  // of characters
    for (size_t at = 0; at < text.size(); at += char_bytes(text, at)) begins.push_back(at);
    Scratch taken(*this);
    for (size_t i = 0; i < places.count; ++i) {
        const size_t at = begins[static_cast<size_t>(places.begin + static_cast<int64_t>(i) * places.step)];
        taken->add_part(object, at, at + char_bytes(text, at));
    }
    Value value = taken.value();
    value.is_safe = object.is_safe;
    return value;
}

}  // namespace slab::data::jinja
