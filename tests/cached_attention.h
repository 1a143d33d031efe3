// Shapes of attention over a key/value cache, with the operations' arguments. The tests of the reference, the CPU
// backend and the device share them.
#pragma once

#include <cmath>
#include <cstddef>

#include "kernels/attention/attention_cached.h"

namespace slab::test {

struct CachedShape {
    int Tq, n, NH, NKV, HD;
    size_t padding;  // columns beside q (and, where they are appended from rows, beside k and v)
    size_t q_cols() const { return static_cast<size_t>(NH) * HD; }
    size_t kv_cols() const { return static_cast<size_t>(NKV) * HD; }
    float scale() const { return 1 / std::sqrt(static_cast<float>(HD)); }
};

// Queries q [Tq, NH HD], row stride ld_q, over the caches [n, NKV HD].
template <class T>
AttentionCached<T> cached_arguments(const CachedShape& s, T* out, const T* q, size_t ld_q, const T* k_cache,
                                    const T* v_cache) {
    return {.out = out,
            .q = q,
            .k_cache = k_cache,
            .v_cache = v_cache,
            .Tq = s.Tq,
            .n = s.n,
            .NH = s.NH,
            .NKV = s.NKV,
            .HD = s.HD,
            .ld_q = ld_q,
            .scale = s.scale()};
}

// Rows [first, first + rows) of k and v, row stride ld each, into the caches' rows of the same numbers.
template <class T>
CacheAppend<T> append_arguments(const CachedShape& s, T* k_cache, T* v_cache, const T* k, const T* v, size_t ld,
                                size_t first, size_t rows) {
    return {.k_cache = k_cache,
            .v_cache = v_cache,
            .k = k + first * ld,
            .v = v + first * ld,
            .rows = rows,
            .first = first,
            .cols = static_cast<int>(s.kv_cols()),
            .ld_k = ld,
            .ld_v = ld};
}

}  // namespace slab::test
