// AdamW over contiguous trained tensors, the global gradient norm with clipping, and the decision to skip a bad step.
//
// The norm, the clip factor and the decision to update stay on the device in OptimizerControl, so a step needs no host
// read. The clip factor is min(1, max_norm / (norm + 1e-6)), as in torch.nn.utils.clip_grad_norm_. A norm or loss that
// is not finite sets skip: parameters, moments and the count of applied updates stay as they are.
//
//     m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g²;  p -= lr wd p;  p -= lr (m / bc1) / (sqrt(v / bc2) + eps)
//
// Source: torch.optim.AdamW.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/runtime/real.h"
#include "kernels/runtime/runtime.h"

namespace slab {

struct OptimizerControl {
    float grad_norm;                           // before clipping
    float clip;                                // gradients are multiplied by this
    int32_t skip;                              // 1: this step's update is not applied
    int32_t applied;                           // updates applied so far, this one included unless skipped
    float bias_correction1, bias_correction2;  // 1 - beta^applied
};

struct AdamWSettings {
    float learning_rate, beta1, beta2, epsilon, weight_decay;
};

template <class Number>
struct AdamWUpdate {
    Number* param;            // [n]
    Acc<Number>* master;      // [n] float32 master, or null when param itself is it
    const Acc<Number>* grad;  // [n]
    Acc<Number>* exp_avg;     // [n]
    Acc<Number>* exp_avg_sq;  // [n]
    size_t n;
    AdamWSettings settings;
    const OptimizerControl* control;  // device
};

// Bytes of scratch that gradient_norm needs for n elements.
size_t gradient_norm_scratch_bytes(size_t n);

// Fills control->{grad_norm, clip, skip, applied, bias corrections}.
template <class G>
struct GradientNorm {
    OptimizerControl* control;  // device
    double* scratch;            // gradient_norm_scratch_bytes(n)
    const G* grad;              // [n]
    size_t n;
    float max_norm;          // <= 0: no clipping
    const double* loss_sum;  // [1] device: the step's loss, which must be finite as well; or null
    float beta1, beta2;
};

namespace ref {
template <class G>
void gradient_norm(const GradientNorm<G>& a, ThreadPool& pool);
template <class Number>
void adamw_update(const AdamWUpdate<Number>& a, ThreadPool& pool);
}  // namespace ref

void gradient_norm(const GradientNorm<float>& a, Stream& stream);
void adamw_update(const AdamWUpdate<real>& a, Stream& stream);

}  // namespace slab
