// LayerNorm, RMSNorm, and RMSNorm per attention head (Qwen3's q/k norm).
//
// LayerNorm: y = (x - mean) * rstd * w + b, rstd = 1 / sqrt(var + eps).   RMSNorm: y = x * rstd * w, rstd = 1 /
// sqrt(mean(x²) + eps). Statistics are kept for backward in Acc<T>. Weight gradients are summed over rows in a fixed
// order.
#pragma once

#include <cstddef>

#include "kernels/runtime/real.h"
#include "kernels/runtime/runtime.h"

namespace slab {

template <class T>
struct NormForward {
    T* y;          // [rows, C]
    Acc<T>* mean;  // [rows]; null for RMSNorm
    Acc<T>* rstd;  // [rows]
    const T* x;    // [rows, C]
    const T* w;    // [C]
    const T* b;    // [C]; null for RMSNorm
    size_t rows;
    int C;
    float eps;
};

template <class T>
struct NormBackward {
    T* dx;               // [rows, C] += (the residual stream's gradient is already there)
    Acc<T>* dw;          // [C] += or null
    Acc<T>* db;          // [C] += or null
    const T* dy;         // [rows, C]
    const T* x;          // [rows, C]
    const T* w;          // [C]
    const Acc<T>* mean;  // [rows]; null for RMSNorm
    const Acc<T>* rstd;  // [rows]
    size_t rows;
    int C;
};

// y[row, h, :] = x[row, h, :] * rstd[row, h] * (h < NH ? w_q : w_k), for the NH query and NKV key heads that lie side
// by side
template <class T>
struct HeadNormForward {
    T* y;          // [rows, (NH + NKV) * HD], stride ld_y
    Acc<T>* rstd;  // [rows, NH + NKV]
    const T* x;    // [rows, (NH + NKV) * HD], stride ld_x
    const T* w_q;  // [HD]
    const T* w_k;  // [HD]
    size_t rows;
    int NH, NKV, HD;
    size_t ld_y, ld_x;
    float eps;
};

template <class T>
struct HeadNormBackward {
    T* dx;               // [rows, (NH + NKV) * HD], stride ld_dx, =; may be dy itself
    Acc<T>* dw_q;        // [HD] += or null
    Acc<T>* dw_k;        // [HD] += or null
    const T* dy;         // [rows, (NH + NKV) * HD], stride ld_dy
    const T* x;          // [rows, (NH + NKV) * HD], stride ld_x
    const T* w_q;        // [HD]
    const T* w_k;        // [HD]
    const Acc<T>* rstd;  // [rows, NH + NKV]
    size_t rows;
    int NH, NKV, HD;
    size_t ld_dx, ld_dy, ld_x;
};

namespace ref {
template <class T>
void layernorm_forward(const NormForward<T>& a, ThreadPool& pool);
template <class T>
void layernorm_backward(const NormBackward<T>& a, ThreadPool& pool);
template <class T>
void rmsnorm_forward(const NormForward<T>& a, ThreadPool& pool);
template <class T>
void rmsnorm_backward(const NormBackward<T>& a, ThreadPool& pool);
template <class T>
void head_norm_forward(const HeadNormForward<T>& a, ThreadPool& pool);
template <class T>
void head_norm_backward(const HeadNormBackward<T>& a, ThreadPool& pool);
}  // namespace ref

void layernorm_forward(const NormForward<real>& a, Stream& stream);
void layernorm_backward(const NormBackward<real>& a, Stream& stream);
void rmsnorm_forward(const NormForward<real>& a, Stream& stream);
void rmsnorm_backward(const NormBackward<real>& a, Stream& stream);
void head_norm_forward(const HeadNormForward<real>& a, Stream& stream);
void head_norm_backward(const HeadNormBackward<real>& a, Stream& stream);

}  // namespace slab
