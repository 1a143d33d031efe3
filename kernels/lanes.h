// Sums and maxima over a row, at vector speed and in a fixed order.
//
// Lane j takes the elements j, j + lanes, ...; the lanes are combined in ascending order at the end. The order is a
// function of the row's length alone. So bits depend on neither threads nor alignment, and -ffast-math is not needed.
// The code uses GCC's vector extension, because gcc did not vectorise plain arrays of lanes.
#pragma once

#include <cstddef>
#include <cstring>

namespace slab {

// Two 32-byte vectors, so that two dependent chains overlap: 16 floats or 8 doubles.
template <class A>
struct Lanes {
    typedef A Vector __attribute__((vector_size(32)));
    static constexpr size_t width = 32 / sizeof(A), count = 2 * width;
};

// sum of term(i) for i < n
template <class A, class Term>
inline A lane_sum(size_t n, Term term) {
    using L = Lanes<A>;
    typename L::Vector low = {}, high = {};
    size_t i = 0;
    for (; i + L::count <= n; i += L::count) {
        A terms[L::count];
        for (size_t j = 0; j < L::count; ++j) terms[j] = term(i + j);
        typename L::Vector a, b;
        std::memcpy(&a, terms, sizeof a);
        std::memcpy(&b, terms + L::width, sizeof b);
        low += a;
        high += b;
    }
    A sum = 0;
    for (size_t j = 0; j < L::width; ++j) sum += low[j];
    for (size_t j = 0; j < L::width; ++j) sum += high[j];
    for (; i < n; ++i) sum += term(i);
    return sum;
}

// The largest of x[i] for i < n, and of `least`. Ignores NaN.
template <class A>
inline A lane_max(const A* x /*[n]*/, size_t n, A least) {
    using L = Lanes<A>;
    typename L::Vector low, high;
    for (size_t j = 0; j < L::width; ++j) low[j] = high[j] = least;
    size_t i = 0;
    for (; i + L::count <= n; i += L::count) {
        typename L::Vector a, b;
        std::memcpy(&a, x + i, sizeof a);
        std::memcpy(&b, x + i + L::width, sizeof b);
        low = a > low ? a : low;
        high = b > high ? b : high;
    }
    A largest = least;
    for (size_t j = 0; j < L::width; ++j) largest = low[j] > largest ? low[j] : largest;
    for (size_t j = 0; j < L::width; ++j) largest = high[j] > largest ? high[j] : largest;
    for (; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
    return largest;
}

}  // namespace slab
