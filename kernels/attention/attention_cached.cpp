// Attention over a key/value cache on the CPU.
//
// A unit of work is one head's tile of queries. It walks the keys tile by tile with a running maximum and sum per query
// (online softmax), so memory does not grow with the cache. Generating has one query: a unit is then a head, and its
// products are dot products and sums of rows.
#include "kernels/attention/attention_cached.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/fast_math.h"
#include "kernels/lanes.h"
#include "kernels/matmul.h"

namespace slab {
namespace ref {
namespace {

constexpr int kQueries = 32;  // of a tile
constexpr int kKeys = 128;

// Scores of one query against the first `keys` of a tile join its running softmax: s becomes exp(s - maximum), and zero
// from `keys` on.
template <class A>
void join_softmax(A* s /*[N]*/, int keys, int N, A& maximum, A& sum, A* out /*[HD]*/, int HD) {
    if (keys > 0) {
        const size_t n = static_cast<size_t>(keys);
        const A before = maximum;
        maximum = lane_max(s, n, before);
        for (int j = 0; j < keys; ++j) s[j] = fast_exp(s[j] - maximum);
        const A rescale = fast_exp(before - maximum);  // the first time: exp(-inf) = 0
        sum = sum * rescale + lane_sum<A>(n, [=](size_t j) { return s[j]; });
        for (int c = 0; c < HD; ++c) out[c] *= rescale;
    }
    std::fill(s + std::clamp(keys, 0, N), s + N, A{0});
}

// Queries [q0, q0 + M) of head h.
template <class Number>
void attend(const AttentionCached<Number>& a, int h, int q0, int M) {
    using A = Acc<Number>;
    const size_t HD = static_cast<size_t>(a.HD), ld_kv = static_cast<size_t>(a.NKV) * HD;
    const Number* q = a.q + static_cast<size_t>(q0) * a.ld_q + h * HD;
    const size_t kv_at = static_cast<size_t>(h / (a.NH / a.NKV)) * HD;
    const int first_place = a.n - a.Tq + q0;  // of query q0
    std::vector<A> S(static_cast<size_t>(M) * kKeys), out(M * HD), sum(M), maximum(M);
    std::fill(maximum.begin(), maximum.end(), -std::numeric_limits<A>::infinity());
    for (int k0 = 0; k0 < first_place + M; k0 += kKeys) {
        const int N = std::min(kKeys, first_place + M - k0);
        const Number* k = a.k_cache + static_cast<size_t>(k0) * ld_kv + kv_at;
        const Number* v = a.v_cache + static_cast<size_t>(k0) * ld_kv + kv_at;
        gemm<Number>(false, true, M, N, a.HD, a.scale, q, a.ld_q, k, ld_kv, 0, S.data(), kKeys);
        for (int i = 0; i < M; ++i)
            join_softmax(S.data() + static_cast<size_t>(i) * kKeys, std::min(N, first_place + i + 1 - k0), N,
                         maximum[i], sum[i], out.data() + i * HD, a.HD);
        gemm<Number>(false, false, M, a.HD, N, 1, S.data(), kKeys, v, ld_kv, 1, out.data(), HD);
    }
    for (int i = 0; i < M; ++i) {
        Number* to = a.out + (static_cast<size_t>(q0 + i) * a.NH + h) * HD;
        const A inverse = 1 / sum[i];
        for (size_t c = 0; c < HD; ++c) to[c] = out[i * HD + c] * inverse;
    }
}

}  // namespace

template <class Number>
void cache_append(const CacheAppend<Number>& a, ThreadPool& pool) {
    constexpr size_t kTileRows = 16;
    const size_t cols = static_cast<size_t>(a.cols), row_bytes = cols * sizeof(Number);
    pool.parallel_ranges(a.rows, kTileRows, [&](size_t begin, size_t end) {
        for (size_t i = begin; i < end; ++i) {
            std::memcpy(a.k_cache + (a.first + i) * cols, a.k + i * a.ld_k, row_bytes);
            std::memcpy(a.v_cache + (a.first + i) * cols, a.v + i * a.ld_v, row_bytes);
        }
    });
}

template <class Number>
void attention_cached(const AttentionCached<Number>& a, ThreadPool& pool) {
    const size_t heads = static_cast<size_t>(a.NH), tiles = static_cast<size_t>((a.Tq + kQueries - 1) / kQueries);
    pool.parallel_for(heads * tiles, [&](size_t unit) {
        const int q0 = static_cast<int>(tiles - 1 - unit / heads) * kQueries;  // the longest first
        attend(a, static_cast<int>(unit % heads), q0, std::min(kQueries, a.Tq - q0));
    });
}

template void cache_append(const CacheAppend<float>&, ThreadPool&);
template void cache_append(const CacheAppend<double>&, ThreadPool&);
template void attention_cached(const AttentionCached<float>&, ThreadPool&);
template void attention_cached(const AttentionCached<double>&, ThreadPool&);

}  // namespace ref

#if !defined(SLABSTREAM_CUDA)
void cache_append(const CacheAppend<real>& a, Stream& stream) {
    stream.enqueue("cache_append", [a](ThreadPool& pool) { ref::cache_append(a, pool); });
}

void attention_cached(const AttentionCached<real>& a, Stream& stream) {
    stream.enqueue("attention_cached", [a](ThreadPool& pool) { ref::attention_cached(a, pool); });
}
#endif

}  // namespace slab
