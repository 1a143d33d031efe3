// Embedding lookup on the GPU, and its gradient: a scatter of rows that may hit the same token many times.
//
// Backward has no atomics. A warp owns some channels of one slice of the vocabulary. It reads all tokens in order and
// adds the rows of its slice. So each element's sum runs in ascending row order, as in the reference.
#include "kernels/cuda_common.cuh"
#include "kernels/embedding.h"

namespace slab {
namespace {

constexpr int kSlices = 256;       // of the vocabulary, by token % kSlices
constexpr int kWarpsPerBlock = 4;  // of the scatter: neighbouring slices
constexpr int kScatterVector = 4;  // channels a lane owns
constexpr int kLookupThreads = 128;

__device__ __forceinline__ int position_of(size_t row, int T_len, const int32_t* doc_start) {
    return static_cast<int>(row % T_len) - (doc_start ? doc_start[row] : 0);
}

template <int kWidth>
__global__ void __launch_bounds__(kLookupThreads) lookup_kernel(EmbeddingForward<real> a) {
    const size_t row = blockIdx.x, C = a.C;
    const real* token = a.wte + a.tokens[row] * C;
    const int at = a.first_position + position_of(row, a.T_len, a.doc_start);
    const real* position = a.wpe ? a.wpe + at * C : nullptr;
    for (size_t c = threadIdx.x * kWidth; c < C; c += kLookupThreads * kWidth) {
        cuda::Values<kWidth> x = cuda::load<kWidth>(token + c);
        if (position) {
            const cuda::Values<kWidth> p = cuda::load<kWidth>(position + c);
#pragma unroll
            for (int k = 0; k < kWidth; ++k) x.v[k] += p.v[k];
        }
        cuda::store(a.x + row * C + c, x);
    }
}

// The table row that a token's gradient is added to.
struct ByToken {
    const int32_t* tokens;  // [rows]
    __device__ int operator()(size_t row) const { return tokens[row]; }
};
struct ByPosition {
    const int32_t* doc_start;  // [rows] or null
    int T_len;
    __device__ int operator()(size_t row) const { return position_of(row, T_len, doc_start); }
};

// Grid: slices, tiles of channels. Keys outside [0, keys) add nothing: memory beside the table is never written.
template <int kWidth, class KeyOf>
__global__ void __launch_bounds__(kWarpsPerBlock* cuda::kWarp)
    scatter_kernel(float* table /*[keys, C] +=*/, const real* dx /*[rows, C]*/, size_t rows, int C, int keys,
                   KeyOf key_of) {
    const int lane = threadIdx.x % cuda::kWarp;
    const int slice = blockIdx.x * kWarpsPerBlock + threadIdx.x / cuda::kWarp;
    const int c = (blockIdx.y * cuda::kWarp + lane) * kWidth;
    for (size_t first = 0; first < rows; first += cuda::kWarp) {
        const size_t row = first + lane;
        const int key = row < rows ? key_of(row) : -1;
        unsigned mine = __ballot_sync(0xffffffffu, key >= 0 && key < keys && key % kSlices == slice);
        while (mine != 0) {
            const int next = __ffs(mine) - 1;
            mine &= mine - 1;
            const size_t target = static_cast<size_t>(__shfl_sync(0xffffffffu, key, next));
            if (c < C) {
                float* out = table + target * C + c;
                cuda::Values<kWidth> sum = cuda::load<kWidth>(out);
                const cuda::Values<kWidth> d = cuda::load<kWidth>(dx + (first + next) * C + c);
#pragma unroll
                for (int k = 0; k < kWidth; ++k) sum.v[k] += d.v[k];
                cuda::store(out, sum);
            }
        }
    }
}

template <class KeyOf>
void scatter(float* table, const EmbeddingBackward<real>& a, int keys, const KeyOf& key_of, cudaStream_t stream) {
    const bool vectors =
        a.C % kScatterVector == 0 && cuda::aligned({table}, 16) && cuda::aligned({a.dx}, kScatterVector * sizeof(real));
    const int width = vectors ? kScatterVector : 1;
    const dim3 grid(kSlices / kWarpsPerBlock, static_cast<unsigned>(cuda::ceil_div(a.C, cuda::kWarp * width)));
    const auto kernel = vectors ? scatter_kernel<kScatterVector, KeyOf> : scatter_kernel<1, KeyOf>;
    kernel<<<grid, kWarpsPerBlock * cuda::kWarp, 0, stream>>>(table, a.dx, a.rows, a.C, keys, key_of);
    CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void embedding_forward(const EmbeddingForward<real>& a, Stream& stream) {
    const OpScope scope(stream, "embedding_forward");
    if (a.rows == 0 || a.C == 0) return;
    const bool vectors = a.C % cuda::kVector == 0 && cuda::aligned({a.x, a.wte, a.wpe}, 16);
    const auto kernel = vectors ? lookup_kernel<cuda::kVector> : lookup_kernel<1>;
    kernel<<<cuda::grid_size(a.rows), kLookupThreads, 0, native(stream)>>>(a);
    CUDA_CHECK(cudaGetLastError());
}

void embedding_backward(const EmbeddingBackward<real>& a, Stream& stream) {
    const OpScope scope(stream, "embedding_backward");
    if (a.rows == 0 || a.C == 0) return;
    if (a.dwte) scatter(a.dwte, a, a.V, ByToken{a.tokens}, native(stream));
    if (a.dwpe) scatter(a.dwpe, a, a.T_len, ByPosition{a.doc_start, a.T_len}, native(stream));
}

}  // namespace slab
