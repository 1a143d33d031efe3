// Layer streaming for a network that is no transformer, with offload/ and kernels/runtime/ alone: the code to copy
// from.
//
// The network is a frozen residual MLP: eight times x + W2 tanh(W1 x + b1) + b2. Trained are a small scale at each
// block and a linear head on top. The frozen blocks stay in host memory and pass through two device slots. The example
// trains the same steps twice, streamed and with every block resident, and fails unless both give the same bits. The
// mathematics is plain host loops on a stream of the CPU backend, so the Makefile builds it there alone. For CUDA these
// would be kernels; the lines about streaming stay as they are. The loops need nothing of the manager: a block sees a
// pointer, valid until end_layer.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <vector>

#include "kernels/runtime/runtime.h"
#include "offload/host_store.h"
#include "offload/layer_offload_manager.h"
#include "offload/slab_sender.h"

using namespace slab;
using namespace slab::offload;

namespace {

constexpr int L = 8;                             // frozen blocks
constexpr size_t B = 16, C = 24, H = 48, O = 4;  // rows, features, hidden units, outputs
constexpr int kSteps = 20;
constexpr float kLearningRate = 0.05f;

// Numbers that depend on nothing but their position.
float noise(uint64_t key) {
    key = (key + 1) * 0x9e3779b97f4a7c15u;
    key = (key ^ key >> 31) * 0xbf58476d1ce4e5b9u;
    return static_cast<float>(key >> 40) / static_cast<float>(1 << 23) - 1.0f;
}

// 1. What a block's frozen tensors are called and how long they are. The table gives the offsets.
SlabLayout block_layout() {
    SlabLayout layout;
    layout.add("w1", H * C * sizeof(float));
    layout.add("b1", H * sizeof(float));
    layout.add("w2", C * H * sizeof(float));
    layout.add("b2", C * sizeof(float));
    return layout;
}

struct Block {
    const float *w1, *b1, *w2, *b2;  // [H, C], [H], [C, H], [C]
    explicit Block(const LayerView& view) : w1(at(view, 0)), b1(at(view, 1)), w2(at(view, 2)), b2(at(view, 3)) {}

  private:
    static const float* at(const LayerView& view, size_t tensor) {
        return reinterpret_cast<const float*>(view.base + view.layout->offset_bytes(tensor));
    }
};

// What a loader would read from a file.
void fill_block(const SlabLayout& layout, int layer, std::byte* dst) {
    uint64_t key = static_cast<uint64_t>(layer) << 32;
    for (const SlabTensor& tensor : layout.tensors())
        for (size_t i = 0; i < tensor.bytes / sizeof(float); ++i) {
            const float value = 0.2f * noise(key++);
            std::memcpy(dst + tensor.offset_bytes + i * sizeof(float), &value, sizeof value);
        }
}

struct Network {
    std::vector<float> scale = std::vector<float>(L * C, 1.0f);  // [L, C] trained
    std::vector<float> head = std::vector<float>(O * C);         // [O, C] trained
    std::vector<float> x = std::vector<float>((L + 1) * B * C);  // [L+1, B, C] input of each block, output of the last
    std::vector<float> hidden = std::vector<float>(L * B * H);   // [L, B, H] tanh(W1 x + b1)
    std::vector<float> branch = std::vector<float>(L * B * C);   // [L, B, C] before the scale
    std::vector<float> dx = std::vector<float>(B * C);           // [B, C] gradient at the present block's output
    float loss = 0;
};

// x[l+1] = x[l] + scale * (W2 tanh(W1 x[l] + b1) + b2)
void block_forward(Network& n, int l, const Block& w) {
    for (size_t b = 0; b < B; ++b) {
        const float* x = &n.x[(static_cast<size_t>(l) * B + b) * C];      // [C]
        float* y = &n.x[(static_cast<size_t>(l + 1) * B + b) * C];        // [C]
        float* hidden = &n.hidden[(static_cast<size_t>(l) * B + b) * H];  // [H]
        float* branch = &n.branch[(static_cast<size_t>(l) * B + b) * C];  // [C]
        for (size_t h = 0; h < H; ++h) {
            float sum = w.b1[h];
            for (size_t c = 0; c < C; ++c) sum += w.w1[h * C + c] * x[c];
            hidden[h] = std::tanh(sum);
        }
        for (size_t c = 0; c < C; ++c) {
            branch[c] = w.b2[c];
            for (size_t h = 0; h < H; ++h) branch[c] += w.w2[c * H + h] * hidden[h];
            y[c] = x[c] + n.scale[static_cast<size_t>(l) * C + c] * branch[c];
        }
    }
}

// dx += W1^T (1 - hidden^2) W2^T (scale * dx), and one step of gradient descent on the scale. The slab is only read.
void block_backward(Network& n, int l, const Block& w) {
    float* scale = &n.scale[static_cast<size_t>(l) * C];  // [C]
    std::vector<float> dscale(C, 0.0f), dhidden(H);
    for (size_t b = 0; b < B; ++b) {
        float* dx = &n.dx[b * C];                                               // [C]
        const float* hidden = &n.hidden[(static_cast<size_t>(l) * B + b) * H];  // [H]
        const float* branch = &n.branch[(static_cast<size_t>(l) * B + b) * C];  // [C]
        for (size_t h = 0; h < H; ++h) {
            dhidden[h] = 0;
            for (size_t c = 0; c < C; ++c) dhidden[h] += w.w2[c * H + h] * scale[c] * dx[c];
            dhidden[h] *= 1 - hidden[h] * hidden[h];
        }
        for (size_t c = 0; c < C; ++c) {
            dscale[c] += branch[c] * dx[c];
            for (size_t h = 0; h < H; ++h) dx[c] += w.w1[h * C + c] * dhidden[h];
        }
    }
    for (size_t c = 0; c < C; ++c) scale[c] -= kLearningRate * dscale[c];
}

// Squared error of head x[L] against fixed targets; dx at the last block's output, and a step on the head.
void head_step(Network& n) {
    std::vector<float> dhead(O * C, 0.0f);
    std::fill(n.dx.begin(), n.dx.end(), 0.0f);
    n.loss = 0;
    for (size_t b = 0; b < B; ++b) {
        const float* x = &n.x[(L * B + b) * C];  // [C]
        for (size_t o = 0; o < O; ++o) {
            float error = -noise(7000 + b * O + o);
            for (size_t c = 0; c < C; ++c) error += n.head[o * C + c] * x[c];
            n.loss += error * error / (B * O);
            const float derror = 2 * error / (B * O);
            for (size_t c = 0; c < C; ++c) {
                n.dx[b * C + c] += derror * n.head[o * C + c];
                dhead[o * C + c] += derror * x[c];
            }
        }
    }
    for (size_t i = 0; i < n.head.size(); ++i) n.head[i] -= kLearningRate * dhead[i];
}

// Trains and returns what was trained, with the loss of each step.
std::vector<float> train(const char* name, const std::vector<int>& resident_layers) {
    Device device;
    Stream compute(device, "compute"), transfer(device, "transfer");

    // 2. What streams, through which ring. The frozen blocks, filled straight into page-locked host memory.
    const std::vector<SlabLayout> layouts(L, block_layout());
    const RingPlan plan(slab_bytes(layouts), {.num_prefetch = 1, .num_slots = 2, .resident_layers = resident_layers});
    const HostStore store(device, layouts, plan,
                          [&](int layer, std::byte* dst) { fill_block(layouts[layer], layer, dst); });
    SlabSender sender(store, device);

    // 3. The manager, and the order in which a step visits the blocks.
    LayerOffloadManager manager(sender, plan, compute, transfer, device);
    manager.attach();
    std::vector<int> visits;
    for (int l = 0; l < L; ++l) visits.push_back(l);
    for (int l = L - 1; l >= 0; --l) visits.push_back(l);

    Network n;
    for (size_t i = 0; i < B * C; ++i) n.x[i] = noise(9000 + i);
    for (size_t i = 0; i < n.head.size(); ++i) n.head[i] = 0.1f * noise(8000 + i);
    std::vector<float> result;
    for (int step = 0; step < kSteps; ++step) {
        // 4. Announce, and put begin_layer / end_layer around every use of a block.
        manager.pre_step(visits);
        for (int l = 0; l < L; ++l) {
            const Block block(manager.begin_layer(l));
            compute.enqueue("block forward", [&n, l, block](ThreadPool&) { block_forward(n, l, block); });
            manager.end_layer(l);
        }
        compute.enqueue("head", [&n](ThreadPool&) { head_step(n); });
        for (int l = L - 1; l >= 0; --l) {
            const Block block(manager.begin_layer(l));
            compute.enqueue("block backward", [&n, l, block](ThreadPool&) { block_backward(n, l, block); });
            manager.end_layer(l);
        }
        manager.post_step();
        compute.synchronize();  // to read the loss
        result.push_back(n.loss);
    }
    const OffloadStats& stats = manager.stats();
    std::printf("%s: %s\n", name, manager.report().c_str());
    std::printf("%s: loss %.6f -> %.6f; %llu slabs (%llu bytes) in, %llu out; device memory for blocks %zu bytes\n",
                name, static_cast<double>(result.front()), static_cast<double>(result.back()),
                static_cast<unsigned long long>(stats.slabs_in), static_cast<unsigned long long>(stats.bytes_in),
                static_cast<unsigned long long>(stats.slabs_out), device.memory().peak_bytes());
    result.insert(result.end(), n.scale.begin(), n.scale.end());
    result.insert(result.end(), n.head.begin(), n.head.end());
    return result;
}

}  // namespace

int main() {
    try {
        const std::vector<float> streamed = train("streamed", {});
        const std::vector<float> resident = train("resident", {0, 1, 2, 3, 4, 5, 6, 7});
        for (size_t i = 0; i < streamed.size(); ++i) {
            if (std::memcmp(&streamed[i], &resident[i], sizeof(float)) == 0) continue;
            std::printf("FAIL: number %zu of %zu is %.9g streamed and %.9g resident\n", i, streamed.size(),
                        static_cast<double>(streamed[i]), static_cast<double>(resident[i]));
            return 1;
        }
        if (!(streamed[kSteps - 1] < streamed[0])) {
            std::printf("FAIL: the loss does not fall\n");
            return 1;
        }
        std::printf("the bits agree: %zu losses and trained numbers\n", streamed.size());
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "example: %s\n", error.what());
        return 1;
    }
}
