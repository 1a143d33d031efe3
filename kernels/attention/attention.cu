// Attention on the GPU: checks the arguments and hands them to the kernels of this build's number type.
//
// bf16: attention_forward.cuh, attention_backward.cuh, on Hopper attention_hopper*.cuh. float32: attention_fp32.cuh.
// None needs a workspace.
#include <stdexcept>
#include <string>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_launch.cuh"
#include "kernels/runtime/runtime_cuda.h"

namespace slab {
namespace {

template <class Args>
void check(const Args& a) {
    const bool good = a.B > 0 && a.T_len > 0 && a.HD > 0 && a.HD <= kMaxAttentionHeadSize && a.NKV > 0 && a.NH > 0 &&
                      a.NH % a.NKV == 0 && a.scale > 0;
    if (!good)
        throw std::logic_error(
            "attention: B " + std::to_string(a.B) + ", T " + std::to_string(a.T_len) + ", NH " + std::to_string(a.NH) +
            ", NKV " + std::to_string(a.NKV) + ", HD " + std::to_string(a.HD) + ", scale " + std::to_string(a.scale) +
            "; wanted: all positive, HD at most " + std::to_string(kMaxAttentionHeadSize) + ", NH a multiple of NKV");
}

}  // namespace

size_t attention_backward_workspace_bytes(int, int, int, int, int) {
    return 0;
}

void attention_forward(const AttentionForward<real>& a, Stream& stream) {
    const OpScope scope(stream, "attention_forward");
    check(a);
    CUDA_CHECK(attn::forward(a, native(stream)));
}

void attention_backward(const AttentionBackward<real>& a, Stream& stream) {
    const OpScope scope(stream, "attention_backward");
    check(a);
    CUDA_CHECK(attn::backward(a, native(stream)));
}

}  // namespace slab
