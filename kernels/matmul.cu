// Matrix products on the GPU, through cuBLASLt.
//
// The library is column-major: our row-major [rows, N] is its [N, rows], so y = x wᵀ is asked for as yᵀ = w xᵀ. For
// each shape the library's first proposal is taken, untimed and with a workspace of constant size, and kept with the
// stream. So the algorithm, and with it the order of sums, is a function of shapes, strides and alignment, which shapes
// decide too. float32 builds use no TF32.
#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "kernels/cuda_common.cuh"
#include "kernels/matmul.h"

namespace slab {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;  // what cuBLAS itself uses on Hopper
constexpr size_t kBestAlignmentBytes = 256;           // of the start of a buffer
constexpr cudaDataType_t kRealType = kRealIsFloat32 ? CUDA_R_32F : CUDA_R_16BF;

// Column-major: D[m, n] = alpha op(A)[m, k] op(B)[k, n] + beta C[m, n], and bias[m] added to each column.
struct Product {
    void* d;           // of d_type, columns ld_d apart
    const void* a;     // [m, k], or [k, m] if transposed, columns ld_a apart
    const void* b;     // [k, n], or [n, k] if transposed, columns ld_b apart
    const void* c;     // like d; may be d
    const void* bias;  // [m] or null
    size_t m, n, k, ld_a, ld_b, ld_d;
    bool transpose_a, transpose_b;
    cudaDataType_t d_type;
    float alpha, beta;
};

template <auto kDestroy>
struct Destroy {
    template <class Handle>
    void operator()(Handle* handle) const {
        CUBLAS_WARN(kDestroy(handle));
    }
};
using Layout = std::unique_ptr<std::remove_pointer_t<cublasLtMatrixLayout_t>, Destroy<cublasLtMatrixLayoutDestroy>>;
using Description = std::unique_ptr<std::remove_pointer_t<cublasLtMatmulDesc_t>, Destroy<cublasLtMatmulDescDestroy>>;
using Preference =
    std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>, Destroy<cublasLtMatmulPreferenceDestroy>>;

// What the library needs to run one shape; made once.
struct Plan {
    Description description;
    Layout a, b, d;
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace_bytes;
    bool fused_bias;
};

uint32_t alignment_bytes(const void* p) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(p) | kBestAlignmentBytes;
    return static_cast<uint32_t>(address & (~address + 1));  // the lowest bit that is set
}

// Everything that the choice of an algorithm depends on.
using Key = std::array<size_t, 15>;
using Plans = std::map<Key, Plan>;

Key key_of(const Product& p) {
    return {p.m,
            p.n,
            p.k,
            p.ld_a,
            p.ld_b,
            p.ld_d,
            p.transpose_a,
            p.transpose_b,
            static_cast<size_t>(p.d_type),
            p.beta != 0,
            alignment_bytes(p.a),
            alignment_bytes(p.b),
            alignment_bytes(p.c),
            alignment_bytes(p.d),
            p.bias ? alignment_bytes(p.bias) : 0};
}

std::string text_of(const Product& p) {
    return "matmul of m " + std::to_string(p.m) + ", n " + std::to_string(p.n) + ", k " + std::to_string(p.k) +
           ", leading dimensions " + std::to_string(p.ld_a) + ", " + std::to_string(p.ld_b) + ", " +
           std::to_string(p.ld_d);
}

Layout make_layout(cudaDataType_t type, size_t rows, size_t cols, size_t ld) {
    cublasLtMatrixLayout_t layout = nullptr;
    CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&layout, type, rows, cols, static_cast<int64_t>(std::max(ld, rows))));
    return Layout(layout);
}

template <class Value>
void set(const Description& description, cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(description.get(), attribute, &value, sizeof value));
}

template <class Value>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, const Value& value) {
    CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value));
}

// Whether the library has an algorithm; the first it proposes goes into the plan.
bool choose_algorithm(Plan& plan, const Product& p, cublasLtHandle_t blas) {
    cublasLtMatmulPreference_t created = nullptr;
    CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&created));
    const Preference preference(created);
    set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
    // Where a sum is split, its parts are added in float32, not in D's type.
    set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_bytes(p.a));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_bytes(p.b));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_bytes(p.c));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_bytes(p.d));
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(blas, plan.description.get(), plan.a.get(), plan.b.get(), plan.d.get(),
                                       plan.d.get(), preference.get(), 1, &result, &found);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && found == 0)) return false;
    CUBLAS_CHECK(status);
    CUBLAS_CHECK(result.state);
    plan.algorithm = result.algo;
    plan.workspace_bytes = result.workspaceSize;
    return true;
}

Plan make_plan(const Product& p, cublasLtHandle_t blas) {
    Plan plan{};
    cublasLtMatmulDesc_t description = nullptr;
    CUBLAS_CHECK(cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    plan.description.reset(description);
    set(plan.description, CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(plan.description, CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    plan.a = make_layout(kRealType, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.ld_a);
    plan.b = make_layout(kRealType, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.ld_b);
    plan.d = make_layout(p.d_type, p.m, p.n, p.ld_d);
    if (p.bias && alignment_bytes(p.bias) >= 16) {
        set(plan.description, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
        set(plan.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
        plan.fused_bias = choose_algorithm(plan, p, blas);
        if (plan.fused_bias) return plan;
        set(plan.description, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT);
    }
    if (!choose_algorithm(plan, p, blas)) throw DeviceError(text_of(p) + ": cuBLASLt has no algorithm for it");
    return plan;
}

constexpr int kBiasThreads = 256;

// Grid: rows, tiles of columns. For the rare bias that the product cannot add on its way.
__global__ void __launch_bounds__(kBiasThreads)
    add_bias_kernel(real* y /*[rows, N] +=*/, const real* bias /*[N]*/, int N, size_t ld_y) {
    const int n = blockIdx.y * kBiasThreads + threadIdx.x;
    if (n >= N) return;
    real* out = y + blockIdx.x * ld_y + n;
    cuda::store(out, cuda::Values<1>{cuda::as_float(*out) + cuda::as_float(bias[n])});
}

void multiply(const Product& p, Stream& stream) {
    Stream::State& state = stream.state();
    if (!state.blas || state.workspace.bytes() < kWorkspaceBytes)
        throw std::logic_error(
            "stream '" + stream.name() + "' has " + std::to_string(state.workspace.bytes()) +
            " bytes of workspace; matrix products want matmul_workspace_bytes() = " + std::to_string(kWorkspaceBytes));
    if (p.k == 0) throw std::logic_error(text_of(p) + ": sums over nothing");
    if (!state.matmul_plans) state.matmul_plans = std::make_shared<Plans>();
    Plans& plans = *static_cast<Plans*>(state.matmul_plans.get());
    const cudaStream_t native_stream = native(stream);
    const Key key = key_of(p);
    auto at = plans.find(key);
    if (at == plans.end()) at = plans.emplace(key, make_plan(p, state.blas)).first;
    const Plan& plan = at->second;
    if (plan.fused_bias) set(plan.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    CUBLAS_CHECK(cublasLtMatmul(state.blas, plan.description.get(), &p.alpha, p.a, plan.a.get(), p.b, plan.b.get(),
                                &p.beta, p.c, plan.d.get(), p.d, plan.d.get(), &plan.algorithm, state.workspace.data(),
                                plan.workspace_bytes, native_stream));
    if (!p.bias || plan.fused_bias) return;
    const dim3 grid(cuda::grid_size(p.n), static_cast<unsigned>(cuda::ceil_div(p.m, kBiasThreads)));
    add_bias_kernel<<<grid, kBiasThreads, 0, native_stream>>>(static_cast<real*>(p.d), static_cast<const real*>(p.bias),
                                                              static_cast<int>(p.m), p.ld_d);
    CUDA_CHECK(cudaGetLastError());
}

struct BiasGradientTerm {
    const real* dy;  // [rows, N], stride ld_dy
    size_t ld_dy;
    __device__ float operator()(size_t row, int n) const { return cuda::as_float(dy[row * ld_dy + n]); }
};

}  // namespace

size_t matmul_workspace_bytes() {
    return kWorkspaceBytes;
}

size_t matmul_address_bytes(int /*threads*/) {
    return 0;
}

void matmul_forward(const MatmulForward<real>& a, Stream& stream) {
    const OpScope scope(stream, "matmul_forward");
    if (a.rows == 0 || a.N == 0) return;
    const size_t N = a.N, K = a.K;
    multiply({.d = a.y,
              .a = a.w,
              .b = a.x,
              .c = a.add ? a.add : a.y,
              .bias = a.bias,
              .m = N,
              .n = a.rows,
              .k = K,
              .ld_a = K,
              .ld_b = a.ld_x,
              .ld_d = a.ld_y,
              .transpose_a = true,
              .transpose_b = false,
              .d_type = kRealType,
              .alpha = a.alpha,
              .beta = a.add ? 1.0f : 0.0f},
             stream);
}

void matmul_backward_input(const MatmulBackwardInput<real>& a, Stream& stream) {
    const OpScope scope(stream, "matmul_backward_input");
    if (a.rows == 0 || a.K == 0) return;
    const size_t N = a.N, K = a.K;
    multiply({.d = a.dx,
              .a = a.w,
              .b = a.dy,
              .c = a.dx,
              .bias = nullptr,
              .m = K,
              .n = a.rows,
              .k = N,
              .ld_a = K,
              .ld_b = a.ld_dy,
              .ld_d = a.ld_dx,
              .transpose_a = false,
              .transpose_b = false,
              .d_type = kRealType,
              .alpha = a.alpha,
              .beta = a.accumulate ? 1.0f : 0.0f},
             stream);
}

void matmul_backward_weight(const MatmulBackwardWeight<real>& a, Stream& stream) {
    const OpScope scope(stream, "matmul_backward_weight");
    if (a.rows == 0 || a.N == 0 || a.K == 0) return;
    const size_t N = a.N, K = a.K;
    multiply({.d = a.dw,
              .a = a.x,
              .b = a.dy,
              .c = a.dw,
              .bias = nullptr,
              .m = K,
              .n = N,
              .k = a.rows,
              .ld_a = a.ld_x,
              .ld_b = a.ld_dy,
              .ld_d = K,
              .transpose_a = false,
              .transpose_b = true,
              .d_type = CUDA_R_32F,
              .alpha = a.alpha,
              .beta = 1.0f},
             stream);
}

void bias_backward(float* dbias, const real* dy, size_t rows, int N, size_t ld_dy, Stream& stream) {
    const OpScope scope(stream, "bias_backward");
    cuda::add_column_sums(dbias, N, rows, BiasGradientTerm{dy, ld_dy}, native(stream));
}

}  // namespace slab
