// The table of tests.
#include "data/jinja/predicates.h"

#include <unordered_map>

#include "data/jinja/evaluator.h"
#include "data/jinja/methods.h"

namespace slab::data::jinja {
namespace {

void check_none(const Arguments& arguments) {
    check_no_arguments(arguments, "a test that takes none");
}

const Value& only_argument(const Arguments& arguments) {
    if (arguments.count != 1 || arguments.keyword_count > 0)
        refuse("gives " + std::to_string(arguments.count + arguments.keyword_count) + " arguments to a test", "one");
    return arguments.values[0];
}

// Python's value % by == rest, of which the first may be a format.
bool leaves(Evaluator& e, const Value& value, const Value& by, int64_t rest) {
    return e.same(e.binary(Operator::modulo, value, by), Value::of(rest));
}

bool is_same_object(const Value& a, const Value& b) {
    if (a.type != b.type) return false;
    switch (a.type) {
        case Type::none:
            return true;
        case Type::boolean:
            return a.boolean == b.boolean;
        case Type::integer:
        case Type::number:
        case Type::string:
            refuse("asks whether numbers or texts are the same object",
                   "==", "Python's answer depends on its own working");
        default:
            return a.items == b.items;
    }
}

#define TEST(condition)                                                                               \
    +[]([[maybe_unused]] Evaluator& e, [[maybe_unused]] const Value& v, const Arguments& a) -> bool { \
        check_none(a);                                                                                \
        return condition;                                                                             \
    }
#define RELATION(condition)                                                          \
    +[]([[maybe_unused]] Evaluator& e, const Value& v, const Arguments& a) -> bool { \
        const Value& w = only_argument(a);                                           \
        return condition;                                                            \
    }

bool goes_through(const Value& v) {
    switch (v.type) {
        case Type::string:
        case Type::list:
        case Type::tuple:
        case Type::dict:
        case Type::view:
        case Type::range:
        case Type::generator:
        case Type::loop:
        case Type::undefined:
            return true;
        default:
            return false;
    }
}

bool is_sequence(const Value& v) {
    return v.is_text() || v.is_list() || v.type == Type::dict || v.type == Type::range || v.type == Type::undefined;
}

bool can_be_called(const Value& v) {
    return v.type == Type::macro || v.type == Type::function || v.type == Type::method || v.type == Type::undefined ||
           v.type == Type::loop;
}

std::string_view text_of_any(Evaluator& e, const Value& value) {
    const std::string_view text = e.str(value).text();
    e.charge(text.size() / 16);
    return text;
}

const std::unordered_map<std::string_view, Predicate>& predicates() {
    static const std::unordered_map<std::string_view, Predicate> kPredicates = {
        {"defined", TEST(v.type != Type::undefined)},
        {"undefined", TEST(v.type == Type::undefined)},
        {"none", TEST(v.type == Type::none)},
        {"boolean", TEST(v.type == Type::boolean)},
        {"true", TEST(v.type == Type::boolean && v.boolean)},
        {"false", TEST(v.type == Type::boolean && !v.boolean)},
        {"integer", TEST(v.type == Type::integer)},
        {"float", TEST(v.type == Type::number)},
        {"number", TEST(v.is_number())},
        {"string", TEST(v.is_text())},
        {"mapping", TEST(v.type == Type::dict)},
        {"iterable", TEST(goes_through(v))},
        {"sequence", TEST(is_sequence(v))},
        {"callable", TEST(can_be_called(v))},
        {"escaped", TEST(v.is_text() && v.is_safe)},
        {"upper", TEST(is_upper(text_of_any(e, v)))},
        {"lower", TEST(is_lower(text_of_any(e, v)))},
        {"odd", TEST(leaves(e, v, Value::of(int64_t{2}), 1))},
        {"even", TEST(leaves(e, v, Value::of(int64_t{2}), 0))},
        {"divisibleby", RELATION(leaves(e, v, w, 0))},
        {"sameas", RELATION(is_same_object(v, w))},
        {"in", RELATION(e.contains(w, v))},
        {"==", RELATION(e.same(v, w))},
        {"eq", RELATION(e.same(v, w))},
        {"equalto", RELATION(e.same(v, w))},
        {"!=", RELATION(!e.same(v, w))},
        {"ne", RELATION(!e.same(v, w))},
        {"<", RELATION(e.compare_by(Operator::less, v, w))},
        {"lt", RELATION(e.compare_by(Operator::less, v, w))},
        {"lessthan", RELATION(e.compare_by(Operator::less, v, w))},
        {"<=", RELATION(e.compare_by(Operator::less_equal, v, w))},
        {"le", RELATION(e.compare_by(Operator::less_equal, v, w))},
        {">", RELATION(e.compare_by(Operator::greater, v, w))},
        {"gt", RELATION(e.compare_by(Operator::greater, v, w))},
        {"greaterthan", RELATION(e.compare_by(Operator::greater, v, w))},
        {">=", RELATION(e.compare_by(Operator::greater_equal, v, w))},
        {"ge", RELATION(e.compare_by(Operator::greater_equal, v, w))},
    };
    return kPredicates;
}

#undef TEST
#undef RELATION

}  // namespace

Predicate predicate_named(std::string_view name) {
    const auto found = predicates().find(name);
    return found == predicates().end() ? nullptr : found->second;
}

}  // namespace slab::data::jinja
