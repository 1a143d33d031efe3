// One decoder block, forward and backward, written out by hand for all families with small branches.
//
// A block sees its weights, one micro-batch's activations and a stream. It knows nothing of other layers, files or
// offloading, so the model's loops over layers and micro-batches can be interchanged. No layer reads another layer's
// weights.
#pragma once

#include "kernels/runtime/real.h"
#include "train/model/block_buffers.h"
#include "train/model/block_parts.h"
#include "train/model/block_weights.h"

namespace slab::train {

// first: everything, x_out too. again: what backward reads of a forward pass that is run again; x_out is not written.
enum class ForwardRun { first, again };

// x_out = block(x_in). Leaves in `acts` what backward needs.
void block_forward(const BlockContext& ctx, ForwardRun run, real* x_out /*[rows, C]*/, const real* x_in /*[rows, C]*/,
                   const BlockWeights& w, const BlockActivations& acts);

// dx: on entry the gradient of the block's output, on return that of its input if need_dx (otherwise undefined).
// Adds to the gradients of adapters and, with ctx.trained_in_full, of the weights. Goes no further down than to the
// lowest of them, unless need_dx.
void block_backward(const BlockContext& ctx, real* dx /*[rows, C]*/, const real* x_in /*[rows, C]*/,
                    const BlockWeights& w, const BlockActivations& acts, bool need_dx);

}  // namespace slab::train
