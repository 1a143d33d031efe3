// Causal grouped-query attention on the CPU, tile by tile: matrix products through ref::gemm, exponentials over rows.
//
// Forward: a unit of work is one query tile of one head. It walks the visible key tiles with a running maximum and sum
// per row (online softmax).
// Backward: a unit is one strip of one key/value head, which is every strips-th key tile. It writes dk and dv of its
// tiles for all query heads of the group, and adds to dq. Strips keep several threads busy when there are few heads.
// All but the first add to a dq of their own; these are summed in ascending order at the end. A pair of tiles takes 5
// matrix products; separate passes for dq and dk/dv would take 7.
//
// Tiles and strips are functions of shapes alone, so bits do not depend on threads. Key tiles start at multiples of
// kKeys. Tiles above the diagonal are never touched, nor those before the documents of all their queries.
#include "kernels/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/fast_math.h"
#include "kernels/lanes.h"
#include "kernels/matmul.h"

namespace slab {
namespace ref {
namespace {

constexpr int kQueries = 64;  // query rows of a tile
constexpr int kKeys = 128;    // key columns of a tile
static_assert(kKeys % kQueries == 0);
constexpr int kBackwardUnits = 16;  // wanted units of backward work
constexpr int kMaxStrips = 8;       // bounds the copies of dq

int tiles_of(int T_len, int tile) {
    return (T_len + tile - 1) / tile;
}

int backward_strips(int B, int T_len, int NKV) {
    const int wanted = tiles_of(kBackwardUnits, std::max(1, B * NKV));
    return std::clamp(wanted, 1, std::min(kMaxStrips, tiles_of(T_len, kKeys)));
}

// A tile of scores: queries [q0, q0 + M) against keys [k0, k0 + N) of batch row b. Row i attends to the columns
// [begin(i), end(i)), which may be none.
struct Tile {
    const int32_t* doc_start;  // [T] of batch row b, or null
    int q0, M, k0, N;

    int begin(int i) const { return doc_start ? std::clamp(doc_start[q0 + i] - k0, 0, N) : 0; }
    int end(int i) const { return std::clamp(q0 + i + 1 - k0, 0, N); }
};

// The keys that a query tile needs of the key tile at k0: none beyond its last row.
Tile make_tile(const int32_t* doc_start, int T_len, int q0, int k0) {
    const int M = std::min(kQueries, T_len - q0);
    return {doc_start, q0, M, k0, std::min({kKeys, T_len - k0, q0 + M - k0})};
}

template <class I>
const I* row_of(const I* doc_start /*[B, T] or null*/, int b, int T_len) {
    return doc_start ? doc_start + static_cast<size_t>(b) * T_len : nullptr;
}

// One tile's scores join the running softmax. S becomes exp(S - maximum), zero where masked. The sums of earlier tiles
// in `out` are rescaled to the new maximum.
template <class A>
void join_softmax(const Tile& tile, int HD, A* S /*[M, kKeys]*/, A* maximum /*[M]*/, A* sum /*[M]*/,
                  A* out /*[M, HD]*/) {
    for (int i = 0; i < tile.M; ++i) {
        A* s = S + static_cast<size_t>(i) * kKeys;
        const int begin = tile.begin(i), end = tile.end(i);
        if (begin >= end) {  // before the row's document
            std::fill(s, s + tile.N, A{0});
            continue;
        }
        const size_t n = static_cast<size_t>(end - begin);
        const A before = maximum[i], now = lane_max(s + begin, n, before);
        for (int j = begin; j < end; ++j) s[j] = fast_exp(s[j] - now);
        std::fill(s, s + begin, A{0});
        std::fill(s + end, s + tile.N, A{0});
        const A tile_sum = lane_sum<A>(n, [=](size_t j) { return s[begin + j]; });
        const A rescale = fast_exp(before - now);  // the first time: exp(-inf) = 0
        sum[i] = sum[i] * rescale + tile_sum;
        maximum[i] = now;
        if (rescale != 1) {
            A* o = out + static_cast<size_t>(i) * HD;
            for (int c = 0; c < HD; ++c) o[c] *= rescale;
        }
    }
}

// One query tile of one head.
template <class Number>
void forward_unit(const AttentionForward<Number>& a, int b, int h, int q0) {
    using A = Acc<Number>;
    const size_t row0 = static_cast<size_t>(b) * a.T_len, HD = static_cast<size_t>(a.HD);
    const Number* q = a.q + (row0 + q0) * a.ld_q + h * HD;
    const size_t kv_at = static_cast<size_t>(h / (a.NH / a.NKV)) * HD;
    const int32_t* doc_start = row_of(a.doc_start, b, a.T_len);
    const int M = std::min(kQueries, a.T_len - q0);
    std::vector<A> S(static_cast<size_t>(M) * kKeys), out(M * HD), sum(M), maximum(M);
    std::fill(maximum.begin(), maximum.end(), -std::numeric_limits<A>::infinity());

    const int first_key = doc_start ? doc_start[q0] / kKeys * kKeys : 0;
    for (int k0 = first_key; k0 < q0 + M; k0 += kKeys) {
        const Tile tile = make_tile(doc_start, a.T_len, q0, k0);
        const Number* k = a.k + (row0 + k0) * a.ld_k + kv_at;
        const Number* v = a.v + (row0 + k0) * a.ld_v + kv_at;
        gemm<Number>(false, true, M, tile.N, a.HD, a.scale, q, a.ld_q, k, a.ld_k, 0, S.data(), kKeys);
        join_softmax(tile, a.HD, S.data(), maximum.data(), sum.data(), out.data());
        gemm<Number>(false, false, M, a.HD, tile.N, 1, S.data(), kKeys, v, a.ld_v, 1, out.data(), HD);
    }

    for (int i = 0; i < M; ++i) {
        Number* to = a.out + ((row0 + q0 + i) * a.NH + h) * HD;
        const A* from = out.data() + i * HD;
        const A inverse = 1 / sum[i];
        for (size_t c = 0; c < HD; ++c) to[c] = from[c] * inverse;
        a.lse[(static_cast<size_t>(b) * a.NH + h) * a.T_len + q0 + i] = maximum[i] + std::log(sum[i]);
    }
}

// delta[b, h, t] = dout · out, and the rows of dq set to zero for the units to add to.
template <class Number>
void prepare_backward(const AttentionBackward<Number>& a, ThreadPool& pool) {
    const size_t HD = static_cast<size_t>(a.HD), T_len = static_cast<size_t>(a.T_len), NH = static_cast<size_t>(a.NH);
    pool.parallel_ranges(static_cast<size_t>(a.B) * T_len, kQueries, [&](size_t begin, size_t end) {
        for (size_t row = begin; row < end; ++row) {
            for (size_t h = 0; h < NH; ++h) {
                const Number* dout = a.dout + (row * NH + h) * HD;
                const Number* out = a.out + (row * NH + h) * HD;
                a.delta[(row / T_len * NH + h) * T_len + row % T_len] =
                    lane_sum<Acc<Number>>(HD, [=](size_t c) { return dout[c] * out[c]; });
                Number* dq = a.dq + row * a.ld_dq + h * HD;
                std::fill(dq, dq + HD, Number{0});
            }
        }
    });
}

// S: scores -> probabilities p;  dP: dout·v -> ds = scale p (dp - delta). Zero where masked.
template <class A>
void probabilities_and_their_gradient(const Tile& tile, A scale, A* S /*[M, kKeys]*/, A* dP /*[M, kKeys]*/,
                                      const A* lse /*[M]*/, const A* delta /*[M]*/) {
    for (int i = 0; i < tile.M; ++i) {
        A* s = S + static_cast<size_t>(i) * kKeys;
        A* d = dP + static_cast<size_t>(i) * kKeys;
        const int begin = tile.begin(i), end = std::max(begin, tile.end(i));
        const A row_lse = lse[i], row_delta = delta[i];
#pragma GCC ivdep  // s and d do not overlap
        for (int j = begin; j < end; ++j) {
            const A p = fast_exp(s[j] - row_lse);
            s[j] = p;
            d[j] = p * (d[j] - row_delta) * scale;
        }
        for (A* row : {s, d}) {
            std::fill(row, row + begin, A{0});
            std::fill(row + end, row + tile.N, A{0});
        }
    }
}

// The dq that a backward unit adds to: the result itself, or a strip's own copy.
template <class Number>
struct QueryGradient {
    Number* dq;  // [B, T, NH, HD], row stride ld
    size_t ld;
};

// Scores, and the gradient of probabilities, of one key tile against one query tile.
template <class Number>
struct PairScratch {
    std::vector<Number> S, dP;  // [kQueries, kKeys]
    PairScratch() : S(static_cast<size_t>(kQueries) * kKeys), dP(S.size()) {}
};

// One key tile against one query tile of head h: dk, dv and dq grow by this pair's share.
template <class Number>
void backward_pair(const AttentionBackward<Number>& a, const QueryGradient<Number>& g, PairScratch<Number>& scratch,
                   int b, int h, const Tile& tile) {
    const size_t row0 = static_cast<size_t>(b) * a.T_len, HD = static_cast<size_t>(a.HD), ld_o = a.NH * HD;
    const size_t q_row = row0 + tile.q0, k_row = row0 + tile.k0;
    const size_t head = h * HD, kv_head = static_cast<size_t>(h / (a.NH / a.NKV)) * HD;
    const Number* q = a.q + q_row * a.ld_q + head;
    const Number* k = a.k + k_row * a.ld_k + kv_head;
    const Number* v = a.v + k_row * a.ld_v + kv_head;
    const Number* dout = a.dout + q_row * ld_o + head;
    Number* S = scratch.S.data();
    Number* dP = scratch.dP.data();
    const int M = tile.M, N = tile.N;
    gemm<Number>(false, true, M, N, a.HD, a.scale, q, a.ld_q, k, a.ld_k, 0, S, kKeys);
    gemm<Number>(false, true, M, N, a.HD, 1, dout, ld_o, v, a.ld_v, 0, dP, kKeys);
    const size_t stat_at = (static_cast<size_t>(b) * a.NH + h) * a.T_len + tile.q0;
    probabilities_and_their_gradient<Acc<Number>>(tile, a.scale, S, dP, a.lse + stat_at, a.delta + stat_at);
    gemm<Number>(true, false, N, a.HD, M, 1, S, kKeys, dout, ld_o, 1, a.dv + k_row * a.ld_dv + kv_head, a.ld_dv);
    gemm<Number>(true, false, N, a.HD, M, 1, dP, kKeys, q, a.ld_q, 1, a.dk + k_row * a.ld_dk + kv_head, a.ld_dk);
    gemm<Number>(false, false, M, a.HD, N, 1, dP, kKeys, k, a.ld_k, 1, g.dq + q_row * g.ld + head, g.ld);
}

// The key tiles strip, strip + strips, ... of one key/value head.
template <class Number>
void backward_unit(const AttentionBackward<Number>& a, const QueryGradient<Number>& g, int b, int kv, int strip,
                   int strips) {
    const size_t row0 = static_cast<size_t>(b) * a.T_len, HD = static_cast<size_t>(a.HD);
    const int32_t* doc_start = row_of(a.doc_start, b, a.T_len);
    const int group = a.NH / a.NKV;
    PairScratch<Number> scratch;
    for (int k0 = strip * kKeys; k0 < a.T_len; k0 += strips * kKeys) {
        for (int s = k0; s < std::min(a.T_len, k0 + kKeys); ++s) {
            Number* dk = a.dk + (row0 + s) * a.ld_dk + kv * HD;
            Number* dv = a.dv + (row0 + s) * a.ld_dv + kv * HD;
            std::fill(dk, dk + HD, Number{0});
            std::fill(dv, dv + HD, Number{0});
        }
        for (int h = kv * group; h < (kv + 1) * group; ++h) {
            for (int q0 = k0; q0 < a.T_len; q0 += kQueries) {
                if (doc_start && doc_start[q0] >= k0 + kKeys) break;  // documents ascend: so do all later tiles
                backward_pair(a, g, scratch, b, h, make_tile(doc_start, a.T_len, q0, k0));
            }
        }
    }
}

}  // namespace

template <class Number>
void attention_forward(const AttentionForward<Number>& a, ThreadPool& pool) {
    const size_t heads = static_cast<size_t>(a.B) * a.NH, tiles = static_cast<size_t>(tiles_of(a.T_len, kQueries));
    pool.parallel_for(heads * tiles, [&](size_t unit) {
        const int tile = static_cast<int>(tiles - 1 - unit / heads);  // the longest first, so that threads end together
        const int head = static_cast<int>(unit % heads);
        forward_unit(a, head / a.NH, head % a.NH, tile * kQueries);
    });
}

template <class Number>
void attention_backward(const AttentionBackward<Number>& a, ThreadPool& pool) {
    prepare_backward(a, pool);
    const int strips = backward_strips(a.B, a.T_len, a.NKV);
    const size_t kv_heads = static_cast<size_t>(a.B) * a.NKV, rows = static_cast<size_t>(a.B) * a.T_len;
    const size_t row_elems = static_cast<size_t>(a.NH) * a.HD;
    std::vector<Number> own;     // for references in double, which get no workspace
    Number* strip_dq = nullptr;  // [strips - 1, B, T, NH, HD]; units add to it
    if constexpr (std::is_same_v<Number, float>) strip_dq = a.workspace;
    const size_t strip_elems = rows * row_elems;
    if (strip_dq == nullptr) {
        own.resize(static_cast<size_t>(strips - 1) * strip_elems);
        strip_dq = own.data();
    }
    pool.parallel_ranges(static_cast<size_t>(strips - 1) * rows, kQueries, [&](size_t begin, size_t end) {
        std::fill(strip_dq + begin * row_elems, strip_dq + end * row_elems, Number{0});
    });
    pool.parallel_for(kv_heads * strips, [&](size_t unit) {
        const int strip = static_cast<int>(unit / kv_heads), head = static_cast<int>(unit % kv_heads);
        const QueryGradient<Number> g =
            strip == 0 ? QueryGradient<Number>{a.dq, a.ld_dq}
                       : QueryGradient<Number>{strip_dq + static_cast<size_t>(strip - 1) * strip_elems, row_elems};
        backward_unit(a, g, head / a.NKV, head % a.NKV, strip, strips);
    });
    if (strips == 1) return;
    pool.parallel_ranges(rows, kQueries, [&](size_t begin, size_t end) {
        for (size_t row = begin; row < end; ++row) {
            Number* dq = a.dq + row * a.ld_dq;
            for (int strip = 1; strip < strips; ++strip) {
                const Number* more = strip_dq + (static_cast<size_t>(strip - 1) * rows + row) * row_elems;
                for (size_t c = 0; c < row_elems; ++c) dq[c] += more[c];
            }
        }
    });
}

template void attention_forward(const AttentionForward<float>&, ThreadPool&);
template void attention_forward(const AttentionForward<double>&, ThreadPool&);
template void attention_backward(const AttentionBackward<float>&, ThreadPool&);
template void attention_backward(const AttentionBackward<double>&, ThreadPool&);

}  // namespace ref

#if !defined(SLABSTREAM_CUDA)
size_t attention_backward_workspace_bytes(int B, int T_len, int NH, int NKV, int HD) {
    const size_t strips = static_cast<size_t>(ref::backward_strips(B, T_len, NKV));
    return (strips - 1) * static_cast<size_t>(B) * T_len * NH * HD * sizeof(real);
}

void attention_forward(const AttentionForward<real>& a, Stream& stream) {
    stream.enqueue("attention_forward", [a](ThreadPool& pool) { ref::attention_forward(a, pool); });
}

void attention_backward(const AttentionBackward<real>& a, Stream& stream) {
    stream.enqueue("attention_backward", [a](ThreadPool& pool) { ref::attention_backward(a, pool); });
}
#endif

}  // namespace slab
