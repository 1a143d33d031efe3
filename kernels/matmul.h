// Matrix products with a frozen or trained weight w[N, K] (Hugging Face's [out, in]), row-major throughout.
//
// Three shapes are all a linear layer needs; leading dimensions let q, k and v, or a LoRA module's share of a joined
// buffer, be column ranges of one matrix. On the CPU every product goes through one sgemm per fixed output tile.
#pragma once

#include <cstddef>

#include "kernels/runtime/real.h"
#include "kernels/runtime/runtime.h"

namespace slab {

// y = alpha * x · wᵀ + bias + add
template <class T>
struct MatmulForward {
    T* y;           // [rows, N], stride ld_y
    const T* x;     // [rows, K], stride ld_x
    const T* w;     // [N, K]
    const T* bias;  // [N] or null
    const T* add;   // [rows, N], stride ld_y, or null; may be y itself (then y += ...)
    size_t rows;
    int N, K;
    size_t ld_y, ld_x;
    float alpha = 1;
};

// dx (= or +=) alpha * dy · w
template <class T>
struct MatmulBackwardInput {
    T* dx;        // [rows, K], stride ld_dx
    const T* dy;  // [rows, N], stride ld_dy
    const T* w;   // [N, K]
    size_t rows;
    int N, K;
    size_t ld_dx, ld_dy;
    float alpha = 1;
    bool accumulate = false;  // += instead of =
};

// dw += alpha * dyᵀ · x
template <class T>
struct MatmulBackwardWeight {
    Acc<T>* dw;   // [N, K], +=
    const T* dy;  // [rows, N], stride ld_dy
    const T* x;   // [rows, K], stride ld_x
    size_t rows;
    int N, K;
    size_t ld_dy, ld_x;
    float alpha = 1;
};

namespace ref {
template <class T>
void matmul_forward(const MatmulForward<T>& a, ThreadPool& pool);
template <class T>
void matmul_backward_input(const MatmulBackwardInput<T>& a, ThreadPool& pool);
template <class T>
void matmul_backward_weight(const MatmulBackwardWeight<T>& a, ThreadPool& pool);
// dbias[n] += sum over rows of dy[row, n]
template <class T>
void bias_backward(Acc<T>* dbias /*[N]*/, const T* dy /*[rows, N]*/, size_t rows, int N, size_t ld_dy,
                   ThreadPool& pool);

// C = alpha * op(A) op(B) + beta * C on the calling thread, row-major, op(A) [M, K], op(B) [K, N]: what attention tiles
// use. float goes through OpenBLAS where the build has it, else (and double) through a blocked loop.
template <class T>
void gemm(bool trans_a, bool trans_b, int M, int N, int K, T alpha, const T* A, size_t lda, const T* B, size_t ldb,
          T beta, T* C, size_t ldc);
}  // namespace ref

// Workspace that the compute stream must be made with (bytes): a constant, so that algorithms are a function of shapes.
size_t matmul_workspace_bytes();

// Address space (bytes) that products on `threads` CPU threads map beside their operands, at the first product of each.
// It has to be there: OpenBLAS tries again without end where it is refused.
size_t matmul_address_bytes(int threads);

void matmul_forward(const MatmulForward<real>& a, Stream& stream);
void matmul_backward_input(const MatmulBackwardInput<real>& a, Stream& stream);
void matmul_backward_weight(const MatmulBackwardWeight<real>& a, Stream& stream);
void bias_backward(float* dbias /*[N]*/, const real* dy /*[rows, N]*/, size_t rows, int N, size_t ld_dy,
                   Stream& stream);

}  // namespace slab
