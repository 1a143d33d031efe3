// A toy network that goes through the manager. Every visit folds all bytes of its slab into a state in an
// order-dependent way, and updates a small trained vector of the layer. The reference folds the same slabs without any
// manager.
//
// Every slot is poisoned with NaN before each copy. A visit that reads too early, or a slot overwritten too soon, shows
// in the bits. The toy's mathematics are host loops, so this is for the CPU backend.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "offload/host_store.h"
#include "offload/layer_offload_manager.h"
#include "offload/slab_decoder.h"
#include "offload/slab_sender.h"
#include "tests/poisoning_source.h"

namespace slab::offload {

// Slabs of different sizes, of tensors whose sizes leave gaps.
inline std::vector<SlabLayout> toy_layouts(int L) {
    std::vector<SlabLayout> layouts(static_cast<size_t>(L));
    for (int l = 0; l < L; ++l) {
        layouts[static_cast<size_t>(l)].add("w", sizeof(float) * static_cast<size_t>(37 + 61 * (l * 5 % 7)));
        layouts[static_cast<size_t>(l)].add("b", sizeof(float) * static_cast<size_t>(3 + l));
    }
    return layouts;
}

inline uint16_t toy_code(int layer, size_t i) {
    return static_cast<uint16_t>((static_cast<size_t>(layer + 1) * 2654435761u + i * 40503u) % 1000);
}
inline float toy_value(uint16_t code) {
    return static_cast<float>(code) / 997.0f - 0.5f;
}
inline float toy_weight(int layer, size_t i) {
    return toy_value(toy_code(layer, i));
}

inline void fill_toy(const SlabLayout& layout, int layer, std::byte* dst) {
    size_t n = 0;
    for (const SlabTensor& tensor : layout.tensors()) {
        for (size_t i = 0; i < tensor.bytes / sizeof(float); ++i) {
            const float value = toy_weight(layer, n++);
            std::memcpy(dst + tensor.offset_bytes + i * sizeof(float), &value, sizeof value);
        }
    }
}

inline constexpr size_t kState = 8;  // floats

// One visit: every float of the slab goes into the state, and the state into the layer's trained vector.
inline void toy_visit(const std::byte* slab, const SlabLayout& layout, float* state, float* trained) {
    size_t n = 0;
    for (const SlabTensor& tensor : layout.tensors()) {
        const float* w = reinterpret_cast<const float*>(slab + tensor.offset_bytes);
        for (size_t i = 0; i < tensor.bytes / sizeof(float); ++i, ++n) {
            float& s = state[n % kState];
            s = s * 0.75f + w[i] * (1.0f + trained[n % kState]) + state[(n + 1) % kState] * 0.1f;
        }
    }
    for (size_t i = 0; i < kState; ++i) trained[i] = trained[i] * 0.9f + state[i] * 0.01f;
}

inline std::vector<int> pass_order(int L, int lowest_backward = 0) {
    std::vector<int> order;
    for (int l = 0; l < L; ++l) order.push_back(l);
    for (int l = L - 1; l >= lowest_backward; --l) order.push_back(l);
    return order;
}

// State and trained vectors, as bits.
inline std::vector<uint32_t> bits_of(const std::vector<float>& values) {
    std::vector<uint32_t> bits(values.size());
    std::memcpy(bits.data(), values.data(), bits.size() * sizeof(uint32_t));
    return bits;
}

// The result of the visits without a manager, streams or slots.
inline std::vector<uint32_t> reference_bits(int L, const std::vector<int>& visits) {
    const std::vector<SlabLayout> layouts = toy_layouts(L);
    std::vector<float> values(kState * static_cast<size_t>(L + 1), 0.25f);
    for (int layer : visits) {
        const SlabLayout& layout = layouts[static_cast<size_t>(layer)];
        std::vector<std::byte> slab(layout.total_bytes());
        fill_toy(layout, layer, slab.data());
        toy_visit(slab.data(), layout, values.data(), values.data() + kState * static_cast<size_t>(layer + 1));
    }
    return bits_of(values);
}

inline HostStore toy_store(Device& device, const RingPlan& plan, HostStoreOptions options = {}) {
    const std::vector<SlabLayout> layouts = toy_layouts(plan.layers());
    const auto fill = [layouts](int layer, std::byte* dst) { fill_toy(layouts[layer], layer, dst); };
    return HostStore(device, layouts, plan, fill, std::move(options));
}

// The same slabs encoded: 16 bits a weight, which is the whole number that toy_weight computes with.
inline std::vector<SlabLayout> encoded_toy_layouts(int L) {
    std::vector<SlabLayout> layouts(static_cast<size_t>(L));
    const std::vector<SlabLayout> decoded = toy_layouts(L);
    for (size_t l = 0; l < layouts.size(); ++l)
        for (const SlabTensor& tensor : decoded[l].tensors()) layouts[l].add(tensor.name, tensor.bytes / 2);
    return layouts;
}

inline void fill_encoded_toy(const SlabLayout& layout, int layer, std::byte* dst) {
    size_t n = 0;
    for (const SlabTensor& tensor : layout.tensors())
        for (size_t i = 0; i < tensor.bytes / sizeof(uint16_t); ++i) {
            const uint16_t code = toy_code(layer, n++);
            std::memcpy(dst + tensor.offset_bytes + i * sizeof code, &code, sizeof code);
        }
}

inline HostStore encoded_toy_store(Device& device, const RingPlan& plan) {
    const std::vector<SlabLayout> layouts = encoded_toy_layouts(plan.layers());
    const auto fill = [layouts](int layer, std::byte* dst) { fill_encoded_toy(layouts[layer], layer, dst); };
    return HostStore(device, layouts, plan, fill, {});
}

// One decoding. The work slab is poisoned first: a visit that reads it too early, or another layer's, sees that.
inline void toy_decode(const SlabLayout& encoded, const SlabLayout& decoded, const std::byte* from, std::byte* to) {
    std::memset(to, 0xFF, decoded.total_bytes());
    for (size_t t = 0; t < decoded.tensors().size(); ++t)
        for (size_t i = 0; i < decoded.tensors()[t].bytes / sizeof(float); ++i) {
            uint16_t code;
            std::memcpy(&code, from + encoded.offset_bytes(t) + i * sizeof code, sizeof code);
            const float value = toy_value(code);
            std::memcpy(to + decoded.offset_bytes(t) + i * sizeof value, &value, sizeof value);
        }
}

class ToyDecoder final : public SlabDecoder {
  public:
    explicit ToyDecoder(int L) : encoded_(encoded_toy_layouts(L)), decoded_(toy_layouts(L)) {}
    const SlabLayout& layout(int layer) const override { return decoded_[static_cast<size_t>(layer)]; }
    void enqueue(int layer, const std::byte* encoded, std::byte* work, Stream& compute) override {
        ++enqueued;
        if (late_us > 0) delay_async(late_us, compute);
        compute.enqueue("toy decode", [this, layer, encoded, work](ThreadPool&) {
            toy_decode(encoded_[static_cast<size_t>(layer)], layout(layer), encoded, work);
        });
        if (layer == failing_layer) throw std::runtime_error("the decoder fails");
    }
    int enqueued = 0;
    int late_us = 0;  // of delay before each decoding
    int failing_layer = -1;

  private:
    std::vector<SlabLayout> encoded_, decoded_;
};

// A device with two streams, a host store and the toy's own state. encoded: slabs travel encoded, and are decoded.
struct Toy {
    explicit Toy(int L_, const RingOptions& ring = {}, size_t budget_bytes = 0, bool encoded = false)
        : L(L_),
          device({.threads = 1, .budget_bytes = budget_bytes}),
          compute(device, "compute"),
          transfer(device, "transfer"),
          plan(slab_bytes(encoded ? encoded_toy_layouts(L_) : toy_layouts(L_)), ring),
          store(encoded ? encoded_toy_store(device, plan) : toy_store(device, plan)),
          sender(store, device),
          decoder(encoded ? std::make_unique<ToyDecoder>(L_) : nullptr),
          source(sender),
          values(kState * static_cast<size_t>(L_ + 1), 0.25f) {}
    ~Toy() {
        manager.reset();
        compute.synchronize();
    }

    LayerOffloadManager& make(OffloadOptions options = {}) { return make_with(plan, std::move(options)); }
    LayerOffloadManager& make_with(const RingPlan& other, OffloadOptions options = {}) {
        manager = std::make_unique<LayerOffloadManager>(source, other, compute, transfer, device, std::move(options),
                                                        decoder.get());
        return *manager;
    }

    void visit(int layer) {
        const LayerView view = manager->begin_layer(layer);
        float* state = values.data();
        float* trained = values.data() + kState * static_cast<size_t>(layer + 1);
        compute.enqueue("toy",
                        [view, state, trained](ThreadPool&) { toy_visit(view.base, *view.layout, state, trained); });
        manager->end_layer(layer);
        visited.push_back(layer);
    }
    void visit_all(const std::vector<int>& layers) {
        for (int layer : layers) visit(layer);
    }
    void step(const std::vector<int>& order) {
        manager->pre_step(order);
        visit_all(order);
        manager->post_step();
    }

    std::vector<uint32_t> bits() {
        compute.synchronize();
        return bits_of(values);
    }
    bool right() { return bits() == reference_bits(L, visited); }

    int L;
    Device device;
    Stream compute, transfer;
    RingPlan plan;
    HostStore store;
    SlabSender sender;
    std::unique_ptr<ToyDecoder> decoder;  // null: slabs are as the visits read them
    PoisoningSource source;
    std::vector<float> values;  // [1 + L][kState] state, then each layer's trained vector; compute stream only
    std::vector<int> visited;
    std::unique_ptr<LayerOffloadManager> manager;
};

inline std::vector<int> layers_of(unsigned set) {
    std::vector<int> layers;
    for (int l = 0; set >> l != 0; ++l)
        if ((set >> l & 1u) == 1u) layers.push_back(l);
    return layers;
}

inline size_t bytes_of(const Toy& toy, const std::vector<int>& layers) {
    size_t bytes = 0;
    for (int layer : layers) bytes += toy.store.layout(layer).total_bytes();
    return bytes;
}

// Holds a stream, or the caller, until it is opened.
class Gate {
  public:
    void open() { open_.store(true); }
    void pass() const {
        while (!open_.load()) std::this_thread::yield();
    }
    void hold(Stream& stream) const {
        stream.host_function("gate", [this] { pass(); });
    }

  private:
    std::atomic<bool> open_{false};
};

// Delays of 0 to 5 ms, most of them none, in one stream or in both.
inline std::function<void(Stream&)> random_delays(unsigned seed, const Stream* only = nullptr) {
    auto random = std::make_shared<std::mt19937>(seed);
    return [random, only](Stream& stream) {
        if ((only == nullptr || only == &stream) && (*random)() % 4 == 0)
            delay_async(static_cast<int>((*random)() % 5000), stream);
    };
}

}  // namespace slab::offload
