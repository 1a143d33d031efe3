// LayerNorm, RMSNorm and RMSNorm per head on the CPU.
//
// Rows are independent, except in the weights' gradients. Those are summed within at most kMaxTiles runs of rows, whose
// number and length depend on the row count alone. The runs' sums are added in ascending order. So the work is
// parallel, with the same bits for any number of threads.
#include "kernels/norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/lanes.h"

namespace slab {
namespace ref {
namespace {

constexpr size_t kMaxTiles = 64;
constexpr size_t kTileElems = 16384;  // enough work for one thread's task

size_t rows_per_forward_tile(size_t row_elems) {
    return std::max<size_t>(1, kTileElems / std::max<size_t>(1, row_elems));
}

size_t rows_per_gradient_tile(size_t rows) {
    return (rows + kMaxTiles - 1) / kMaxTiles;
}

// Each tile's sum of one weight gradient; empty when that gradient is not wanted.
template <class A>
struct PartialSums {
    std::vector<A> sums;  // [tiles, C]
    size_t C;

    PartialSums(bool wanted, size_t tiles, size_t columns) : sums(wanted ? tiles * columns : 0), C(columns) {}

    A* tile(size_t i) { return sums.empty() ? nullptr : sums.data() + i * C; }

    // dw[c] += the tiles' sums in ascending order
    void add_to(A* dw /*[C]*/) const {
        for (size_t at = 0; at < sums.size(); at += C) {
            for (size_t c = 0; c < C; ++c) dw[c] += sums[at + c];
        }
    }
};

// kCentred: LayerNorm, which subtracts the mean and may add a bias; else RMSNorm.
template <bool kCentred, class Number>
void norm_forward(const NormForward<Number>& a, ThreadPool& pool) {
    using A = Acc<Number>;
    const size_t C = static_cast<size_t>(a.C);
    pool.parallel_ranges(a.rows, rows_per_forward_tile(C), [&](size_t begin, size_t end) {
        for (size_t row = begin; row < end; ++row) {
            const Number* x = a.x + row * C;
            Number* y = a.y + row * C;
            A mean = 0;
            if constexpr (kCentred) mean = lane_sum<A>(C, [=](size_t c) { return x[c]; }) / static_cast<A>(C);
            const A squares = lane_sum<A>(C, [=](size_t c) { return (x[c] - mean) * (x[c] - mean); });
            const A rstd = 1 / std::sqrt(squares / static_cast<A>(C) + static_cast<A>(a.eps));
            for (size_t c = 0; c < C; ++c) y[c] = (x[c] - mean) * rstd * a.w[c];
            if constexpr (kCentred) {
                if (a.b) {
                    for (size_t c = 0; c < C; ++c) y[c] += a.b[c];
                }
                a.mean[row] = mean;
            }
            a.rstd[row] = rstd;
        }
    });
}

// With n = (x - mean) rstd and g = dy w:  dx += rstd (g - mean(g) - n mean(g n)), RMSNorm without mean(g).
template <bool kCentred, class Number>
void norm_backward(const NormBackward<Number>& a, ThreadPool& pool) {
    using A = Acc<Number>;
    const size_t C = static_cast<size_t>(a.C), tile_rows = rows_per_gradient_tile(a.rows);
    if (a.rows == 0) return;
    const size_t tiles = (a.rows + tile_rows - 1) / tile_rows;
    PartialSums<A> dw_sums(a.dw != nullptr, tiles, C), db_sums(a.db != nullptr, tiles, C);
    pool.parallel_for(tiles, [&](size_t tile) {
        A* dw = dw_sums.tile(tile);
        A* db = db_sums.tile(tile);
        const size_t end = std::min(a.rows, (tile + 1) * tile_rows);
        for (size_t row = tile * tile_rows; row < end; ++row) {
            const Number* x = a.x + row * C;
            const Number* dy = a.dy + row * C;
            const Number* w = a.w;
            Number* dx = a.dx + row * C;
            const A mean = kCentred ? a.mean[row] : A{0}, rstd = a.rstd[row];
            A mean_g = 0;
            if constexpr (kCentred) {
                mean_g = lane_sum<A>(C, [=](size_t c) { return dy[c] * w[c]; }) / static_cast<A>(C);
            }
            const A mean_gn =
                lane_sum<A>(C, [=](size_t c) { return dy[c] * w[c] * ((x[c] - mean) * rstd); }) / static_cast<A>(C);
            for (size_t c = 0; c < C; ++c) {
                dx[c] += rstd * (dy[c] * w[c] - mean_g - (x[c] - mean) * rstd * mean_gn);
            }
            if (dw) {
                for (size_t c = 0; c < C; ++c) dw[c] += dy[c] * ((x[c] - mean) * rstd);
            }
            if (db) {
                for (size_t c = 0; c < C; ++c) db[c] += dy[c];
            }
        }
    });
    if (a.dw) dw_sums.add_to(a.dw);
    if (a.db) db_sums.add_to(a.db);
}

}  // namespace

template <class Number>
void layernorm_forward(const NormForward<Number>& a, ThreadPool& pool) {
    norm_forward<true>(a, pool);
}

template <class Number>
void layernorm_backward(const NormBackward<Number>& a, ThreadPool& pool) {
    norm_backward<true>(a, pool);
}

template <class Number>
void rmsnorm_forward(const NormForward<Number>& a, ThreadPool& pool) {
    norm_forward<false>(a, pool);
}

template <class Number>
void rmsnorm_backward(const NormBackward<Number>& a, ThreadPool& pool) {
    norm_backward<false>(a, pool);
}

template <class Number>
void head_norm_forward(const HeadNormForward<Number>& a, ThreadPool& pool) {
    using A = Acc<Number>;
    const size_t heads = static_cast<size_t>(a.NH) + a.NKV, HD = static_cast<size_t>(a.HD);
    pool.parallel_ranges(a.rows, rows_per_forward_tile(heads * HD), [&](size_t begin, size_t end) {
        for (size_t row = begin; row < end; ++row) {
            for (size_t h = 0; h < heads; ++h) {
                const Number* x = a.x + row * a.ld_x + h * HD;
                const Number* w = h < static_cast<size_t>(a.NH) ? a.w_q : a.w_k;
                Number* y = a.y + row * a.ld_y + h * HD;
                const A squares = lane_sum<A>(HD, [=](size_t c) { return x[c] * x[c]; });
                const A rstd = 1 / std::sqrt(squares / static_cast<A>(HD) + static_cast<A>(a.eps));
                for (size_t c = 0; c < HD; ++c) y[c] = x[c] * rstd * w[c];
                a.rstd[row * heads + h] = rstd;
            }
        }
    });
}

template <class Number>
void head_norm_backward(const HeadNormBackward<Number>& a, ThreadPool& pool) {
    using A = Acc<Number>;
    if (a.rows == 0) return;
    const size_t heads = static_cast<size_t>(a.NH) + a.NKV, HD = static_cast<size_t>(a.HD);
    const size_t tile_rows = rows_per_gradient_tile(a.rows), tiles = (a.rows + tile_rows - 1) / tile_rows;
    PartialSums<A> dw_q_sums(a.dw_q != nullptr, tiles, HD), dw_k_sums(a.dw_k != nullptr, tiles, HD);
    pool.parallel_for(tiles, [&](size_t tile) {
        const size_t end = std::min(a.rows, (tile + 1) * tile_rows);
        for (size_t row = tile * tile_rows; row < end; ++row) {
            for (size_t h = 0; h < heads; ++h) {
                const bool query = h < static_cast<size_t>(a.NH);
                const Number* x = a.x + row * a.ld_x + h * HD;
                const Number* dy = a.dy + row * a.ld_dy + h * HD;
                const Number* w = query ? a.w_q : a.w_k;
                Number* dx = a.dx + row * a.ld_dx + h * HD;
                const A rstd = a.rstd[row * heads + h];
                const A mean_gn =
                    lane_sum<A>(HD, [=](size_t c) { return dy[c] * w[c] * (x[c] * rstd); }) / static_cast<A>(HD);
                // dw before dx, which may overwrite dy
                if (A* dw = query ? dw_q_sums.tile(tile) : dw_k_sums.tile(tile)) {
                    for (size_t c = 0; c < HD; ++c) dw[c] += dy[c] * (x[c] * rstd);
                }
#pragma GCC ivdep  // dx is dy itself or does not overlap it: no element depends on another
                for (size_t c = 0; c < HD; ++c) dx[c] = rstd * (dy[c] * w[c] - x[c] * rstd * mean_gn);
            }
        }
    });
    if (a.dw_q) dw_q_sums.add_to(a.dw_q);
    if (a.dw_k) dw_k_sums.add_to(a.dw_k);
}

template void layernorm_forward(const NormForward<float>&, ThreadPool&);
template void layernorm_forward(const NormForward<double>&, ThreadPool&);
template void layernorm_backward(const NormBackward<float>&, ThreadPool&);
template void layernorm_backward(const NormBackward<double>&, ThreadPool&);
template void rmsnorm_forward(const NormForward<float>&, ThreadPool&);
template void rmsnorm_forward(const NormForward<double>&, ThreadPool&);
template void rmsnorm_backward(const NormBackward<float>&, ThreadPool&);
template void rmsnorm_backward(const NormBackward<double>&, ThreadPool&);
template void head_norm_forward(const HeadNormForward<float>&, ThreadPool&);
template void head_norm_forward(const HeadNormForward<double>&, ThreadPool&);
template void head_norm_backward(const HeadNormBackward<float>&, ThreadPool&);
template void head_norm_backward(const HeadNormBackward<double>&, ThreadPool&);

}  // namespace ref

#if !defined(SLABSTREAM_CUDA)
void layernorm_forward(const NormForward<real>& a, Stream& stream) {
    stream.enqueue("layernorm_forward", [a](ThreadPool& pool) { ref::layernorm_forward(a, pool); });
}

void layernorm_backward(const NormBackward<real>& a, Stream& stream) {
    stream.enqueue("layernorm_backward", [a](ThreadPool& pool) { ref::layernorm_backward(a, pool); });
}

void rmsnorm_forward(const NormForward<real>& a, Stream& stream) {
    stream.enqueue("rmsnorm_forward", [a](ThreadPool& pool) { ref::rmsnorm_forward(a, pool); });
}

void rmsnorm_backward(const NormBackward<real>& a, Stream& stream) {
    stream.enqueue("rmsnorm_backward", [a](ThreadPool& pool) { ref::rmsnorm_backward(a, pool); });
}

void head_norm_forward(const HeadNormForward<real>& a, Stream& stream) {
    stream.enqueue("head_norm_forward", [a](ThreadPool& pool) { ref::head_norm_forward(a, pool); });
}

void head_norm_backward(const HeadNormBackward<real>& a, Stream& stream) {
    stream.enqueue("head_norm_backward", [a](ThreadPool& pool) { ref::head_norm_backward(a, pool); });
}
#endif

}  // namespace slab
