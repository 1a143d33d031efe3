// Fused softmax and cross-entropy over a chunk of tokens; logits become their own gradient in place.
//
// loss[row] = log(sum exp(z)) - z[target], dz = (softmax(z) - onehot(target)) * dloss. A row whose target is
// kIgnoreTarget has loss 0 and gradient 0. The caller cuts the tokens into chunks, so [B, T, V] never exists at once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/runtime/real.h"
#include "kernels/runtime/runtime.h"

namespace slab {

inline constexpr int32_t kIgnoreTarget = -100;

namespace ref {
// backward false: logits are left as they are and dloss is not used.
template <class Number>
void cross_entropy(Acc<Number>* losses /*[rows] =*/, Number* logits /*[rows, V]*/, const int32_t* targets /*[rows]*/,
                   size_t rows, int V, Acc<Number> dloss, bool backward, ThreadPool& pool);
// *sum (= or +=) the losses added up in ascending order, in double, before they are added to *sum
template <class Number>
void sum_losses(double* sum, const Number* losses /*[n]*/, size_t n, bool accumulate, ThreadPool& pool);
}  // namespace ref

void cross_entropy(float* losses /*[rows]*/, real* logits /*[rows, V]*/, const int32_t* targets /*[rows]*/, size_t rows,
                   int V, float dloss, bool backward, Stream& stream);
void sum_losses(double* sum /*device*/, const float* losses /*[n]*/, size_t n, bool accumulate, Stream& stream);

}  // namespace slab
