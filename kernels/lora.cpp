// The adapters of a linear layer, composed of matrix products and dropout: the same lines for the references and, in
// every backend, for streams.
//
// Executor says where an operation goes (a pool, now; a stream, in order). Invariant: no mask is stored, backward draws
// the forward's again from the same key.
#include "kernels/lora.h"

#include <cassert>

#include "kernels/matmul.h"

namespace slab {
namespace {

struct PoolExecutor {
    ThreadPool& pool;
    template <class Args>
    void forward(const Args& a) const {
        ref::matmul_forward(a, pool);
    }
    template <class Args>
    void backward_input(const Args& a) const {
        ref::matmul_backward_input(a, pool);
    }
    template <class Args>
    void backward_weight(const Args& a) const {
        ref::matmul_backward_weight(a, pool);
    }
    template <class Args>
    void drop(const Args& a) const {
        ref::dropout(a, pool);
    }
};

struct StreamExecutor {
    Stream& stream;
    void forward(const MatmulForward<real>& a) const { matmul_forward(a, stream); }
    void backward_input(const MatmulBackwardInput<real>& a) const { matmul_backward_input(a, stream); }
    void backward_weight(const MatmulBackwardWeight<real>& a) const { matmul_backward_weight(a, stream); }
    void drop(const Dropout<real>& a) const { dropout(a, stream); }
};

// y (= or +=) drop_i(x), both [rows, K]
template <class Number>
Dropout<Number> module_dropout(Number* y, const Number* x, size_t rows, int K, const LoraModule<Number>& m,
                               const LoraDropout& d, bool accumulate) {
    DropoutKey key = d.key;
    key.site = m.site;
    return {.y = y, .x = x, .rows = rows, .T_len = d.T_len, .C = K, .p = d.p, .accumulate = accumulate, .key = key};
}

template <class Number>
const Number* rows_of(const LoraModule<Number>& m, const LoraGroup<Number>& g) {
    return g.A + static_cast<size_t>(m.first_row) * g.K;
}

// xa = x · Aᵀ, over r rows of A
template <class Number>
MatmulForward<Number> through_a(Number* xa, const Number* x, const Number* A, size_t rows, int r,
                                const LoraGroup<Number>& g) {
    const size_t ld_xa = g.r, K = g.K;
    return {.y = xa,
            .x = x,
            .w = A,
            .bias = nullptr,
            .add = nullptr,
            .rows = rows,
            .N = r,
            .K = g.K,
            .ld_y = ld_xa,
            .ld_x = K};
}

// dx (= or +=) dxa · A, over r rows of A
template <class Number>
MatmulBackwardInput<Number> through_a_backward(Number* dx, const Number* dxa, const Number* A, size_t rows, int r,
                                               const LoraGroup<Number>& g, bool accumulate) {
    const size_t ld_xa = g.r, K = g.K;
    return {.dx = dx,
            .dy = dxa,
            .w = A,
            .rows = rows,
            .N = r,
            .K = g.K,
            .ld_dx = K,
            .ld_dy = ld_xa,
            .alpha = 1,
            .accumulate = accumulate};
}

// dA += dxaᵀ · x, over r rows of A
template <class Number>
MatmulBackwardWeight<Number> a_gradient(Acc<Number>* dA, const Number* dxa, const Number* x, size_t rows, int r,
                                        const LoraGroup<Number>& g) {
    const size_t ld_xa = g.r, K = g.K;
    return {.dw = dA, .dy = dxa, .x = x, .rows = rows, .N = r, .K = g.K, .ld_dy = ld_xa, .ld_x = K};
}

template <class Number, class Executor>
void run_forward(const LoraForward<Number>& a, const LoraGroup<Number>& g, const LoraDropout& d, const Executor& run) {
    if (g.modules.empty()) return;
    const size_t ld_xa = g.r;
    if (d.p == 0) run.forward(through_a(a.xa, a.x, g.A, a.rows, g.r, g));
    for (const LoraModule<Number>& m : g.modules) {
        Number* xa = a.xa + m.first_row;  // [rows, r], stride ld_xa
        if (d.p > 0) {
            assert(a.x_dropped);
            run.drop(module_dropout(a.x_dropped, a.x, a.rows, g.K, m, d, false));
            run.forward(through_a<Number>(xa, a.x_dropped, rows_of(m, g), a.rows, m.r, g));
        }
        if (a.xa_only) continue;
        Number* y = a.y + m.first_col;  // [rows, N], stride ld_y
        const Number* add = a.accumulate ? y : a.add ? a.add + m.first_col : nullptr;
        run.forward(MatmulForward<Number>{.y = y,
                                          .x = xa,
                                          .w = m.B,
                                          .bias = nullptr,
                                          .add = add,
                                          .rows = a.rows,
                                          .N = m.N,
                                          .K = m.r,
                                          .ld_y = a.ld_y,
                                          .ld_x = ld_xa,
                                          .alpha = m.scale});
    }
}

// dx (= or +=) the modules' share, from dxa
template <class Number, class Executor>
void run_backward_input(const LoraBackward<Number>& a, const LoraGroup<Number>& g, const LoraDropout& d,
                        const Executor& run) {
    if (d.p == 0) return run.backward_input(through_a_backward(a.dx, a.dxa, g.A, a.rows, g.r, g, a.accumulate));
    bool accumulate = a.accumulate;
    for (const LoraModule<Number>& m : g.modules) {
        run.backward_input(through_a_backward(a.x_dropped, a.dxa + m.first_row, rows_of(m, g), a.rows, m.r, g, false));
        run.drop(module_dropout<Number>(a.dx, a.x_dropped, a.rows, g.K, m, d, accumulate));
        accumulate = true;
    }
}

template <class Number, class Executor>
void run_backward(const LoraBackward<Number>& a, const LoraGroup<Number>& g, const LoraDropout& d,
                  const Executor& run) {
    if (g.modules.empty()) return;
    const size_t ld_xa = g.r, K = g.K;
    for (const LoraModule<Number>& m : g.modules) {
        const Number* dy = a.dy + m.first_col;  // [rows, N], stride ld_dy
        const Number* xa = a.xa + m.first_row;  // [rows, r], stride ld_xa
        Number* dxa = a.dxa + m.first_row;      // [rows, r], stride ld_xa
        run.backward_input(MatmulBackwardInput<Number>{.dx = dxa,
                                                       .dy = dy,
                                                       .w = m.B,
                                                       .rows = a.rows,
                                                       .N = m.N,
                                                       .K = m.r,
                                                       .ld_dx = ld_xa,
                                                       .ld_dy = a.ld_dy,
                                                       .alpha = m.scale});
        run.backward_weight(MatmulBackwardWeight<Number>{.dw = m.dB,
                                                         .dy = dy,
                                                         .x = xa,
                                                         .rows = a.rows,
                                                         .N = m.N,
                                                         .K = m.r,
                                                         .ld_dy = a.ld_dy,
                                                         .ld_x = ld_xa,
                                                         .alpha = m.scale});
    }
    if (d.p == 0) {  // one product for all modules
        run.backward_weight(a_gradient(g.dA, a.dxa, a.x, a.rows, g.r, g));
    } else {
        assert(a.x_dropped);
        for (const LoraModule<Number>& m : g.modules) {
            run.drop(module_dropout(a.x_dropped, a.x, a.rows, g.K, m, d, false));
            run.backward_weight(
                a_gradient<Number>(g.dA + m.first_row * K, a.dxa + m.first_row, a.x_dropped, a.rows, m.r, g));
        }
    }
    if (a.dx) run_backward_input(a, g, d, run);
}

}  // namespace

namespace ref {

template <class Number>
void lora_forward(const LoraForward<Number>& a, const LoraGroup<Number>& g, const LoraDropout& d, ThreadPool& pool) {
    run_forward(a, g, d, PoolExecutor{pool});
}

template <class Number>
void lora_backward(const LoraBackward<Number>& a, const LoraGroup<Number>& g, const LoraDropout& d, ThreadPool& pool) {
    run_backward(a, g, d, PoolExecutor{pool});
}

template <class Number>
void lora_backward_input(const LoraBackward<Number>& a, const LoraGroup<Number>& g, const LoraDropout& d,
                         ThreadPool& pool) {
    if (!g.modules.empty()) run_backward_input(a, g, d, PoolExecutor{pool});
}

template void lora_forward(const LoraForward<float>&, const LoraGroup<float>&, const LoraDropout&, ThreadPool&);
template void lora_forward(const LoraForward<double>&, const LoraGroup<double>&, const LoraDropout&, ThreadPool&);
template void lora_backward(const LoraBackward<float>&, const LoraGroup<float>&, const LoraDropout&, ThreadPool&);
template void lora_backward(const LoraBackward<double>&, const LoraGroup<double>&, const LoraDropout&, ThreadPool&);
template void lora_backward_input(const LoraBackward<float>&, const LoraGroup<float>&, const LoraDropout&, ThreadPool&);
template void lora_backward_input(const LoraBackward<double>&, const LoraGroup<double>&, const LoraDropout&,
                                  ThreadPool&);

}  // namespace ref

void lora_forward(const LoraForward<real>& a, const LoraGroup<real>& g, const LoraDropout& d, Stream& stream) {
    run_forward(a, g, d, StreamExecutor{stream});
}

void lora_backward(const LoraBackward<real>& a, const LoraGroup<real>& g, const LoraDropout& d, Stream& stream) {
    run_backward(a, g, d, StreamExecutor{stream});
}

void lora_backward_input(const LoraBackward<real>& a, const LoraGroup<real>& g, const LoraDropout& d, Stream& stream) {
    if (!g.modules.empty()) run_backward_input(a, g, d, StreamExecutor{stream});
}

}  // namespace slab
