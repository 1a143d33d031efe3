// One thread per element, or per four; the terms of an element are added in a loop. The sums are __fadd_rn and
// __dadd_rn, which no compiler joins with anything.
#include "kernels/cuda_common.cuh"
#include "kernels/ordered_sum.h"

namespace slab {
namespace {

constexpr int kVector = 4;
constexpr int kDigestThreads = 256;

__device__ __forceinline__ float added(float a, float b) {
    return __fadd_rn(a, b);
}
__device__ __forceinline__ double added(double a, double b) {
    return __dadd_rn(a, b);
}

struct Floats {
    AddInOrder<float> a;

    template <int kWidth>
    __device__ __forceinline__ void run(size_t i) const {
        cuda::Values<kWidth> sum = cuda::load<kWidth>((a.accumulate ? a.sum : a.terms) + i);
        for (int t = a.accumulate ? 0 : 1; t < a.count; ++t) {
            const cuda::Values<kWidth> term = cuda::load<kWidth>(a.terms + static_cast<size_t>(t) * a.stride + i);
#pragma unroll
            for (int k = 0; k < kWidth; ++k) sum.v[k] = added(sum.v[k], term.v[k]);
        }
        cuda::store(a.sum + i, sum);
    }
};

struct Doubles {
    AddInOrder<double> a;

    template <int kWidth>
    __device__ __forceinline__ void run(size_t i) const {
        static_assert(kWidth == 1);
        double sum = a.accumulate ? a.sum[i] : a.terms[i];
        for (int t = a.accumulate ? 0 : 1; t < a.count; ++t)
            sum = added(sum, a.terms[static_cast<size_t>(t) * a.stride + i]);
        a.sum[i] = sum;
    }
};

__global__ void __launch_bounds__(kDigestThreads)
    digest_kernel(unsigned long long* digest /*[1] +=*/, const float* numbers /*[n]*/, size_t n) {
    const size_t threads = static_cast<size_t>(gridDim.x) * kDigestThreads;
    unsigned long long mine = 0;
    for (size_t i = static_cast<size_t>(blockIdx.x) * kDigestThreads + threadIdx.x; i < n; i += threads)
        mine += digest_term(__float_as_uint(numbers[i]), i);
    for (int offset = cuda::kWarp / 2; offset > 0; offset /= 2) mine += __shfl_xor_sync(0xffffffffu, mine, offset);
    if (threadIdx.x % cuda::kWarp == 0) atomicAdd(digest, mine);
}

}  // namespace

void add_in_order(const AddInOrder<float>& a, Stream& stream) {
    const OpScope scope(stream, "add_in_order");
    if (a.count == 0) return;
    const bool vectors = cuda::aligned({a.sum, a.terms}, kVector * sizeof(float)) && a.stride % kVector == 0;
    cuda::launch_each<kVector>(Floats{a}, a.n, vectors, native(stream));
}

void add_in_order(const AddInOrder<double>& a, Stream& stream) {
    const OpScope scope(stream, "add_in_order");
    if (a.count == 0) return;
    cuda::launch_each<1>(Doubles{a}, a.n, true, native(stream));
}

void digest_numbers(uint64_t* digest, const float* numbers, size_t n, Stream& stream) {
    const OpScope scope(stream, "digest_numbers");
    static_assert(sizeof(unsigned long long) == sizeof(uint64_t));
    CUDA_CHECK(cudaMemsetAsync(digest, 0, sizeof *digest, native(stream)));
    if (n == 0) return;
    constexpr size_t kMostBlocks = 1024;
    const size_t blocks = cuda::ceil_div(n, kDigestThreads);
    digest_kernel<<<cuda::grid_size(blocks < kMostBlocks ? blocks : kMostBlocks), kDigestThreads, 0, native(stream)>>>(
        reinterpret_cast<unsigned long long*>(digest), numbers, n);
    CUDA_CHECK(cudaGetLastError());
}

}  // namespace slab
