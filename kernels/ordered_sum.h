// Sums whose order is fixed, whatever gave the terms: gradients and losses of several ranks. And a digest of numbers,
// by which ranks notice that they no longer hold the same.
//
//     sum[i] (= or = sum[i] +) terms[0][i] + terms[1][i] + ..., added one after the other
//
// A gradient that is accumulated in place is this sum too, as each product is finished before it is added.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/runtime/runtime.h"

namespace slab {

template <class Number>
struct AddInOrder {
    Number* sum;          // [n]
    const Number* terms;  // [count] of [n], each `stride` elements after the one before
    size_t stride;
    int count;
    size_t n;
    bool accumulate;  // += instead of =
};

namespace ref {
template <class Number>
void add_in_order(const AddInOrder<Number>& a, ThreadPool& pool);
void digest_numbers(uint64_t* digest /*[1] =*/, const float* numbers /*[n]*/, size_t n, ThreadPool& pool);
}  // namespace ref

void add_in_order(const AddInOrder<float>& a, Stream& stream);
void add_in_order(const AddInOrder<double>& a, Stream& stream);
// A function of all bits and places. Sums of whole numbers, so the order of threads does not matter.
void digest_numbers(uint64_t* digest /*[1] =, device*/, const float* numbers /*[n]*/, size_t n, Stream& stream);

// The term of one number in the digest; the same on every device.
#if defined(__CUDACC__)
__host__ __device__
#endif
    inline uint64_t
    digest_term(uint32_t bits, uint64_t place) {
    uint64_t x = (place << 32 ^ place >> 32 ^ bits) + 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

}  // namespace slab
