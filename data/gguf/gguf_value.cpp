// The format's thirteen kinds become a bool, a 64-bit whole number, a 64-bit float, a text, or a list of these. A
// list's length is compared with the bytes left of the file before it sizes anything.
#include "data/gguf/gguf_value.h"

#include <cstdint>
#include <limits>
#include <vector>

#include "data/base/display.h"

namespace slab::data {
namespace {

// Kinds of metadata values, by the format's numbers.
enum class Kind : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, text, list, u64, i64, f64 };
constexpr uint32_t kKinds = 13;

size_t bytes_of(Kind kind) {
    switch (kind) {
        case Kind::u8:
        case Kind::i8:
        case Kind::boolean:
            return 1;
        case Kind::u16:
        case Kind::i16:
            return 2;
        case Kind::u32:
        case Kind::i32:
        case Kind::f32:
            return 4;
        default:
            return 8;  // numbers of 64 bits; of a text the length alone, its fewest bytes
    }
}

template <class What>
int64_t read_integer(GgufCursor& cursor, Kind kind, const What& what) {
    switch (kind) {
        case Kind::u8:
            return cursor.number<uint8_t>(what);
        case Kind::i8:
            return cursor.number<int8_t>(what);
        case Kind::u16:
            return cursor.number<uint16_t>(what);
        case Kind::i16:
            return cursor.number<int16_t>(what);
        case Kind::u32:
            return cursor.number<uint32_t>(what);
        case Kind::i32:
            return cursor.number<int32_t>(what);
        case Kind::i64:
            return cursor.number<int64_t>(what);
        case Kind::boolean: {
            const size_t at = cursor.offset();
            const auto value = cursor.number<uint8_t>(what);
            if (value > 1)
                cursor.fail(at, {.given = what() + " is a bool of " + std::to_string(value), .wanted = "0 or 1"});
            return value;
        }
        default: {
            const size_t at = cursor.offset();
            const auto value = cursor.number<uint64_t>(what);
            if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
                cursor.fail(at, {.given = what() + " is " + std::to_string(value), .wanted = "less than 2^63"});
            return static_cast<int64_t>(value);
        }
    }
}

template <class What>
double read_float(GgufCursor& cursor, Kind kind, const What& what) {
    return kind == Kind::f32 ? static_cast<double>(cursor.number<float>(what)) : cursor.number<double>(what);
}

bool is_float(Kind kind) {
    return kind == Kind::f32 || kind == Kind::f64;
}

template <class What>
Kind read_kind(GgufCursor& cursor, const What& what) {
    const size_t at = cursor.offset();
    const auto number = cursor.number<uint32_t>([&] { return "the type of " + what(); });
    if (number >= kKinds)
        cursor.fail(at, {.given = what() + " has value type " + std::to_string(number), .wanted = "0 to 12"});
    return static_cast<Kind>(number);
}

template <class What>
GgufValue read_list(GgufCursor& cursor, const What& what) {
    const Kind kind = read_kind(cursor, [&] { return "the elements of " + what(); });
    if (kind == Kind::list)
        cursor.fail(cursor.offset(), {.given = what() + " is a list of lists", .wanted = "a plain list"});
    const size_t at = cursor.offset();
    const auto count = cursor.number<uint64_t>([&] { return "the length of " + what(); });
    if (count > cursor.left() / bytes_of(kind)) {
        cursor.fail(at, {.given = what() + " says " + std::to_string(count) + " elements, more than the " +
                                  std::to_string(cursor.left()) + " bytes left of the file can hold",
                         .hint = kCutShortHint});
    }
    const auto read_all = [&](auto one) {
        std::vector<decltype(one())> values;
        values.reserve(count);
        for (uint64_t i = 0; i < count; ++i) values.push_back(one());
        return values;
    };
    if (kind == Kind::text) {
        // Not reserved: an empty text takes 8 bytes in the file and four times that in memory.
        std::vector<std::string> values;
        for (uint64_t i = 0; i < count; ++i)
            values.push_back(cursor.text(cursor.left(), [&] { return what() + "[" + std::to_string(i) + "]"; }));
        return values;
    }
    if (is_float(kind)) return read_all([&] { return read_float(cursor, kind, what); });
    return read_all([&] { return read_integer(cursor, kind, what); });
}

}  // namespace

GgufValue read_gguf_value(GgufCursor& cursor, const std::string& key) {
    const auto what = [&] { return quote(key); };
    const Kind kind = read_kind(cursor, what);
    if (kind == Kind::list) return read_list(cursor, what);
    if (kind == Kind::text) return cursor.text(cursor.left(), what);
    if (kind == Kind::boolean) return read_integer(cursor, kind, what) != 0;
    if (is_float(kind)) return read_float(cursor, kind, what);
    return read_integer(cursor, kind, what);
}

}  // namespace slab::data
