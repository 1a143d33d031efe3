// Attention of new tokens over a key/value cache. Generating text uses it, for one token or a piece of the prompt at a
// time.
//
// The cache holds the keys and values of one sequence's tokens, one row a token, after rotation. New rows are appended
// first. Then query i, the token at place n - Tq + i, attends to the keys [0, n - Tq + i]: p = softmax(scale * q·k),
// out = sum p v. Query head h reads key/value head h / (NH / NKV). The order of sums is a function of shapes alone.
#pragma once

#include <cstddef>

#include "kernels/attention/attention.h"
#include "kernels/runtime/real.h"
#include "kernels/runtime/runtime.h"

namespace slab {

// k_cache[first + i] = k[i], v_cache[first + i] = v[i]
template <class Number>
struct CacheAppend {
    Number* k_cache;  // [positions, NKV, HD], dense
    Number* v_cache;  // [positions, NKV, HD], dense
    const Number* k;  // [rows, NKV, HD], row stride ld_k
    const Number* v;  // [rows, NKV, HD], row stride ld_v
    size_t rows, first;
    int cols;  // NKV HD
    size_t ld_k, ld_v;
};

template <class Number>
struct AttentionCached {
    Number* out;            // [Tq, NH, HD], dense
    const Number* q;        // [Tq, NH, HD], row stride ld_q
    const Number* k_cache;  // [n, NKV, HD], dense
    const Number* v_cache;  // [n, NKV, HD], dense
    int Tq, n;              // n: keys, the queries' own being the last Tq of them
    int NH, NKV, HD;
    size_t ld_q;
    float scale;
};

namespace ref {
template <class Number>
void cache_append(const CacheAppend<Number>& a, ThreadPool& pool);
template <class Number>
void attention_cached(const AttentionCached<Number>& a, ThreadPool& pool);
}  // namespace ref

void cache_append(const CacheAppend<real>& a, Stream& stream);
void attention_cached(const AttentionCached<real>& a, Stream& stream);

}  // namespace slab
