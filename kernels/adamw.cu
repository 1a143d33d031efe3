// AdamW and the gradient norm on the GPU.
//
// The norm is summed in double: a block per tile of 64 Ki elements, then one block over the tiles, both as fixed trees.
// Tiles and scratch are those of adamw.cpp. The decision to skip stays on the device, so the host never waits within a
// step.
#include <stdexcept>

#include "kernels/adamw.h"
#include "kernels/cuda_common.cuh"

namespace slab {
namespace {

constexpr size_t kNormTileElems = size_t{64} << 10;
constexpr int kNormThreads = 512;
constexpr int kUpdateVector = 4;

// Thread 0 gets the block's sum.
__device__ double block_tree(double mine) {
    __shared__ double partial[kNormThreads];
    partial[threadIdx.x] = mine;
    for (int half = kNormThreads / 2; half > 0; half /= 2) {
        __syncthreads();
        if (static_cast<int>(threadIdx.x) < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    }
    return partial[0];
}

__global__ void __launch_bounds__(kNormThreads)
    squares_kernel(double* tile_sums /*[tiles]*/, const float* grad /*[n]*/, size_t n) {
    const size_t begin = blockIdx.x * kNormTileElems;
    const size_t end = n - begin < kNormTileElems ? n : begin + kNormTileElems;
    double mine = 0;
#pragma unroll 4
    for (size_t i = begin + threadIdx.x; i < end; i += kNormThreads) {
        const double g = grad[i];
        mine += g * g;
    }
    const double sum = block_tree(mine);
    if (threadIdx.x == 0) tile_sums[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kNormThreads)
    control_kernel(OptimizerControl* control, const double* tile_sums /*[tiles]*/, size_t tiles, float max_norm,
                   const double* loss_sum, float beta1, float beta2) {
    double mine = 0;
    for (size_t i = threadIdx.x; i < tiles; i += kNormThreads) mine += tile_sums[i];
    const double sum = block_tree(mine);
    if (threadIdx.x != 0) return;
    OptimizerControl next = *control;
    next.grad_norm = static_cast<float>(sqrt(sum));
    next.skip = !isfinite(next.grad_norm) || (loss_sum && !isfinite(*loss_sum));
    if (next.skip) {
        next.clip = 0;
    } else {
        next.clip = max_norm > 0 ? fminf(1.0f, max_norm / (next.grad_norm + 1e-6f)) : 1.0f;
        next.applied += 1;
        next.bias_correction1 = static_cast<float>(1 - pow(static_cast<double>(beta1), next.applied));
        next.bias_correction2 = static_cast<float>(1 - pow(static_cast<double>(beta2), next.applied));
    }
    *control = next;
}

struct Update {
    real* param;        // [n], a rounded copy of master, or null
    float* master;      // [n]
    const float* grad;  // [n]
    float* exp_avg;     // [n]
    float* exp_avg_sq;  // [n]
    AdamWSettings settings;
    const OptimizerControl* control;

    template <int kWidth>
    __device__ __forceinline__ void run(size_t i) const {
        const OptimizerControl c = *control;
        if (c.skip) return;
        const float beta1 = settings.beta1, beta2 = settings.beta2, rate = settings.learning_rate;
        const float keep = 1 - rate * settings.weight_decay;
        const cuda::Values<kWidth> g = cuda::load<kWidth>(grad + i);
        cuda::Values<kWidth> m = cuda::load<kWidth>(exp_avg + i), v = cuda::load<kWidth>(exp_avg_sq + i);
        cuda::Values<kWidth> p = cuda::load<kWidth>(master + i);
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
            const float clipped = g.v[k] * c.clip;
            m.v[k] = beta1 * m.v[k] + (1 - beta1) * clipped;
            v.v[k] = beta2 * v.v[k] + (1 - beta2) * clipped * clipped;
            p.v[k] = p.v[k] * keep -
                     rate * (m.v[k] / c.bias_correction1) / (sqrtf(v.v[k] / c.bias_correction2) + settings.epsilon);
        }
        cuda::store(exp_avg + i, m);
        cuda::store(exp_avg_sq + i, v);
        cuda::store(master + i, p);
        if (param) cuda::store(param + i, p);
    }
};

float* master_of(const AdamWUpdate<real>& a) {
    if (a.master) return a.master;
    if constexpr (kRealIsFloat32) return reinterpret_cast<float*>(a.param);
    throw std::logic_error("adamw_update: a parameter stored in bf16 needs a float32 master, none was given");
}

}  // namespace

void gradient_norm(const GradientNorm<float>& a, Stream& stream) {
    const OpScope scope(stream, "gradient_norm");
    const size_t tiles = cuda::ceil_div(a.n, kNormTileElems);
    if (tiles * sizeof(double) > gradient_norm_scratch_bytes(a.n))
        throw std::logic_error("gradient_norm: the tiles of adamw.cu and the scratch of adamw.cpp differ");
    if (tiles > 0) {
        squares_kernel<<<cuda::grid_size(tiles), kNormThreads, 0, native(stream)>>>(a.scratch, a.grad, a.n);
        CUDA_CHECK(cudaGetLastError());
    }
    control_kernel<<<1, kNormThreads, 0, native(stream)>>>(a.control, a.scratch, tiles, a.max_norm, a.loss_sum, a.beta1,
                                                           a.beta2);
    CUDA_CHECK(cudaGetLastError());
}

void adamw_update(const AdamWUpdate<real>& a, Stream& stream) {
    const OpScope scope(stream, "adamw_update");
    const Update update{.param = a.master ? a.param : nullptr,
                        .master = master_of(a),
                        .grad = a.grad,
                        .exp_avg = a.exp_avg,
                        .exp_avg_sq = a.exp_avg_sq,
                        .settings = a.settings,
                        .control = a.control};
    const bool vectors = cuda::aligned({update.master, a.grad, a.exp_avg, a.exp_avg_sq}, 16) &&
                         cuda::aligned({update.param}, kUpdateVector * sizeof(real));
    cuda::launch_each<kUpdateVector>(update, a.n, vectors, native(stream));
}

}  // namespace slab
