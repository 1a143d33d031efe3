// Binding of arguments.
#include "data/jinja/arguments.h"

namespace slab::data::jinja {

const Value* Arguments::keyword(std::string_view name) const {
    for (size_t i = 0; i < keyword_count; ++i)
        if (keywords[i].name == name) return &keywords[i].value;
    return nullptr;
}

void bind_into(const Arguments& arguments, const char* of, const char* const* names, size_t count, size_t required,
               const Value** into) {
    if (arguments.count > count)
        refuse("gives " + std::to_string(arguments.count) + " arguments to " + of, std::to_string(count) + " at most");
    for (size_t i = 0; i < arguments.count; ++i) into[i] = &arguments.values[i];
    for (size_t k = 0; k < arguments.keyword_count; ++k) {
        const Keyword& keyword = arguments.keywords[k];
        size_t i = 0;
        while (i < count && keyword.name != names[i]) ++i;
        if (i == count) refuse("gives the unknown argument \"" + std::string(keyword.name) + "\" to " + of);
        if (into[i] != nullptr) refuse("gives the argument \"" + std::string(keyword.name) + "\" twice to " + of);
        into[i] = &keyword.value;
    }
    for (size_t i = 0; i < required; ++i)
        if (into[i] == nullptr) refuse("leaves out the argument \"" + std::string(names[i]) + "\" of " + of);
}

void check_no_arguments(const Arguments& arguments, const char* of) {
    if (arguments.count + arguments.keyword_count > 0) refuse(std::string("gives arguments to ") + of, "none");
}

int64_t whole_of(const Value& value, const char* what) {
    if (!value.is_whole()) refuse("gives " + described(value) + " as " + what, "a whole number");
    return value.whole();
}

std::string_view text_of(const Value& value, const char* what) {
    if (!value.is_text()) refuse("gives " + described(value) + " as " + what, "text");
    return value.text();
}

}  // namespace slab::data::jinja
