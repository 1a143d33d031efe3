// The values that templates compute with, as Python has them.
//
// A Value is 24 bytes, copied bitwise; what it points to lives in an Arena or belongs to the caller, and never changes
// but for namespaces, loops and generators. A text knows where each of its bytes comes from: one origin for all of it,
// or spans. Origins are the caller's numbers; 0 means the template itself.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "data/jinja/arena.h"

namespace slab::data::jinja {

// Bytes begin to end-1 of a text come from `origin`.
struct Span {
    size_t begin, end;
    uint32_t origin;
};

inline constexpr uint32_t kTemplateOrigin = 0;
// Added to the origin of what a generation block printed.
inline constexpr uint32_t kGenerated = uint32_t{1} << 31;

enum class Type : uint8_t {
    missing,  // a variable without a value; no expression has it
    undefined,
    none,
    boolean,
    integer,
    number,  // a float
    string,
    list,
    tuple,
    dict,
    view,  // what keys(), values() and items() give
    range,
    generator,  // can be gone through once
    name_space,
    macro,
    function,
    method,
    loop,
};

// Why something is undefined, in Value::kind.
enum class Undefined : uint8_t { variable, attribute, forbidden, refused, nothing };
enum class ViewOf : uint8_t { keys, values, items };
enum class Function : uint8_t { range, dict, name_space, raise_exception, strftime_now };

struct Value;
struct Dict;
struct Generator;
struct Namespace;
struct Macro;
struct Method;
struct Loop;

// A text of several origins; gaps between the spans are the template's.
struct MixedText {
    const char* bytes;
    const Span* spans;  // [span_count] ascending, none empty, none of the template
    size_t span_count;
};

struct Range {
    int64_t start, stop, step;
    size_t size;
};

struct Value {
    Type type = Type::undefined;
    bool is_safe = false;   // a text marked safe for HTML: what is added to it is escaped
    bool is_mixed = false;  // a text of several origins
    uint8_t kind = 0;       // Undefined, ViewOf or Function
    // Of all of a text that is not mixed. Elsewhere: the weight of a list, tuple, dict or view, the Type of what lacks
    // an undefined attribute.
    uint32_t origin = 0;
    union {
        bool boolean;
        int64_t integer;
        double number;
        const char* bytes;  // of a string, or of the name of what is undefined
        const MixedText* mixed;
        const Value* items;  // of a list or tuple
        const Dict* dict;    // of a dict or view
        const Range* range;
        Generator* generator;
        Namespace* name_space;
        const Macro* macro;
        const Method* method;
        Loop* loop;
    };
    size_t size = 0;  // bytes of a text or name, items of a list or tuple

    Value() : integer(0) {}

    static Value missing() { return of_type(Type::missing); }
    static Value none() { return of_type(Type::none); }
    // `of` is the type of what should have it.
    static Value undefined(std::string_view name, Undefined why = Undefined::variable, Type of = Type::undefined);
    static Value of(bool boolean);
    static Value of(int64_t integer);
    static Value of(double number);
    // The bytes stay the caller's and must outlive the value.
    static Value text_of(std::string_view text, uint32_t origin = kTemplateOrigin);
    static Value list_of(const Value* items, size_t size, Type type = Type::list);
    static Value of_type(Type type);

    bool is(Type wanted) const { return type == wanted; }
    // What comparing the value costs in steps: its parts, theirs and so on, each as often as it occurs. At most
    // UINT32_MAX.
    uint32_t weight() const;
    bool is_text() const { return type == Type::string; }
    bool is_list() const { return type == Type::list || type == Type::tuple; }
    bool is_whole() const { return type == Type::integer || type == Type::boolean; }
    bool is_number() const { return is_whole() || type == Type::number; }
    std::string_view text() const { return {is_mixed ? mixed->bytes : bytes, size}; }
    int64_t whole() const { return type == Type::boolean ? boolean : integer; }
    double real() const { return type == Type::number ? number : static_cast<double>(whole()); }
};

struct Entry {
    Value key, value;
};

struct Dict {
    const Entry* entries;  // [size] in the order in which they were put in
    size_t size;
    const uint32_t* index;  // [index_size] entry + 1, by hash; null for few entries
    size_t index_size;      // a power of two

    const Value* find(const Value& key) const;  // null when absent; throws a Problem for what is no key
    const Value* find(std::string_view key) const;
};

// The one thing that a template can change.
struct Namespace {
    Entry* attributes;  // [size] keys are texts
    size_t size, capacity;

    Value* find(std::string_view name) const;
    void add(std::string_view name, const Value& value, Arena& arena);  // a new one
    void set(std::string_view name, const Value& value, Arena& arena);
};

// Grow in the arena; what they return stays valid as long as it.
class ListBuilder {
  public:
    explicit ListBuilder(Arena& arena, size_t capacity = 0);
    void add(const Value& value);
    size_t size() const { return size_; }
    Value finish(Type type = Type::list) const { return Value::list_of(items_, size_, type); }
    const Value* items() const { return items_; }

  private:
    Arena& arena_;
    Value* items_ = nullptr;
    size_t size_ = 0, capacity_;
};

class DictBuilder {
  public:
    explicit DictBuilder(Arena& arena) : arena_(arena) {}
    // A key given twice keeps its place and takes the new value.
    void set(const Value& key, const Value& value);
    const Value* find(const Value& key) const { return Dict{entries_, size_, index_, index_size_}.find(key); }
    Value finish();

  private:
    void grow();
    Arena& arena_;
    Entry* entries_ = nullptr;
    uint32_t* index_ = nullptr;
    size_t size_ = 0, capacity_ = 0, index_size_ = 0;
};

// Throws a Problem for tuples that are too large for a key.
bool can_be_key(const Value& value);
bool truthy(const Value& value);
// Python's ==. Costs the lesser weight; the evaluator's own same() and order() charge it. Throws a Problem where
// nesting is deep.
bool equal(const Value& a, const Value& b, int depth = 0);
// Negative, 0 or positive; throws a Problem where Python cannot order them either.
int compare(const Value& a, const Value& b, int depth = 0);
// Says which value is undefined, and throws.
[[noreturn]] void refuse_undefined(const Value& value);
// For messages: "a list", "text".
std::string described(const Value& value);
// The values of a sequence that is held in memory; false for what must be gone through.
bool has_length(const Value& value, size_t& size);

}  // namespace slab::data::jinja
