// LayerNorm, RMSNorm, and RMSNorm per attention head (Qwen3's q/k norm).
//
//     LayerNorm   y = (x - mean) * rstd * w + b, rstd = 1 / sqrt(var + eps)
//     RMSNorm     y = x * rstd * w, rstd = 1 / sqrt(mean(x²) + eps)
//
// Statistics are kept for backward in Acc<Number>. Weight gradients are summed over rows in a fixed order.
#pragma once

#include <cstddef>

#include "kernels/runtime/real.h"
#include "kernels/runtime/runtime.h"

namespace slab {

template <class Number>
struct NormForward {
    Number* y;          // [rows, C]
    Acc<Number>* mean;  // [rows]; null for RMSNorm
    Acc<Number>* rstd;  // [rows]
    const Number* x;    // [rows, C]
    const Number* w;    // [C]
    const Number* b;    // [C]; null for RMSNorm
    size_t rows;
    int C;
    float eps;
};

template <class Number>
struct NormBackward {
    Number* dx;               // [rows, C] += (the residual stream's gradient is already there)
    Acc<Number>* dw;          // [C] += or null
    Acc<Number>* db;          // [C] += or null
    const Number* dy;         // [rows, C]
    const Number* x;          // [rows, C]
    const Number* w;          // [C]
    const Acc<Number>* mean;  // [rows]; null for RMSNorm
    const Acc<Number>* rstd;  // [rows]
    size_t rows;
    int C;
};

// y[row, h, :] = x[row, h, :] * rstd[row, h] * (h < NH ? w_q : w_k). NH query heads and NKV key heads lie side by side.
template <class Number>
struct HeadNormForward {
    Number* y;          // [rows, (NH + NKV) * HD], stride ld_y
    Acc<Number>* rstd;  // [rows, NH + NKV]
    const Number* x;    // [rows, (NH + NKV) * HD], stride ld_x
    const Number* w_q;  // [HD]
    const Number* w_k;  // [HD]
    size_t rows;
    int NH, NKV, HD;
    size_t ld_y, ld_x;
    float eps;
};

template <class Number>
struct HeadNormBackward {
    Number* dx;               // [rows, (NH + NKV) * HD], stride ld_dx, =; may be dy itself
    Acc<Number>* dw_q;        // [HD] += or null
    Acc<Number>* dw_k;        // [HD] += or null
    const Number* dy;         // [rows, (NH + NKV) * HD], stride ld_dy
    const Number* x;          // [rows, (NH + NKV) * HD], stride ld_x
    const Number* w_q;        // [HD]
    const Number* w_k;        // [HD]
    const Acc<Number>* rstd;  // [rows, NH + NKV]
    size_t rows;
    int NH, NKV, HD;
    size_t ld_dx, ld_dy, ld_x;
};

namespace ref {
template <class Number>
void layernorm_forward(const NormForward<Number>& a, ThreadPool& pool);
template <class Number>
void layernorm_backward(const NormBackward<Number>& a, ThreadPool& pool);
template <class Number>
void rmsnorm_forward(const NormForward<Number>& a, ThreadPool& pool);
template <class Number>
void rmsnorm_backward(const NormBackward<Number>& a, ThreadPool& pool);
template <class Number>
void head_norm_forward(const HeadNormForward<Number>& a, ThreadPool& pool);
template <class Number>
void head_norm_backward(const HeadNormBackward<Number>& a, ThreadPool& pool);
}  // namespace ref

void layernorm_forward(const NormForward<real>& a, Stream& stream);
void layernorm_backward(const NormBackward<real>& a, Stream& stream);
void rmsnorm_forward(const NormForward<real>& a, Stream& stream);
void rmsnorm_backward(const NormBackward<real>& a, Stream& stream);
void head_norm_forward(const HeadNormForward<real>& a, Stream& stream);
void head_norm_backward(const HeadNormBackward<real>& a, Stream& stream);

}  // namespace slab
