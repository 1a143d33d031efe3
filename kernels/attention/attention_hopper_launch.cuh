// Launches Hopper's attention kernels: decides whether they can be used, and describes the tensors to the bulk copy
// engine.
//
// They need a card of compute capability 9.0, a build for sm_90a, head size 64 or 128, and addresses and strides that
// are multiples of 16 bytes. All of that follows from shapes, flags and the card, so the choice never varies.
#pragma once

#include <cudaTypedefs.h>

#include "kernels/attention/attention_hopper_backward.cuh"

namespace slab::attn::hopper {

// Whether this card has code for the kernel. Other architectures get an empty one for 32 threads.
template <class Kernel>
cudaError_t look_for(Kernel kernel, bool* built) {
    cudaFuncAttributes attributes;
    const cudaError_t error = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
    *built = error == cudaSuccess && attributes.maxThreadsPerBlock >= kBlockThreads;
    return error;  // an error is no reason to take other kernels: they have other bits
}

// Describes [B, T, heads, HD] with rows ld elements apart, to be copied in boxes of box_rows tokens x 64 columns.
inline cudaError_t describe(CUtensorMap* map, const bf16* data, size_t ld, int heads, int box_rows, int B, int T_len,
                            int HD) {
    static const auto encode = [] {
        void* function = nullptr;
        cudaDriverEntryPointQueryResult found;
        constexpr const char* kName = "cuTensorMapEncodeTiled";
#if CUDART_VERSION >= 12050
        const cudaError_t error = cudaGetDriverEntryPointByVersion(kName, &function, 12000, cudaEnableDefault, &found);
#else
        const cudaError_t error = cudaGetDriverEntryPoint(kName, &function, cudaEnableDefault, &found);
#endif
        if (error != cudaSuccess) function = nullptr;
        return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
    }();
    if (!encode) return cudaErrorNotSupported;
    const cuuint64_t sizes[4] = {static_cast<cuuint64_t>(HD), static_cast<cuuint64_t>(heads),
                                 static_cast<cuuint64_t>(T_len), static_cast<cuuint64_t>(B)};
    const cuuint64_t strides_bytes[3] = {static_cast<cuuint64_t>(HD) * 2, ld * 2,
                                         static_cast<cuuint64_t>(T_len) * ld * 2};
    const cuuint32_t box[4] = {64, 1, static_cast<cuuint32_t>(box_rows), 1}, element_strides[4] = {1, 1, 1, 1};
    const CUresult result =
        encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<bf16*>(data), sizes, strides_bytes, box,
               element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

template <class Arguments>
cudaError_t launch(void (*kernel)(Arguments), const Arguments& arguments, int shared_bytes, cudaStream_t stream) {
    const cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (error != cudaSuccess) return error;
    const Schedule& s = arguments.schedule;
    const unsigned blocks = static_cast<unsigned>(s.tiles) * static_cast<unsigned>(s.heads);
    kernel<<<blocks, kBlockThreads, shared_bytes, stream>>>(arguments);
    return cudaGetLastError();
}

template <class Tile>
cudaError_t launch_forward(const AttentionForward<bf16>& a, const Schedule& schedule, cudaStream_t stream) {
    ForwardArguments p;
    p.a = a;
    p.schedule = schedule;
    cudaError_t error = describe(&p.q, a.q, a.ld_q, a.NH, Tile::kBM, a.B, a.T_len, a.HD);
    if (error == cudaSuccess) error = describe(&p.k, a.k, a.ld_k, a.NKV, Tile::kBN, a.B, a.T_len, a.HD);
    if (error == cudaSuccess) error = describe(&p.v, a.v, a.ld_v, a.NKV, Tile::kBN, a.B, a.T_len, a.HD);
    return error == cudaSuccess ? launch(forward_kernel<Tile>, p, Tile::kSharedBytes, stream) : error;
}

template <class Tile>
cudaError_t launch_backward(void (*kernel)(BackwardArguments), const AttentionBackward<bf16>& a,
                            const Schedule& schedule, cudaStream_t stream) {
    BackwardArguments p;
    p.a = a;
    p.schedule = schedule;
    const size_t ld_out = static_cast<size_t>(a.NH) * a.HD;
    cudaError_t error = describe(&p.q, a.q, a.ld_q, a.NH, Tile::kBM, a.B, a.T_len, a.HD);
    if (error == cudaSuccess) error = describe(&p.dout, a.dout, ld_out, a.NH, Tile::kBM, a.B, a.T_len, a.HD);
    if (error == cudaSuccess) error = describe(&p.k, a.k, a.ld_k, a.NKV, Tile::kBN, a.B, a.T_len, a.HD);
    if (error == cudaSuccess) error = describe(&p.v, a.v, a.ld_v, a.NKV, Tile::kBN, a.B, a.T_len, a.HD);
    return error == cudaSuccess ? launch(kernel, p, Tile::kSharedBytes, stream) : error;
}

}  // namespace slab::attn::hopper
