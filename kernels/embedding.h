// Token and learned position embeddings.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/runtime/real.h"
#include "kernels/runtime/runtime.h"

namespace slab {

// x[b, t, :] = wte[tokens[b, t], :] + wpe[first_position + t - doc_start[b, t], :]
template <class T>
struct EmbeddingForward {
    T* x;                      // [B, T, C]
    const int32_t* tokens;     // [B, T], each in [0, V)
    const int32_t* doc_start;  // [B, T] index of the first token of the document that token t belongs to; null: all 0
    const T* wte;              // [V, C]
    const T* wpe;              // [max_positions, C] or null
    size_t rows;               // B * T
    int T_len, C;
    int first_position = 0;  // of t = 0: not 0 where the tokens follow others, whose keys are in a cache
};

// dwte[token] += dx, dwpe[position] += dx, summed in ascending row order
template <class T>
struct EmbeddingBackward {
    Acc<T>* dwte;              // [V, C] +=, or null
    Acc<T>* dwpe;              // [max_positions, C] +=, or null
    const T* dx;               // [B, T, C]
    const int32_t* tokens;     // [B, T]
    const int32_t* doc_start;  // [B, T] or null
    size_t rows;               // B * T
    int T_len, C, V;
};

namespace ref {
template <class T>
void embedding_forward(const EmbeddingForward<T>& a, ThreadPool& pool);
template <class T>
void embedding_backward(const EmbeddingBackward<T>& a, ThreadPool& pool);
}  // namespace ref

void embedding_forward(const EmbeddingForward<real>& a, Stream& stream);
void embedding_backward(const EmbeddingBackward<real>& a, Stream& stream);

}  // namespace slab
