// The low-rank adapters of one linear layer, or of several that read the same input (q, k, v; gate, up).
//
// y[:, cols of module i] += scale_i * (drop_i(x) · A_iᵀ) · B_iᵀ. The A_i lie one below the other in one matrix A [r,
// K], r the sum of the ranks. Without dropout x is read once for all of them. With dropout each module draws its own
// mask. Backward: dxa_i = scale_i * dy_i · B_i, dB_i += scale_i * dy_iᵀ · xa_i, dA_i += dxa_iᵀ · drop_i(x), dx +=
// drop_i(dxa_i · A_i). Source: LoRA (Hu et al., 2021); PEFT's meaning of scale and dropout.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/dropout.h"
#include "kernels/runtime/real.h"
#include "kernels/runtime/runtime.h"

namespace slab {

template <class Number>
struct LoraModule {
    const Number* B;  // [N, r]
    Acc<Number>* dB;  // [N, r] += ; null in a pure forward
    int r;            // rank
    int N;            // outputs of this module
    int first_row;    // this module's first row in A, = sum of the ranks before it
    int first_col;    // where its outputs start in a row of y
    float scale;
    int site;  // dropout site
};

template <class Number>
struct LoraGroup {
    const Number* A;                          // [r, K]
    Acc<Number>* dA;                          // [r, K] +=
    int r;                                    // sum of the modules' ranks
    int K;                                    // inputs
    std::vector<LoraModule<Number>> modules;  // empty: no adapter here
};

struct LoraDropout {
    float p = 0;     // 0: none, and the fused path
    int T_len = 0;   // tokens a row of the batch
    DropoutKey key;  // site is taken from the module
};

// y (+=, or = with `add` on top) adapters(x), in the columns of the modules; keeps xa for backward.
template <class Number>
struct LoraForward {
    Number* y;          // [rows, N_total], stride ld_y
    Number* xa;         // [rows, r of the group] = drop(x) · Aᵀ
    const Number* x;    // [rows, K]
    Number* x_dropped;  // [rows, K] scratch, only with dropout, else null
    size_t rows;
    size_t ld_y;
    bool accumulate = true;       // +=; otherwise y need hold nothing before
    const Number* add = nullptr;  // [rows, N_total], stride ld_y, or null; only without accumulate
    bool xa_only = false;         // recomputation: y is not written
};

template <class Number>
struct LoraBackward {
    Number* dx;         // [rows, K] ; null when nothing below needs it
    Number* dxa;        // [rows, r of the group] scratch
    const Number* dy;   // [rows, N_total], stride ld_dy
    const Number* xa;   // [rows, r of the group] of the forward
    const Number* x;    // [rows, K]
    Number* x_dropped;  // [rows, K] scratch, only with dropout
    size_t rows;
    size_t ld_dy;
    bool accumulate = true;  // dx +=, otherwise dx =
};

namespace ref {
template <class Number>
void lora_forward(const LoraForward<Number>& a, const LoraGroup<Number>& g, const LoraDropout& d, ThreadPool& pool);
template <class Number>
void lora_backward(const LoraBackward<Number>& a, const LoraGroup<Number>& g, const LoraDropout& d, ThreadPool& pool);
template <class Number>
void lora_backward_input(const LoraBackward<Number>& a, const LoraGroup<Number>& g, const LoraDropout& d,
                         ThreadPool& pool);
}  // namespace ref

void lora_forward(const LoraForward<real>& a, const LoraGroup<real>& g, const LoraDropout& d, Stream& stream);
void lora_backward(const LoraBackward<real>& a, const LoraGroup<real>& g, const LoraDropout& d, Stream& stream);
// The last part of lora_backward alone, dx (= or +=) drop(dxa · A), after a lora_backward with dx null. Reads neither x
// nor xa, so dx may lie over x.
void lora_backward_input(const LoraBackward<real>& a, const LoraGroup<real>& g, const LoraDropout& d, Stream& stream);

}  // namespace slab
