// Matrix products with a frozen or trained weight w[N, K] (Hugging Face's [out, in]), row-major throughout.
//
// A linear layer needs three shapes of product. Leading dimensions make q, k and v, or a LoRA module's share of a
// joined buffer, column ranges of one matrix. On the CPU a product is one sgemm per fixed output tile.
#pragma once

#include <cstddef>

#include "kernels/runtime/real.h"
#include "kernels/runtime/runtime.h"

namespace slab {

// y = alpha * x · wᵀ + bias + add
template <class Number>
struct MatmulForward {
    Number* y;           // [rows, N], stride ld_y
    const Number* x;     // [rows, K], stride ld_x
    const Number* w;     // [N, K]
    const Number* bias;  // [N] or null
    const Number* add;   // [rows, N], stride ld_y, or null; may be y itself (then y += ...)
    size_t rows;
    int N, K;
    size_t ld_y, ld_x;
    float alpha = 1;
};

// dx (= or +=) alpha * dy · w
template <class Number>
struct MatmulBackwardInput {
    Number* dx;        // [rows, K], stride ld_dx
    const Number* dy;  // [rows, N], stride ld_dy
    const Number* w;   // [N, K]
    size_t rows;
    int N, K;
    size_t ld_dx, ld_dy;
    float alpha = 1;
    bool accumulate = false;  // += instead of =
};

// dw += alpha * dyᵀ · x, the product finished before it is added
template <class Number>
struct MatmulBackwardWeight {
    Acc<Number>* dw;   // [N, K], +=
    const Number* dy;  // [rows, N], stride ld_dy
    const Number* x;   // [rows, K], stride ld_x
    size_t rows;
    int N, K;
    size_t ld_dy, ld_x;
    float alpha = 1;
};

namespace ref {
template <class Number>
void matmul_forward(const MatmulForward<Number>& a, ThreadPool& pool);
template <class Number>
void matmul_backward_input(const MatmulBackwardInput<Number>& a, ThreadPool& pool);
template <class Number>
void matmul_backward_weight(const MatmulBackwardWeight<Number>& a, ThreadPool& pool);
// dbias[n] += sum over rows of dy[row, n]
template <class Number>
void bias_backward(Acc<Number>* dbias /*[N]*/, const Number* dy /*[rows, N]*/, size_t rows, int N, size_t ld_dy,
                   ThreadPool& pool);

// C = alpha * op(A) op(B) + beta * C on the calling thread, row-major, op(A) [M, K], op(B) [K, N]. Attention's tiles
// use it. float goes through OpenBLAS where the build has it. A blocked loop serves double and builds without OpenBLAS.
template <class Number>
void gemm(bool trans_a, bool trans_b, int M, int N, int K, Number alpha, const Number* A, size_t lda, const Number* B,
          size_t ldb, Number beta, Number* C, size_t ldc);
}  // namespace ref

// Workspace that the compute stream must be made with (bytes): a constant, so that algorithms are a function of shapes.
size_t matmul_workspace_bytes();

// Address space (bytes) that products on `threads` CPU threads map beside their operands, at each thread's first
// product. The caller makes sure that it is there: OpenBLAS retries endlessly when the system refuses it.
size_t matmul_address_bytes(int threads);

void matmul_forward(const MatmulForward<real>& a, Stream& stream);
void matmul_backward_input(const MatmulBackwardInput<real>& a, Stream& stream);
void matmul_backward_weight(const MatmulBackwardWeight<real>& a, Stream& stream);
void bias_backward(float* dbias /*[N]*/, const real* dy /*[rows, N]*/, size_t rows, int N, size_t ld_dy,
                   Stream& stream);

}  // namespace slab
