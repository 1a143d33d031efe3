// One table of types, in the order of the enum.
#include "train/files/dtype.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <iterator>

#include "kernels/half.h"
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
