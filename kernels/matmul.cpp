// Matrix products on the CPU: fixed output tiles spread over the pool, one gemm each.
//
// float goes through OpenBLAS with one thread where the build has it. The blocked loop below serves double (tests) and
// builds without a BLAS, as for ThreadSanitizer, which cannot see into OpenBLAS. Invariant: tiles are a function of
// shapes alone, and no sum is split over tiles. So the bits of a product do not depend on the threads. A weight's
// gradient is finished before it is added, so that sums over micro-batches have one order, on one rank or on several.
#include "kernels/matmul.h"

#include <algorithm>
#include <cassert>
#include <climits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#if defined(SLABSTREAM_OPENBLAS)
#include <cblas.h>
#endif

namespace slab {
namespace {

int to_int(size_t value, const char* what) {
    if (value > INT_MAX) {
        throw std::logic_error(std::string("matmul: ") + what + " = " + std::to_string(value) + " does not fit an int");
    }
    return static_cast<int>(value);
}

// ---- The blocked loop: panels of A and B are packed, so that the innermost kernel reads both in order. ----

constexpr int kVectorBytes = 32;
template <class Number>
constexpr int kLanes = kVectorBytes / sizeof(Number);
constexpr int kPanelRows = 6;  // kPanelRows x kPanelCols sums stay in 12 vector registers
template <class Number>
constexpr int kPanelCols = 2 * kLanes<Number>;
// The packed blocks stay in L2 and L3, a panel of B in L1.
constexpr int kBlockK = 256, kBlockM = 16 * kPanelRows, kBlockN = 512;

template <class Number>
struct Matrix {
    const Number* data;
    size_t row_stride, col_stride;  // transposing swaps them
    const Number* at(int row, int col) const { return data + row * row_stride + col * col_stride; }
};

// packed[panel][k][width]: lines [line0, line0 + lines) of the matrix over k in [0, K); short panels end in zeros.
template <class Number>
void pack(Number* packed, const Number* source, size_t line_stride, size_t k_stride, int lines, int K, int width) {
    for (int line0 = 0; line0 < lines; line0 += width) {
        const int n = std::min(width, lines - line0);
        for (int k = 0; k < K; ++k) {
            const Number* from = source + line0 * line_stride + k * k_stride;
            for (int i = 0; i < n; ++i) packed[i] = from[i * line_stride];
            for (int i = n; i < width; ++i) packed[i] = 0;
            packed += width;
        }
    }
}

// sums[kPanelRows][kPanelCols] = A panel [K][kPanelRows] times B panel [K][kPanelCols]
template <class Number>
void multiply_panels(Number* sums, const Number* a, const Number* b, int K) {
    typedef Number Vector __attribute__((vector_size(kVectorBytes), aligned(sizeof(Number)), may_alias));
    constexpr int kVectors = kPanelCols<Number> / kLanes<Number>;
    Vector acc[kPanelRows][kVectors] = {};
    for (int k = 0; k < K; ++k) {
        for (int i = 0; i < kPanelRows; ++i) {
            for (int v = 0; v < kVectors; ++v) {
                acc[i][v] += *reinterpret_cast<const Vector*>(b + v * kLanes<Number>) * a[i];
            }
        }
        a += kPanelRows;
        b += kPanelCols<Number>;
    }
    for (int i = 0; i < kPanelRows; ++i) {
        for (int v = 0; v < kVectors; ++v) {
            *reinterpret_cast<Vector*>(sums + i * kPanelCols<Number> + v * kLanes<Number>) = acc[i][v];
        }
    }
}

// C block (= beta C or, after the first block of K, C) + alpha * packed A [M, K] * packed B [K, N]
template <class Number>
void multiply_blocks(Number* C, size_t ldc, const Number* packed_a, const Number* packed_b, int M, int N, int K,
                     Number alpha, Number beta) {
    Number sums[kPanelRows * kPanelCols<Number>];
    for (int n0 = 0; n0 < N; n0 += kPanelCols<Number>) {
        const int cols = std::min(kPanelCols<Number>, N - n0);
        for (int m0 = 0; m0 < M; m0 += kPanelRows) {
            const int rows = std::min(kPanelRows, M - m0);
            multiply_panels(sums, packed_a + static_cast<size_t>(m0) * K, packed_b + static_cast<size_t>(n0) * K, K);
            for (int i = 0; i < rows; ++i) {
                Number* c = C + (m0 + i) * ldc + n0;
                const Number* s = sums + i * kPanelCols<Number>;
                if (beta == 0) {  // C may hold anything, NaN included
                    for (int j = 0; j < cols; ++j) c[j] = alpha * s[j];
                } else {
                    for (int j = 0; j < cols; ++j) c[j] = beta * c[j] + alpha * s[j];
                }
            }
        }
    }
}

template <class Number>
void scale_matrix(Number* C, size_t ldc, int M, int N, Number beta) {
    for (int m = 0; m < M; ++m) {
        Number* c = C + m * ldc;
        for (int n = 0; n < N; ++n) c[n] = beta == 0 ? Number(0) : beta * c[n];
    }
}

template <class Number>
void blocked_gemm(int M, int N, int K, Number alpha, Matrix<Number> A, Matrix<Number> B, Number beta, Number* C,
                  size_t ldc) {
    if (K == 0) return scale_matrix(C, ldc, M, N, beta);
    // Kept per thread: allocating half a megabyte per call would cost page faults every time.
    thread_local std::vector<Number> packed_a(static_cast<size_t>(kBlockM) * kBlockK);
    thread_local std::vector<Number> packed_b(static_cast<size_t>(kBlockN) * kBlockK);
    for (int n0 = 0; n0 < N; n0 += kBlockN) {
        const int cols = std::min(kBlockN, N - n0);
        for (int k0 = 0; k0 < K; k0 += kBlockK) {
            const int depth = std::min(kBlockK, K - k0);
            pack(packed_b.data(), B.at(k0, n0), B.col_stride, B.row_stride, cols, depth, kPanelCols<Number>);
            for (int m0 = 0; m0 < M; m0 += kBlockM) {
                const int rows = std::min(kBlockM, M - m0);
                pack(packed_a.data(), A.at(m0, k0), A.row_stride, A.col_stride, rows, depth, kPanelRows);
                multiply_blocks(C + m0 * ldc + n0, ldc, packed_a.data(), packed_b.data(), rows, cols, depth, alpha,
                                k0 == 0 ? beta : Number(1));
            }
        }
    }
}

#if defined(SLABSTREAM_OPENBLAS)
void openblas_gemm(bool trans_a, bool trans_b, int M, int N, int K, float alpha, const float* A, size_t lda,
                   const float* B, size_t ldb, float beta, float* C, size_t ldc) {
    // Parallelism is ours: the library's own threads would make bits depend on their number.
    static const bool one_thread = (openblas_set_num_threads(1), true);
    static_cast<void>(one_thread);
    cblas_sgemm(CblasRowMajor, trans_a ? CblasTrans : CblasNoTrans, trans_b ? CblasTrans : CblasNoTrans, M, N, K, alpha,
                A, to_int(lda, "lda"), B, to_int(ldb, "ldb"), beta, C, to_int(ldc, "ldc"));
}
#endif

// ---- Tiles of the output ----

struct OutputTiles {
    size_t tile_rows, tile_cols, row_tiles, col_tiles;
};

size_t ceil_div(size_t a, size_t b) {
    return (a + b - 1) / b;
}

// Tiles are 256 x 512, where a gemm runs near its full rate. If that gives too few for 16 threads, they are halved,
// down to some 4 MFLOP (tens of microseconds) each. Then they are evened out, so that no sliver is left at the end.
OutputTiles output_tiles(size_t M, size_t N, size_t K) {
    constexpr size_t kEnoughTiles = 16, kMinFlop = size_t{4} << 20, kGranule = 16;
    size_t rows = std::min<size_t>(M, 256), cols = std::min<size_t>(N, 512);
    while (ceil_div(M, rows) * ceil_div(N, cols) < kEnoughTiles && 2 * rows * cols * K > kMinFlop) {
        size_t& larger = cols >= rows ? cols : rows;
        if (larger <= kGranule) break;
        larger = ceil_div(larger / 2, kGranule) * kGranule;
    }
    rows = ceil_div(ceil_div(M, ceil_div(M, rows)), kGranule) * kGranule;
    cols = ceil_div(ceil_div(N, ceil_div(N, cols)), kGranule) * kGranule;
    return {rows, cols, ceil_div(M, rows), ceil_div(N, cols)};
}

// Calls tile(m0, rows, n0, cols) for each tile of an [M, N] output whose sums run over K.
template <class F>
void for_each_tile(size_t M, size_t N, size_t K, ThreadPool& pool, const F& tile) {
    if (M == 0 || N == 0) return;
    const OutputTiles t = output_tiles(M, N, K);
    pool.parallel_for(t.row_tiles * t.col_tiles, [&](size_t i) {
        // Neighbouring tiles share their columns, hence the same part of the weight.
        const size_t m0 = i % t.row_tiles * t.tile_rows, n0 = i / t.row_tiles * t.tile_cols;
        tile(m0, static_cast<int>(std::min(t.tile_rows, M - m0)), n0, static_cast<int>(std::min(t.tile_cols, N - n0)));
    });
}

}  // namespace

namespace ref {

template <class Number>
void gemm(bool trans_a, bool trans_b, int M, int N, int K, Number alpha, const Number* A, size_t lda, const Number* B,
          size_t ldb, Number beta, Number* C, size_t ldc) {
    if (M <= 0 || N <= 0) return;
    const auto stored = [](int rows, int cols, size_t ld) {
        assert(rows <= 1 || ld >= static_cast<size_t>(cols));
        return std::max({ld, static_cast<size_t>(cols), size_t{1}});  // one row has no stride, but BLAS checks it
    };
    lda = trans_a ? stored(K, M, lda) : stored(M, K, lda);
    ldb = trans_b ? stored(N, K, ldb) : stored(K, N, ldb);
    ldc = stored(M, N, ldc);
#if defined(SLABSTREAM_OPENBLAS)
    if constexpr (std::is_same_v<Number, float>) {
        openblas_gemm(trans_a, trans_b, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc);
        return;
    }
#endif
    const Matrix<Number> op_a{A, trans_a ? 1 : lda, trans_a ? lda : 1};
    const Matrix<Number> op_b{B, trans_b ? 1 : ldb, trans_b ? ldb : 1};
    blocked_gemm(M, N, K, alpha, op_a, op_b, beta, C, ldc);
}

template <class Number>
void matmul_forward(const MatmulForward<Number>& a, ThreadPool& pool) {
    const size_t K = a.K;
    for_each_tile(a.rows, a.N, K, pool, [&](size_t m0, int rows, size_t n0, int cols) {
        Number* y = a.y + m0 * a.ld_y + n0;  // [rows, cols], stride ld_y
        const Number* add = a.add ? a.add + m0 * a.ld_y + n0 : nullptr;
        const Number* bias = a.bias ? a.bias + n0 : nullptr;
        for (size_t i = 0; i < static_cast<size_t>(rows); ++i) {
            Number* y_row = y + i * a.ld_y;
            const Number* add_row = add ? add + i * a.ld_y : nullptr;
            if (add && bias) {
                for (int j = 0; j < cols; ++j) y_row[j] = add_row[j] + bias[j];
            } else if (bias) {
                std::copy_n(bias, cols, y_row);
            } else if (add && add != y) {
                std::copy_n(add_row, cols, y_row);
            }
        }
        gemm(false, true, rows, cols, a.K, static_cast<Number>(a.alpha), a.x + m0 * a.ld_x, a.ld_x, a.w + n0 * K, K,
             Number(add || bias ? 1 : 0), y, a.ld_y);
    });
}

template <class Number>
void matmul_backward_input(const MatmulBackwardInput<Number>& a, ThreadPool& pool) {
    for_each_tile(a.rows, a.K, a.N, pool, [&](size_t m0, int rows, size_t k0, int cols) {
        gemm(false, false, rows, cols, a.N, static_cast<Number>(a.alpha), a.dy + m0 * a.ld_dy, a.ld_dy, a.w + k0,
             static_cast<size_t>(a.K), Number(a.accumulate ? 1 : 0), a.dx + m0 * a.ld_dx + k0, a.ld_dx);
    });
}

template <class Number>
void matmul_backward_weight(const MatmulBackwardWeight<Number>& a, ThreadPool& pool) {
    const size_t K = a.K;
    const int depth = to_int(a.rows, "rows");
    for_each_tile(a.N, K, a.rows, pool, [&](size_t n0, int rows, size_t k0, int cols) {
        // Finished apart and then added: a gemm that accumulates would add its sum in several parts.
        thread_local std::vector<Acc<Number>> tile;
        const size_t width = static_cast<size_t>(cols);
        tile.resize(std::max(tile.size(), static_cast<size_t>(rows) * width));
        gemm(true, false, rows, cols, depth, static_cast<Number>(a.alpha), a.dy + n0, a.ld_dy, a.x + k0, a.ld_x,
             Number(0), tile.data(), width);
        for (size_t i = 0; i < static_cast<size_t>(rows); ++i) {
            Acc<Number>* const dw = a.dw + (n0 + i) * K + k0;
            const Acc<Number>* const product = tile.data() + i * width;
            for (size_t j = 0; j < width; ++j) dw[j] += product[j];
        }
    });
}

template <class Number>
void bias_backward(Acc<Number>* dbias, const Number* dy, size_t rows, int N, size_t ld_dy, ThreadPool& pool) {
    constexpr size_t kTileCols = 64, kBlockRows = 256;  // blocks of rows keep the rounding of long sums small
    pool.parallel_ranges(N, kTileCols, [&](size_t begin, size_t end) {
        const size_t cols = end - begin;
        Acc<Number> total[kTileCols] = {};
        for (size_t row0 = 0; row0 < rows; row0 += kBlockRows) {
            Acc<Number> block[kTileCols] = {};
            for (size_t row = row0; row < std::min(rows, row0 + kBlockRows); ++row) {
                const Number* dy_row = dy + row * ld_dy + begin;
                for (size_t c = 0; c < cols; ++c) block[c] += dy_row[c];
            }
            for (size_t c = 0; c < cols; ++c) total[c] += block[c];
        }
        for (size_t c = 0; c < cols; ++c) dbias[begin + c] += total[c];
    });
}

#define SLAB_INSTANTIATE(Number)                                                                                \
    template void gemm(bool, bool, int, int, int, Number, const Number*, size_t, const Number*, size_t, Number, \
                       Number*, size_t);                                                                        \
    template void matmul_forward(const MatmulForward<Number>&, ThreadPool&);                                    \
    template void matmul_backward_input(const MatmulBackwardInput<Number>&, ThreadPool&);                       \
    template void matmul_backward_weight(const MatmulBackwardWeight<Number>&, ThreadPool&);                     \
    template void bias_backward<Number>(Acc<Number>*, const Number*, size_t, int, size_t, ThreadPool&);
SLAB_INSTANTIATE(float)
SLAB_INSTANTIATE(double)
#undef SLAB_INSTANTIATE

}  // namespace ref

#if !defined(SLABSTREAM_CUDA)
size_t matmul_workspace_bytes() {
    return 0;
}

size_t matmul_address_bytes(int threads) {
#if defined(SLABSTREAM_OPENBLAS)
    // OpenBLAS's packing buffer (the largest of its builds for x86-64), and the arena that malloc may make.
    constexpr size_t kBufferBytes = size_t{128} << 20, kArenaBytes = size_t{64} << 20;
    return static_cast<size_t>(threads) * (kBufferBytes + kArenaBytes);
#else
    (void)threads;
    return 0;
#endif
}

void matmul_forward(const MatmulForward<real>& a, Stream& stream) {
    stream.enqueue("matmul_forward", [a](ThreadPool& pool) { ref::matmul_forward(a, pool); });
}

void matmul_backward_input(const MatmulBackwardInput<real>& a, Stream& stream) {
    stream.enqueue("matmul_backward_input", [a](ThreadPool& pool) { ref::matmul_backward_input(a, pool); });
}

void matmul_backward_weight(const MatmulBackwardWeight<real>& a, Stream& stream) {
    stream.enqueue("matmul_backward_weight", [a](ThreadPool& pool) { ref::matmul_backward_weight(a, pool); });
}

void bias_backward(float* dbias, const real* dy, size_t rows, int N, size_t ld_dy, Stream& stream) {
    stream.enqueue("bias_backward",
                   [=](ThreadPool& pool) { ref::bias_backward<real>(dbias, dy, rows, N, ld_dy, pool); });
}
#endif

}  // namespace slab
