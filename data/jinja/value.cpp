// Values: making them, looking keys up, comparing as Python does.
#include "data/jinja/value.h"

#include <cmath>
#include <functional>

namespace slab::data::jinja {
namespace {

constexpr size_t kEntriesWithoutIndex = 8;
constexpr uint32_t kMaxKeyWeight = 1000;  // but for texts, whatever their size
constexpr int kMaxDepth = 200;            // of nested values that are compared; a namespace can hold itself

void check_depth(int depth) {
    if (depth > kMaxDepth)
        refuse("compares values that are nested deeper than " + std::to_string(kMaxDepth) + " levels");
}

void check_key_weight(const Value& key) {
    if (key.type == Type::tuple && key.weight() > kMaxKeyWeight)
        refuse("uses a tuple of " + std::to_string(key.weight()) + " values as a key",
               std::to_string(kMaxKeyWeight) + " at most");
}

uint32_t sum_of_weights(uint64_t sum, const Value& more) {
    return static_cast<uint32_t>(std::min<uint64_t>(UINT32_MAX, sum + more.weight()));
}

size_t hash_of(const Value& key) {
    check_key_weight(key);
    switch (key.type) {
        case Type::string:
            return std::hash<std::string_view>()(key.text());
        case Type::boolean:
        case Type::integer:
            return std::hash<int64_t>()(key.whole());
        case Type::number: {
            const bool is_whole = key.number == std::floor(key.number) && std::abs(key.number) < 9e18;
            return is_whole ? std::hash<int64_t>()(static_cast<int64_t>(key.number)) : std::hash<double>()(key.number);
        }
        case Type::none:
            return 1;
        case Type::undefined:
            return 2;
        case Type::tuple: {
            size_t hash = key.size;
            for (size_t i = 0; i < key.size; ++i) hash = hash * 31 + hash_of(key.items[i]);
            return hash;
        }
        case Type::list:
        case Type::dict:
        case Type::view:
            refuse("uses " + described(key) + " as a key", "text, a number, true, false, none or a tuple of them");
        default:
            return 3;
    }
}

// Python's order of numbers, exact where a double would round an integer.
int compare_numbers(const Value& a, const Value& b) {
    if (a.is_whole() && b.is_whole()) return a.whole() < b.whole() ? -1 : a.whole() > b.whole();
    const double x = a.real(), y = b.real();
    return x < y ? -1 : x > y;
}

bool equal_dicts(const Dict& a, const Dict& b, int depth) {
    if (a.size != b.size) return false;
    for (size_t i = 0; i < a.size; ++i) {
        const Value* const other = b.find(a.entries[i].key);
        if (other == nullptr || !equal(a.entries[i].value, *other, depth + 1)) return false;
    }
    return true;
}

}  // namespace

Value Value::of_type(Type type) {
    Value value;
    value.type = type;
    return value;
}

Value Value::undefined(std::string_view name, Undefined why, Type of) {
    Value value;
    value.origin = static_cast<uint32_t>(of);
    value.kind = static_cast<uint8_t>(why);
    value.bytes = name.data();
    value.size = name.size();
    return value;
}

Value Value::of(bool boolean) {
    Value value = of_type(Type::boolean);
    value.boolean = boolean;
    return value;
}

Value Value::of(int64_t integer) {
    Value value = of_type(Type::integer);
    value.integer = integer;
    return value;
}

Value Value::of(double number) {
    Value value = of_type(Type::number);
    value.number = number;
    return value;
}

Value Value::text_of(std::string_view text, uint32_t origin) {
    Value value = of_type(Type::string);
    value.bytes = text.data();
    value.size = text.size();
    value.origin = origin;
    return value;
}

Value Value::list_of(const Value* items, size_t size, Type type) {
    Value value = of_type(type);
    value.items = items;
    value.size = size;
    for (size_t i = 0; i < size; ++i) value.origin = sum_of_weights(value.origin, items[i]);
    return value;
}

uint32_t Value::weight() const {
    switch (type) {
        case Type::string:
            return static_cast<uint32_t>(std::min<size_t>(UINT32_MAX, 1 + size / 64));
        case Type::list:
        case Type::tuple:
        case Type::dict:
        case Type::view:
            return origin == UINT32_MAX ? origin : origin + 1;
        default:
            return 1;
    }
}

const Value* Dict::find(std::string_view key) const {
    return find(Value::text_of(key));
}

const Value* Dict::find(const Value& key) const {
    if (index != nullptr) {
        for (size_t at = hash_of(key) & (index_size - 1); index[at] != 0; at = (at + 1) & (index_size - 1))
            if (const Entry& entry = entries[index[at] - 1]; equal(entry.key, key)) return &entry.value;
        return nullptr;
    }
    if (key.is_text()) {
        for (size_t i = 0; i < size; ++i)
            if (entries[i].key.is_text() && entries[i].key.text() == key.text()) return &entries[i].value;
        return nullptr;
    }
    hash_of(key);  // refuses what is no key
    for (size_t i = 0; i < size; ++i)
        if (equal(entries[i].key, key)) return &entries[i].value;
    return nullptr;
}

Value* Namespace::find(std::string_view name) const {
    for (size_t i = 0; i < size; ++i)
        if (attributes[i].key.text() == name) return &attributes[i].value;
    return nullptr;
}

void Namespace::set(std::string_view name, const Value& value, Arena& arena) {
    if (Value* const found = find(name)) {
        *found = value;
    } else {
        add(name, value, arena);
    }
}

void Namespace::add(std::string_view name, const Value& value, Arena& arena) {
    if (size == capacity) {
        capacity = std::max<size_t>(4, capacity * 2);
        Entry* const moved = arena.array<Entry>(capacity);
        std::copy(attributes, attributes + size, moved);
        attributes = moved;
    }
    attributes[size++] = {Value::text_of(name), value};
}

ListBuilder::ListBuilder(Arena& arena, size_t capacity) : arena_(arena), capacity_(capacity) {
    if (capacity > 0) items_ = arena.array<Value>(capacity);
}

void ListBuilder::add(const Value& value) {
    if (size_ == capacity_) {
        capacity_ = std::max<size_t>(4, capacity_ * 2);
        Value* const moved = arena_.array<Value>(capacity_);
        std::copy(items_, items_ + size_, moved);
        items_ = moved;
    }
    items_[size_++] = value;
}

void DictBuilder::grow() {
    capacity_ = std::max<size_t>(4, capacity_ * 2);
    Entry* const moved = arena_.array<Entry>(capacity_);
    std::copy(entries_, entries_ + size_, moved);
    entries_ = moved;
    if (capacity_ <= kEntriesWithoutIndex) return;
    index_size_ = capacity_ * 2;
    index_ = arena_.array<uint32_t>(index_size_);
    std::fill_n(index_, index_size_, 0u);
    for (size_t i = 0; i < size_; ++i) {
        size_t at = hash_of(entries_[i].key) & (index_size_ - 1);
        while (index_[at] != 0) at = (at + 1) & (index_size_ - 1);
        index_[at] = static_cast<uint32_t>(i + 1);
    }
}

void DictBuilder::set(const Value& key, const Value& value) {
    if (const Value* const found = find(key)) {
        *const_cast<Value*>(found) = value;  // an entry of this builder
        return;
    }
    if (size_ == UINT32_MAX) refuse("makes a dict of more than four billion keys");
    if (size_ == capacity_) grow();
    entries_[size_++] = {key, value};
    if (index_ == nullptr) return;
    size_t at = hash_of(key) & (index_size_ - 1);
    while (index_[at] != 0) at = (at + 1) & (index_size_ - 1);
    index_[at] = static_cast<uint32_t>(size_);
}

Value DictBuilder::finish() {
    Value value = Value::of_type(Type::dict);
    value.dict = arena_.make<Dict>(entries_, size_, index_, index_size_);
    for (size_t i = 0; i < size_; ++i)
        value.origin = sum_of_weights(sum_of_weights(value.origin, entries_[i].key), entries_[i].value);
    return value;
}

bool truthy(const Value& value) {
    switch (value.type) {
        case Type::missing:
        case Type::undefined:
        case Type::none:
            return false;
        case Type::boolean:
            return value.boolean;
        case Type::integer:
            return value.integer != 0;
        case Type::number:
            return value.number != 0;
        case Type::string:
        case Type::list:
        case Type::tuple:
            return value.size != 0;
        case Type::dict:
        case Type::view:
            return value.dict->size != 0;
        case Type::range:
            return value.range->size != 0;
        default:
            return true;
    }
}

bool equal(const Value& a, const Value& b, int depth) {
    check_depth(depth);
    if (a.is_number() && b.is_number()) {
        if (a.is_whole() && b.is_whole()) return a.whole() == b.whole();
        return a.real() == b.real();
    }
    if (a.type != b.type) return false;
    switch (a.type) {
        case Type::string:
            return a.text() == b.text();
        case Type::list:
        case Type::tuple:
            if (a.size != b.size) return false;
            for (size_t i = 0; i < a.size; ++i)
                if (!equal(a.items[i], b.items[i], depth + 1)) return false;
            return true;
        case Type::dict:
            return a.dict == b.dict || equal_dicts(*a.dict, *b.dict, depth);
        case Type::range:
            return a.range->size == b.range->size &&
                   (a.range->size == 0 ||
                    (a.range->start == b.range->start && (a.range->size == 1 || a.range->step == b.range->step)));
        case Type::view:
            if (a.kind != b.kind || a.dict != b.dict) refuse("compares views of dicts", "lists: dict.keys()|list");
            return true;
        case Type::function:
            return a.kind == b.kind;
        case Type::undefined:
        case Type::none:
            return true;
        default:
            return a.items == b.items;  // the same object
    }
}

int compare(const Value& a, const Value& b, int depth) {
    check_depth(depth);
    if (a.is_number() && b.is_number()) return compare_numbers(a, b);
    if (a.is_text() && b.is_text()) return a.text().compare(b.text());  // UTF-8 sorts as code points do
    if (a.is_list() && a.type == b.type) {
        for (size_t i = 0; i < std::min(a.size, b.size); ++i)
            if (!equal(a.items[i], b.items[i], depth + 1)) return compare(a.items[i], b.items[i], depth + 1);
        return a.size < b.size ? -1 : a.size > b.size;
    }
    refuse("compares " + described(a) + " with " + described(b), "two numbers, two texts or two lists");
}

void refuse_undefined(const Value& value) {
    const std::string name(value.text());
    switch (static_cast<Undefined>(value.kind)) {
        case Undefined::variable:
            refuse("uses \"" + name + "\", which is not defined");
        case Undefined::attribute:
            refuse("uses \"" + name + "\" of " + described(Value::of_type(static_cast<Type>(value.origin))) +
                   ", which does not have it");
        case Undefined::forbidden:
            refuse("uses \"" + name + "\", which a template may not", "", "templates cannot change lists and dicts");
        case Undefined::refused:
            refuse("uses \"" + name + "\", which is not implemented");
        case Undefined::nothing:
            break;
    }
    refuse("uses a value that is not defined: " + name);
}

bool can_be_key(const Value& value) {
    check_key_weight(value);
    if (value.type == Type::tuple) return std::all_of(value.items, value.items + value.size, can_be_key);
    return value.type != Type::list && value.type != Type::dict && value.type != Type::view;
}

std::string described(const Value& value) {
    switch (value.type) {
        case Type::missing:
        case Type::undefined:
            return "an undefined value";
        case Type::none:
            return "none";
        case Type::boolean:
            return "true or false";
        case Type::integer:
        case Type::number:
            return "a number";
        case Type::string:
            return "text";
        case Type::list:
            return "a list";
        case Type::tuple:
            return "a tuple";
        case Type::dict:
            return "a dict";
        case Type::view:
            return "a view of a dict";
        case Type::range:
            return "a range";
        case Type::generator:
            return "a generator";
        case Type::name_space:
            return "a namespace";
        case Type::macro:
            return "a macro";
        case Type::function:
            return "a function";
        case Type::method:
            return "a method";
        case Type::loop:
            return "a loop";
    }
    return "";
}

bool has_length(const Value& value, size_t& size) {
    switch (value.type) {
        case Type::list:
        case Type::tuple:
            size = value.size;
            return true;
        case Type::dict:
        case Type::view:
            size = value.dict->size;
            return true;
        case Type::range:
            size = value.range->size;
            return true;
        case Type::undefined:
            size = 0;
            return true;
        default:
            return false;
    }
}

}  // namespace slab::data::jinja
