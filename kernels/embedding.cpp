// Embedding lookup on the CPU, and its gradient: a scatter of rows that may hit the same token many times.
//
// Backward is cut by channels, not by rows. Each tile adds its channels of all rows in ascending order. So no two tiles
// write the same element, and the order of every sum is fixed.
#include "kernels/embedding.h"

#include <stdexcept>
#include <string>

namespace slab {
namespace {

size_t position_of(size_t row, int T_len, const int32_t* doc_start) {
    return row % T_len - (doc_start ? doc_start[row] : 0);
}

}  // namespace

namespace ref {

template <class Number>
void embedding_forward(const EmbeddingForward<Number>& a, ThreadPool& pool) {
    constexpr size_t kTileRows = 16;
    const size_t C = a.C;
    pool.parallel_ranges(a.rows, kTileRows, [&](size_t begin, size_t end) {
        for (size_t row = begin; row < end; ++row) {
            Number* x = a.x + row * C;
            const Number* token = a.wte + a.tokens[row] * C;
            if (a.wpe) {
                const size_t at = static_cast<size_t>(a.first_position) + position_of(row, a.T_len, a.doc_start);
                const Number* position = a.wpe + at * C;
                for (size_t c = 0; c < C; ++c) x[c] = token[c] + position[c];
            } else {
                for (size_t c = 0; c < C; ++c) x[c] = token[c];
            }
        }
    });
}

template <class Number>
void embedding_backward(const EmbeddingBackward<Number>& a, ThreadPool& pool) {
    for (size_t row = 0; row < a.rows; ++row) {
        if (a.tokens[row] < 0 || a.tokens[row] >= a.V) {
            throw std::out_of_range("token " + std::to_string(a.tokens[row]) + " in row " + std::to_string(row) +
                                    " is outside the vocabulary of " + std::to_string(a.V));
        }
    }
    constexpr size_t kTileChannels = 64;
    const size_t C = a.C;
    pool.parallel_ranges(C, kTileChannels, [&](size_t begin, size_t end) {
        for (size_t row = 0; row < a.rows; ++row) {
            const Number* dx = a.dx + row * C;
            if (a.dwte) {
                Acc<Number>* dwte = a.dwte + a.tokens[row] * C;
                for (size_t c = begin; c < end; ++c) dwte[c] += dx[c];
            }
            if (a.dwpe) {
                Acc<Number>* dwpe = a.dwpe + position_of(row, a.T_len, a.doc_start) * C;
                for (size_t c = begin; c < end; ++c) dwpe[c] += dx[c];
            }
        }
    });
}

template void embedding_forward(const EmbeddingForward<float>&, ThreadPool&);
template void embedding_forward(const EmbeddingForward<double>&, ThreadPool&);
template void embedding_backward(const EmbeddingBackward<float>&, ThreadPool&);
template void embedding_backward(const EmbeddingBackward<double>&, ThreadPool&);

}  // namespace ref

#if !defined(SLABSTREAM_CUDA)
void embedding_forward(const EmbeddingForward<real>& a, Stream& stream) {
    stream.enqueue("embedding_forward", [a](ThreadPool& pool) { ref::embedding_forward(a, pool); });
}

void embedding_backward(const EmbeddingBackward<real>& a, Stream& stream) {
    stream.enqueue("embedding_backward", [a](ThreadPool& pool) { ref::embedding_backward(a, pool); });
}
#endif

}  // namespace slab
