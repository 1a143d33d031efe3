// JSON as a template's values. Texts stay where they are: the JSON must outlive the values.
//
// nlohmann::json sorts an object's keys, nlohmann::ordered_json keeps the file's order, which is what tojson of
// transformers shows and so what models have seen.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "data/jinja/value.h"

namespace slab::data::jinja {

// `origin(text)` gives the origin of each text, keys too, in the order of the JSON. Throws a Problem for integers of
// more than 64 bits.
template <class Json, class Origin>
Value from_json(const Json& json, Arena& arena, const Origin& origin) {
    const auto text = [&](const std::string& bytes) { return Value::text_of(bytes, origin(bytes)); };
    if (json.is_string()) return text(json.template get_ref<const std::string&>());
    if (json.is_boolean()) return Value::of(json.template get<bool>());
    if (json.is_number_float()) return Value::of(json.template get<double>());
    if (json.is_number_unsigned() && json.template get<uint64_t>() > INT64_MAX)
        refuse("holds the integer " + json.dump(), "integers of 64 bits");
    if (json.is_number()) return Value::of(json.template get<int64_t>());
    if (json.is_array()) {
        ListBuilder list(arena, json.size());
        for (const Json& item : json) list.add(from_json(item, arena, origin));
        return list.finish();
    }
    if (json.is_object()) {
        DictBuilder dict(arena);
        for (auto item = json.begin(); item != json.end(); ++item)
            dict.set(text(item.key()), from_json(item.value(), arena, origin));
        return dict.finish();
    }
    return Value::none();
}

}  // namespace slab::data::jinja
