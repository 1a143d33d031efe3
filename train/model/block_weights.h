// The weights of a decoder block as its formulas name them: values, gradients, adapters, and shapes beside them.
//
// Gradients are +=. They are null where the layer is frozen.
#pragma once

#include "kernels/lora.h"
#include "kernels/runtime/real.h"

namespace slab::train {

// LayerNorm's, or RMSNorm's without b.
struct NormWeights {
    const real* w;  // [C]
    const real* b;  // [C], null for RMSNorm
    float* dw;      // [C] +=
    float* db;      // [C] +=
};

// Of the RMSNorm of each query head and each key head.
struct HeadNormWeights {
    const real* w_q;  // [HD]
    const real* w_k;  // [HD]
    float* dw_q;      // [HD] +=
    float* dw_k;      // [HD] +=
};

// y [rows, N] = x [rows, K] · wᵀ + bias + adapters(x)
struct LinearWeights {
    const real* w;                // [N, K]
    const real* bias;             // [N], null where the model has none
    float* dw;                    // [N, K] +=
    float* dbias;                 // [N] +=
    const LoraGroup<real>* lora;  // the adapters of these outputs, null where there are none
    int N, K;
    bool adapted() const { return lora != nullptr; }
};

struct BlockWeights {
    NormWeights norm1, norm2;  // [C]
    LinearWeights qkv;         // [(NH + 2 NKV) HD, C]
    HeadNormWeights qk_norm;   // [HD], all null without qk_norm
    LinearWeights o;           // [C, NH HD]
    LinearWeights fc;          // [2 I, C] gate and up with SwiGLU, else [I, C]
    LinearWeights down;        // [C, I]
};

}  // namespace slab::train
