// The element types of stored tensors, as safetensors files name them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "kernels/runtime/real.h"

namespace slab::train {

enum class DType { boolean, u8, i8, f8_e4m3, f8_e5m2, u16, i16, f16, bf16, u32, i32, f32, u64, i64, f64 };
size_t dtype_bytes(DType dtype);
const char* dtype_name(DType dtype);  // as the format spells it: "F32"
// The type of that name, or nullptr.
const DType* dtype_named(std::string_view name);
std::string all_dtype_names();  // "BOOL, U8, ..."

template <class T>
constexpr DType dtype_of() {
    static_assert(std::is_same_v<T, float> || std::is_same_v<T, bf16> || std::is_same_v<T, int32_t>);
    if constexpr (std::is_same_v<T, float>) return DType::f32;
    if constexpr (std::is_same_v<T, bf16>) return DType::bf16;
    return DType::i32;
}

std::string shape_text(const std::vector<size_t>& shape);  // "[2, 3]"

// Stores values [count] in dst [count x dtype_bytes(dtype)], each rounded once to nearest even; dtype is f32, f16 or
// bf16. Returns false when a finite value became an infinity: in F16 all beyond 65504, in BF16 nearly none.
bool store_as(DType dtype, const float* values, size_t count, std::byte* dst);

}  // namespace slab::train
