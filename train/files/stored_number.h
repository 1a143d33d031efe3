// Numbers of model files on their way into memory: the check for finite values, and storing as T with a count of the
// values that T cannot hold exactly.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "kernels/runtime/real.h"

namespace slab::train {

inline bool is_finite(float value) {
    return (std::bit_cast<uint32_t>(value) & 0x7f800000u) != 0x7f800000u;
}

// The largest exponent decides, without a branch in the loop: a model's weights pass through here at memory speed.
template <class T>  // float or bf16
bool all_finite(const T* values /* [count] */, size_t count) {
    using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
    constexpr Bits exponent = sizeof(T) == 2 ? Bits{0x7f80u} : static_cast<Bits>(0x7f800000u);
    Bits largest = 0;
    for (size_t i = 0; i < count; ++i) {
        const Bits bits = std::bit_cast<Bits>(values[i]) & exponent;
        largest = std::max(largest, bits);
    }
    return largest != exponent;
}

// Throws the UserError for a weight that is a NaN or an infinity. subject: file, tensor, type and shape.
[[noreturn]] void refuse_not_finite(const std::string& subject, float value, size_t elem, size_t offset_bytes);

struct NumberStore {
    size_t inexact_elems = 0;
    bool beyond_range = false;  // a finite value became infinite

    void put(float value, float* to) { *to = value; }
    void put(float value, bf16* to) {
        *to = to_bf16(value);
        inexact_elems += (std::bit_cast<uint32_t>(value) & 0xffffu) != 0;
        beyond_range |= !is_finite(to_float(*to));
    }
};

}  // namespace slab::train
