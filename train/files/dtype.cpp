// One table of types, in the order of the enum.
#include "train/files/dtype.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <iterator>

#include "train/files/stored_number.h"

namespace slab::train {
namespace {

struct DTypeInfo {
    DType dtype;
    const char* name;
    size_t bytes;
};
constexpr DTypeInfo kDTypes[] = {
    {DType::boolean, "BOOL", 1},    {DType::u8, "U8", 1},   {DType::i8, "I8", 1},   {DType::f8_e4m3, "F8_E4M3", 1},
    {DType::f8_e5m2, "F8_E5M2", 1}, {DType::u16, "U16", 2}, {DType::i16, "I16", 2}, {DType::f16, "F16", 2},
    {DType::bf16, "BF16", 2},       {DType::u32, "U32", 4}, {DType::i32, "I32", 4}, {DType::f32, "F32", 4},
    {DType::u64, "U64", 8},         {DType::i64, "I64", 8}, {DType::f64, "F64", 8},
};

const DTypeInfo& info_of(DType dtype) {
    const DTypeInfo& info = kDTypes[static_cast<size_t>(dtype)];
    assert(info.dtype == dtype);
    return info;
}

// Float to F16, to nearest even. Beyond the range it becomes an infinity; NaN stays NaN.
uint16_t narrow_f16(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude >= 0x7f800000u) return sign | (magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u);
    if (magnitude < 0x38800000u) {  // below 2^-14: in steps of 2^-24, to which adding 0.5 rounds (its steps are 2^-24)
        const float rounded = std::bit_cast<float>(magnitude) + 0.5f;
        return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(rounded) - 0x3f000000u);
    }
    const uint32_t even = magnitude >> 13 & 1u;  // a carry goes on into the exponent, as it should
    const uint32_t half = (magnitude - 0x38000000u + 0xfffu + even) >> 13;
    return sign | static_cast<uint16_t>(std::min(half, 0x7c00u));
}

}  // namespace

size_t dtype_bytes(DType dtype) {
    return info_of(dtype).bytes;
}

const char* dtype_name(DType dtype) {
    return info_of(dtype).name;
}

const DType* dtype_named(std::string_view name) {
    const auto* found =
        std::find_if(std::begin(kDTypes), std::end(kDTypes), [&](const DTypeInfo& info) { return name == info.name; });
    return found == std::end(kDTypes) ? nullptr : &found->dtype;
}

std::string all_dtype_names() {
    std::string all;
    for (const DTypeInfo& info : kDTypes) all += std::string(all.empty() ? "" : ", ") + info.name;
    return all;
}

std::string shape_text(const std::vector<size_t>& shape) {
    std::string text = "[";
    for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
    return text + "]";
}

bool store_as(DType dtype, const float* values, size_t count, std::byte* dst) {
    if (dtype == DType::f32) {
        std::memcpy(dst, values, count * sizeof(float));
        return true;
    }
    assert(dtype == DType::f16 || dtype == DType::bf16);
    bool in_range = true;
    for (size_t i = 0; i < count; ++i) {
        const uint16_t narrow = dtype == DType::bf16 ? to_bf16(values[i]).bits : narrow_f16(values[i]);
        const uint16_t exponent = dtype == DType::bf16 ? 0x7f80u : 0x7c00u;
        in_range &= (narrow & exponent) != exponent || !is_finite(values[i]);
        std::memcpy(dst + i * sizeof narrow, &narrow, sizeof narrow);
    }
    return in_range;
}

}  // namespace slab::train
