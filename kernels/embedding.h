// Token and learned position embeddings.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/runtime/real.h"
#include "kernels/runtime/runtime.h"

namespace slab {

// x[b, t, :] = wte[tokens[b, t], :] + wpe[first_position + t - doc_start[b, t], :]
template <class Number>
struct EmbeddingForward {
    Number* x;                 // [B, T, C]
    const int32_t* tokens;     // [B, T], each in [0, V)
    const int32_t* doc_start;  // [B, T] index of the first token of the document that token t belongs to; null: all 0
    const Number* wte;         // [V, C]
    const Number* wpe;         // [max_positions, C] or null
    size_t rows;               // B * T
    int T_len, C;
    int first_position = 0;  // of t = 0; above 0 where the tokens follow others whose keys are cached
};

// dwte[token] += dx, dwpe[position] += dx, summed in ascending row order
template <class Number>
struct EmbeddingBackward {
    Acc<Number>* dwte;         // [V, C] +=, or null
    Acc<Number>* dwpe;         // [max_positions, C] +=, or null
    const Number* dx;          // [B, T, C]
    const int32_t* tokens;     // [B, T]
    const int32_t* doc_start;  // [B, T] or null
    size_t rows;               // B * T
    int T_len, C, V;
};

namespace ref {
template <class Number>
void embedding_forward(const EmbeddingForward<Number>& a, ThreadPool& pool);
template <class Number>
void embedding_backward(const EmbeddingBackward<Number>& a, ThreadPool& pool);
}  // namespace ref

void embedding_forward(const EmbeddingForward<real>& a, Stream& stream);
void embedding_backward(const EmbeddingBackward<real>& a, Stream& stream);

}  // namespace slab
