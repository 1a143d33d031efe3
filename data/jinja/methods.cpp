// Methods of lists and dicts, and which names are methods at all.
#include "data/jinja/methods.h"

#include <algorithm>

#include "data/jinja/evaluator.h"

namespace slab::data::jinja {
namespace {

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_dict_method(std::string_view name) {
    switch (name.size()) {  // most names are keys: this is asked for each
        case 3:
            return name == "get" || name == "pop";
        case 4:
            return name == "keys" || name == "copy";
        case 5:
            return name == "items" || name == "clear";
        case 6:
            return name == "values" || name == "update";
        case 7:
            return name == "popitem";
        case 8:
            return name == "fromkeys";
        case 10:
            return name == "setdefault";
        default:
            return false;
    }
}

Value view_of(const Value& dict, ViewOf of) {
    Value view = dict;
    view.type = Type::view;
    view.kind = static_cast<uint8_t>(of);
    return view;
}

Value call_dict_method(const Value& dict, std::string_view name, const Arguments& arguments) {
    if (name == "get") {
        if (arguments.keyword_count > 0 || arguments.count == 0 || arguments.count > 2)
            refuse("calls get() with " + std::to_string(arguments.count + arguments.keyword_count) + " arguments",
                   "a key, and a value for its absence");
        if (const Value* const found = dict.dict->find(arguments.values[0])) return *found;
        return arguments.count == 2 ? arguments.values[1] : Value::none();
    }
    if (name == "fromkeys") refuse("calls fromkeys(), which is not implemented");
    check_no_arguments(arguments, "a method of a dict");
    if (name == "keys") return view_of(dict, ViewOf::keys);
    if (name == "values") return view_of(dict, ViewOf::values);
    if (name == "items") return view_of(dict, ViewOf::items);
    return dict;  // copy: nothing can change it
}

Value call_list_method(Evaluator& evaluator, const Value& list, std::string_view name, const Arguments& arguments) {
    if (name == "copy") {
        check_no_arguments(arguments, "copy()");
        return list;
    }
    if (arguments.count != 1 || arguments.keyword_count > 0)
        refuse("calls " + std::string(name) + "() of a list with " + std::to_string(arguments.count) + " values",
               "one value");
    int64_t count = 0;
    Cursor cursor = evaluator.cursor_of(list);
    Value value;
    for (int64_t i = 0; evaluator.next(cursor, value); ++i) {
        if (!evaluator.same(value, arguments.values[0])) continue;
        if (name == "index") return Value::of(i);
        ++count;
    }
    if (name == "index") refuse("calls index() for a value that is not in the list");
    return Value::of(count);
}

}  // namespace

bool has_method(const Value& object, std::string_view name) {
    switch (object.type) {
        case Type::string:
            return has_text_method(name);
        case Type::dict:
            return is_dict_method(name);
        case Type::list:
            return is_one_of(name, {"append", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove",
                                    "reverse", "sort"});
        case Type::tuple:
        case Type::range:
            return is_one_of(name, {"count", "index"});
        case Type::view:
            return is_one_of(name, {"isdisjoint", "mapping"});
        case Type::boolean:
        case Type::integer:
        case Type::number:
            return is_one_of(name,
                             {"as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator", "from_bytes",
                              "fromhex", "hex", "imag", "is_integer", "numerator", "real", "to_bytes"});
        case Type::loop:
            return name == "cycle" || name == "changed";
        default:
            return false;
    }
}

bool changes_its_object(const Value& object, std::string_view name) {
    if (object.type == Type::dict) return is_one_of(name, {"clear", "pop", "popitem", "setdefault", "update"});
    return object.type == Type::list &&
           is_one_of(name, {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"});
}

Value call_method(Evaluator& evaluator, const Value& object, std::string_view name, const Arguments& arguments) {
    if (changes_its_object(object, name)) refuse_undefined(Value::undefined(name, Undefined::forbidden));
    switch (object.type) {
        case Type::string:
            return call_text_method(evaluator, object, name, arguments);
        case Type::dict:
            return call_dict_method(object, name, arguments);
        case Type::list:
        case Type::tuple:
        case Type::range:
            return call_list_method(evaluator, object, name, arguments);
        case Type::loop:
            return evaluator.call_loop_method(*object.loop, name, arguments);
        default:
            refuse("calls \"" + std::string(name) + "\" of " + described(object) + ", which is not implemented");
    }
}

}  // namespace slab::data::jinja
