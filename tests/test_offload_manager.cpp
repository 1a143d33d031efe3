// The central promise of the plugin: streamed gives the bits of resident, whatever the mix and the timing.
//
// A toy network runs through the manager: every visit folds all bytes of its slab into a state in an order-dependent
// way, and updates a small trained vector of the layer. The reference folds the same slabs without any manager. Every
// slot is poisoned with NaN before each copy, so a visit that reads too early, or a slot overwritten too soon, shows in
// the bits. The toy's mathematics are host loops, so this is for the CPU backend; test_offload_copies.cpp is for both.
#if !defined(SLABSTREAM_CUDA)
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "offload/host_slabs.h"
#include "offload/layer_offload_manager.h"
#include "offload/stream_schedule.h"
#include "tests/temporary_files.h"

using namespace slab;
using namespace slab::offload;
using slab::test::content;
using slab::test::FreshDirectory;
using slab::test::has;

namespace {

using Kind = LayerOffloadManager::TraceBox::Kind;

// Slabs of different sizes, of tensors whose sizes leave gaps.
std::vector<SlabLayout> toy_layouts(int L) {
    std::vector<SlabLayout> layouts(static_cast<size_t>(L));
    for (int l = 0; l < L; ++l) {
        layouts[static_cast<size_t>(l)].add("w", sizeof(float) * static_cast<size_t>(37 + 61 * (l * 5 % 7)));
        layouts[static_cast<size_t>(l)].add("b", sizeof(float) * static_cast<size_t>(3 + l));
    }
    return layouts;
}

float toy_weight(int layer, size_t i) {
    return static_cast<float>((static_cast<size_t>(layer + 1) * 2654435761u + i * 40503u) % 1000) / 997.0f - 0.5f;
}

void fill_toy(const SlabLayout& layout, int layer, std::byte* dst) {
    size_t n = 0;
    for (const SlabTensor& tensor : layout.tensors()) {
        for (size_t i = 0; i < tensor.bytes / sizeof(float); ++i) {
            const float value = toy_weight(layer, n++);
            std::memcpy(dst + tensor.offset_bytes + i * sizeof(float), &value, sizeof value);
        }
    }
}

// Spoils each slot before the copy, and fails on demand.
class PoisoningSource final : public SlabSource {
  public:
    explicit PoisoningSource(SlabSource& inner) : inner_(inner) {}
    int layers() const override { return inner_.layers(); }
    const SlabLayout& layout(int layer) const override { return inner_.layout(layer); }
    void enqueue(int layer, std::byte* dst, Stream& transfer) override {
        ++enqueued;
        fill_async(dst, 0xFF, layout(layer).total_bytes(), transfer);
        if (layer == failing_layer) throw std::runtime_error("the source fails");
        inner_.enqueue(layer, dst, transfer);
    }
    int failing_layer = -1;
    int enqueued = 0;

  private:
    SlabSource& inner_;
};

// What is printed on standard error while it lives.
class CapturedErrors {
  public:
    CapturedErrors() {
        std::fflush(stderr);
        const int file = open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
        dup2(file, STDERR_FILENO);
        close(file);
    }
    ~CapturedErrors() {
        dup2(before_, STDERR_FILENO);
        close(before_);
    }
    std::string text() const { return content(path_); }

  private:
    FreshDirectory directory_;
    std::filesystem::path path_ = directory_.path / "stderr";
    int before_ = dup(STDERR_FILENO);
};

constexpr size_t kState = 8;  // floats

// One visit: every float of the slab goes into the state, and the state into the layer's trained vector.
void toy_visit(const std::byte* slab, const SlabLayout& layout, float* state, float* trained) {
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

std::vector<int> pass_order(int L, int lowest_backward = 0) {
    std::vector<int> order;
    for (int l = 0; l < L; ++l) order.push_back(l);
    for (int l = L - 1; l >= lowest_backward; --l) order.push_back(l);
    return order;
}

// State and trained vectors, as bits.
std::vector<uint32_t> bits_of(const std::vector<float>& values) {
    std::vector<uint32_t> bits(values.size());
    std::memcpy(bits.data(), values.data(), bits.size() * sizeof(uint32_t));
    return bits;
}

// What the visits give without a manager, streams or slots.
std::vector<uint32_t> reference_bits(int L, const std::vector<int>& visits) {
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

// A device with two streams, host slabs and the toy's own state.
struct Toy {
    explicit Toy(int L_, const std::vector<int>& resident = {}, size_t budget_bytes = 0)
        : L(L_),
          device({.threads = 1, .budget_bytes = budget_bytes}),
          compute(device, "compute"),
          transfer(device, "transfer"),
          slabs(device, toy_layouts(L_), resident),
          source(slabs),
          values(kState * static_cast<size_t>(L_ + 1), 0.25f) {
        slabs.load([this](int layer, std::byte* dst) { fill_toy(slabs.layout(layer), layer, dst); });
    }
    ~Toy() {
        manager.reset();
        compute.synchronize();
    }

    LayerOffloadManager& make(OffloadOptions options) {
        manager = std::make_unique<LayerOffloadManager>(source, std::move(options), compute, transfer, device);
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
    HostSlabs slabs;
    PoisoningSource source;
    std::vector<float> values;  // [1 + L][kState] state, then each layer's trained vector; compute stream only
    std::vector<int> visited;
    std::unique_ptr<LayerOffloadManager> manager;
};

std::vector<int> layers_of(unsigned set) {
    std::vector<int> layers;
    for (int l = 0; set >> l != 0; ++l)
        if ((set >> l & 1u) == 1u) layers.push_back(l);
    return layers;
}

size_t bytes_of(const Toy& toy, const std::vector<int>& layers) {
    size_t bytes = 0;
    for (int layer : layers) bytes += toy.slabs.layout(layer).total_bytes();
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
std::function<void(Stream&)> random_delays(unsigned seed, const Stream* only = nullptr) {
    auto random = std::make_shared<std::mt19937>(seed);
    return [random, only](Stream& stream) {
        if ((only == nullptr || only == &stream) && (*random)() % 4 == 0)
            delay_async(static_cast<int>((*random)() % 5000), stream);
    };
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("offload: every mix of layers, slots, prefetch and residents gives the resident run's bits") {
        for (int L = 1; L <= 6; ++L) {
            const std::vector<int> order = pass_order(L);
            for (int R = 2; R <= std::max(2, L); ++R) {
                for (int P = 1; P <= R - 1; ++P) {
                    for (unsigned residents = 0; residents < 1u << L; ++residents) {
                        INFO("L=" << L << " R=" << R << " P=" << P << " residents=" << residents);
                        const std::vector<int> resident = layers_of(residents);
                        Toy toy(L, resident);
                        LayerOffloadManager& m =
                            toy.make({.num_prefetch = P, .num_slots = R, .resident_layers = resident});
                        m.attach();
                        const size_t attached_bytes = toy.device.memory().used_bytes();
                        const uint64_t bytes_before = toy.device.traffic().host_to_device_bytes;
                        for (int step = 0; step < 3; ++step) toy.step(order);
                        REQUIRE(toy.right());

                        const int N = L - static_cast<int>(resident.size()), slots = std::min(R, N);
                        const OffloadStats& stats = m.stats();
                        REQUIRE(stats.slabs_in == static_cast<uint64_t>(N == 0 ? 0 : 2 * N - slots + 4 * (N - slots)));
                        REQUIRE(stats.bytes_in == toy.device.traffic().host_to_device_bytes - bytes_before);
                        REQUIRE(stats.slabs_out == 0);
                        REQUIRE(stats.bytes_out == 0);
                        REQUIRE(toy.device.traffic().device_to_host_bytes == 0);
                        REQUIRE(stats.hits == static_cast<uint64_t>(6 * N));
                        REQUIRE(stats.misses == 0);
                        REQUIRE(stats.peak_slots == slots);
                        REQUIRE(stats.untimed == 0);

                        size_t largest = 0;
                        for (int l = 0; l < L; ++l)
                            if ((residents >> l & 1u) == 0u)
                                largest = std::max(largest, toy.slabs.layout(l).total_bytes());
                        const MemoryAccount& memory = toy.device.memory();
                        REQUIRE(m.ring_bytes() == static_cast<size_t>(slots) * largest);
                        REQUIRE(m.resident_bytes() == bytes_of(toy, resident));
                        REQUIRE(memory.used_bytes(MemoryCategory::ring) == m.ring_bytes());
                        REQUIRE(memory.used_bytes(MemoryCategory::weights_resident) == m.resident_bytes());
                        // Nothing was allocated after attach.
                        REQUIRE(memory.used_bytes() == attached_bytes);
                        REQUIRE(memory.peak_bytes() == attached_bytes);
                    }
                }
            }
        }
    }

    TEST_CASE("offload: random delays in either stream change no bit") {
        std::mt19937 random(11);
        for (unsigned trial = 0; trial < 24; ++trial) {
            const int L = 3 + static_cast<int>(random() % 4), R = 2 + static_cast<int>(random() % 2);
            const int P = 1 + static_cast<int>(random() % static_cast<unsigned>(R - 1));
            const std::vector<int> resident =
                layers_of(trial % 2 == 0 ? 0u : 1u << (random() % static_cast<unsigned>(L)));
            Toy toy(L, resident);
            const Stream* only = trial % 3 == 0 ? &toy.compute : trial % 3 == 1 ? &toy.transfer : nullptr;
            toy.make({.num_prefetch = P,
                      .num_slots = R,
                      .resident_layers = resident,
                      .disturb = random_delays(trial, only)});
            toy.manager->attach();
            INFO("trial=" << trial << " L=" << L << " R=" << R << " P=" << P);
            for (int step = 0; step < 2; ++step) toy.step(pass_order(L));
            CHECK(toy.right());
        }
    }

    TEST_CASE("offload: late copies are waited for, and late readers") {
        // Every copy late, then every visit late: each of the two waits alone is what keeps the bits.
        for (const bool late_copies : {true, false}) {
            Toy toy(5);
            const Stream* late = late_copies ? &toy.transfer : &toy.compute;
            toy.make({.disturb = [late](Stream& stream) {
                if (&stream == late) delay_async(1500, stream);
            }});
            toy.manager->attach();
            INFO("late " << late->name());
            for (int step = 0; step < 2; ++step) toy.step(pass_order(5));
            CHECK(toy.right());
        }
    }

    TEST_CASE("offload: partial freezing, evaluation and sampling between steps leave the bits of training alone") {
        const int L = 5;
        for (const int K : {1, 3, 5}) {
            std::vector<int> trained_in_full;
            for (int l = K; l < L; ++l) trained_in_full.push_back(l);
            Toy toy(L, trained_in_full);
            toy.make({.num_prefetch = 2,
                      .num_slots = 3,
                      .resident_layers = trained_in_full,
                      .disturb = random_delays(static_cast<unsigned>(K))});
            toy.manager->attach();
            const std::vector<int> training = pass_order(L, K < L ? K : 0);
            std::vector<int> forward(training.begin(), training.begin() + L);
            toy.step(training);
            toy.step(forward);               // evaluation
            toy.manager->pre_step(forward);  // sampling: the order again and again, left in the middle
            toy.visit_all(forward);
            toy.visit_all({0, 1, 2});
            toy.manager->post_step();
            toy.step(training);
            CHECK(toy.right());
            CHECK(toy.manager->stats().misses == 0);
        }
    }

    TEST_CASE("offload: micro-batches go round the announced order") {
        Toy toy(6);
        LayerOffloadManager& m = toy.make({.num_slots = 3});
        m.attach();
        for (int step = 0; step < 2; ++step) {
            m.pre_step(pass_order(6));
            for (int micro_batch = 0; micro_batch < 3; ++micro_batch) toy.visit_all(pass_order(6));
            m.post_step();
        }
        CHECK(toy.right());
        CHECK(m.stats().slabs_in == 2 * 6 - 3 + 5 * 2 * (6 - 3));
        CHECK(m.stats().misses == 0);
    }

    TEST_CASE("offload: visits that were not announced are served, and counted as misses") {
        std::mt19937 random(5);
        for (unsigned trial = 0; trial < 30; ++trial) {
            const int L = 3 + static_cast<int>(random() % 4), R = 2 + static_cast<int>(random() % 3);
            const int P = 1 + static_cast<int>(random() % static_cast<unsigned>(R - 1));
            Toy toy(L, {1});
            std::function<void(Stream&)> disturb;
            if (trial % 5 == 0) disturb = random_delays(trial);
            LayerOffloadManager& m =
                toy.make({.num_prefetch = P, .num_slots = R, .resident_layers = {1}, .disturb = disturb});
            m.attach();
            INFO("trial=" << trial << " L=" << L << " R=" << R << " P=" << P);
            uint64_t misses = 0;
            const auto stray = [&](int expected) {
                while (random() % 3 == 0) {
                    const int layer = static_cast<int>(random() % static_cast<unsigned>(L));
                    if (layer == expected) continue;
                    toy.visit(layer);
                    misses += layer == 1 ? 0 : 1;
                }
            };
            for (int layer : {2, 0, 1, 2, 0}) {  // no order at all yet
                toy.visit(layer);
                misses += layer == 1 ? 0 : 1;
            }
            uint64_t announced = 0;
            for (int step = 0; step < 2; ++step) {
                m.pre_step(pass_order(L));
                for (int layer : pass_order(L)) {
                    stray(layer);
                    toy.visit(layer);
                    announced += layer == 1 ? 0 : 1;
                }
                m.post_step();
            }
            CHECK(toy.right());
            CHECK(m.stats().misses == misses);
            CHECK(m.stats().hits == announced);
        }
    }

    TEST_CASE("offload: detach and attach in the middle of training keep the bits and the account") {
        const int L = 5;
        Toy toy(L, {3});
        LayerOffloadManager& m = toy.make({.num_slots = 3, .resident_layers = {3}, .disturb = random_delays(99)});
        CHECK(!m.attached());
        m.attach();
        CHECK(m.attached());
        MemoryAccount& memory = toy.device.memory();
        const size_t attached_bytes = memory.used_bytes();
        toy.step(pass_order(L));
        for (int round = 0; round < 2; ++round) {
            m.detach();
            CHECK(!m.attached());
            CHECK(memory.used_bytes(MemoryCategory::ring) == 0);
            CHECK(memory.used_bytes(MemoryCategory::weights_resident) == m.resident_bytes() + m.streamed_bytes());
            const uint64_t traffic_before = toy.device.traffic().host_to_device_bytes;
            const uint64_t slabs_before = m.stats().slabs_in;
            toy.step(pass_order(L));
            toy.visit(2);
            CHECK(m.stats().slabs_in == slabs_before);
            CHECK(toy.device.traffic().host_to_device_bytes == traffic_before);
            m.attach();
            CHECK(memory.used_bytes() == attached_bytes);
            toy.visit(4);  // before any order is announced again
            toy.step(pass_order(L));
            toy.step(pass_order(L));
        }
        CHECK(toy.right());
        CHECK(toy.device.traffic().device_to_host_bytes == 0);
        // In the middle of a step: the rest of its visits are served, resident and then unannounced.
        m.pre_step(pass_order(L));
        toy.visit_all({0, 1, 2});
        m.detach();
        toy.visit_all({3, 4});
        m.attach();
        toy.visit_all({4, 3, 2, 1, 0});
        m.post_step();
        toy.step(pass_order(L));
        CHECK(toy.right());
        // Another manager on the same slabs: the resident layers are asked for again.
        toy.make({.resident_layers = {3}});
        CHECK(memory.used_bytes() == 0);
        toy.manager->attach();
        toy.step(pass_order(L));
        CHECK(toy.right());
    }

    TEST_CASE("offload: a budget too small is refused, before and after, and all goes on") {
        const int L = 4;
        const Toy sizes(L);
        size_t largest = 0, all = bytes_of(sizes, {0, 1, 2, 3});
        for (int l = 0; l < L; ++l) largest = std::max(largest, sizes.slabs.layout(l).total_bytes());
        {
            Toy toy(L, {0}, 2 * largest + bytes_of(sizes, {0}) - 1);
            LayerOffloadManager& m = toy.make({.resident_layers = {0}});
            CHECK_THROWS_AS(m.attach(), OutOfBudget);
            CHECK(!m.attached());
            CHECK(toy.device.memory().peak_bytes() == 0);
            CHECK_THROWS_AS(m.begin_layer(0), std::logic_error);
        }
        {
            Toy toy(L, {}, 2 * largest + all - 1);
            LayerOffloadManager& m = toy.make({});
            m.attach();
            toy.step(pass_order(L));
            const size_t used_bytes = toy.device.memory().used_bytes();
            std::string error;
            try {
                m.detach();
            } catch (const OutOfBudget& refusal) {
                error = refusal.what();
            }
            CHECK(error.find(std::to_string(all) + " bytes") != std::string::npos);
            CHECK(error.find(": 1 bytes are missing") != std::string::npos);
            CHECK(m.attached());
            CHECK(toy.device.memory().used_bytes() == used_bytes);
            CHECK(toy.device.memory().peak_bytes() == used_bytes);
            toy.step(pass_order(L));
            CHECK(m.stats().slabs_in == 2 * 4 - 2 + 2 * (4 - 2));
            CHECK(toy.right());
        }
        {
            Toy toy(L, {}, 2 * largest + all);
            LayerOffloadManager& m = toy.make({});
            m.attach();
            toy.step(pass_order(L));
            m.detach();
            toy.step(pass_order(L));
            const DeviceBuffer other(toy.device, 2 * largest, MemoryCategory::activations, "someone else's");
            CHECK_THROWS_AS(m.attach(), OutOfBudget);  // no room for the ring: stays as it is
            CHECK(!m.attached());
            toy.step(pass_order(L));
            CHECK(toy.right());
        }
    }

    TEST_CASE("offload: trace boxes say what happened, in an order that the protocol allows") {
        const int L = 5;
        Toy toy(L, {2});
        LayerOffloadManager& m = toy.make({.resident_layers = {2}, .trace = true, .disturb = random_delays(3)});
        m.attach();
        for (int step = 0; step < 3; ++step) {
            m.set_trace_step(step + 7);
            toy.step(pass_order(L));
        }
        std::vector<LayerOffloadManager::TraceBox> boxes = m.trace(), copies, visits, waits;
        for (const auto& box : boxes) {
            CHECK(box.end_ms >= box.start_ms);
            (box.kind == Kind::copy ? copies : box.kind == Kind::visit ? visits : waits).push_back(box);
        }
        const OffloadStats& stats = m.stats();
        CHECK(copies.size() == stats.slabs_in);
        REQUIRE(visits.size() == toy.visited.size());
        CHECK(waits.size() == stats.hits);
        size_t copied_bytes = 0;
        for (size_t i = 0; i < copies.size(); ++i) {
            copied_bytes += copies[i].bytes;
            CHECK(copies[i].bytes == toy.slabs.layout(copies[i].layer).total_bytes());
            if (i > 0) CHECK(copies[i].start_ms >= copies[i - 1].end_ms - 1e-3);
        }
        CHECK(copied_bytes == stats.bytes_in);
        // The n-th load of a layer ends before the visits that read it begin.
        for (size_t v = 0; v < visits.size(); ++v) {
            CHECK(visits[v].layer == toy.visited[v]);
            CHECK(visits[v].step == static_cast<int64_t>(7 + v / (2 * L)));
            if (v > 0) CHECK(visits[v].start_ms >= visits[v - 1].end_ms - 1e-3);
            if (visits[v].layer == 2) continue;
            const bool arrived = std::any_of(copies.begin(), copies.end(), [&](const auto& copy) {
                return copy.layer == visits[v].layer && copy.end_ms <= visits[v].start_ms + 1e-3;
            });
            CHECK(arrived);
            for (const auto& copy : copies)  // no copy of a layer runs while the layer is visited
                if (copy.layer == visits[v].layer)
                    CHECK((copy.end_ms <= visits[v].start_ms + 1e-3 || copy.start_ms >= visits[v].end_ms - 1e-3));
        }
        double wait_ms = 0, stall_ms = 0;
        for (const auto& wait : waits) wait_ms += wait.end_ms - wait.start_ms;
        for (double ms : stats.stall_ms) stall_ms += ms;
        CHECK(stats.wait_ms == doctest::Approx(wait_ms).epsilon(1e-3));
        CHECK(stats.wait_ms == doctest::Approx(stall_ms));
        CHECK(stats.stall_ms[2] == 0);
        CHECK(stats.untimed == 0);

        m.set_trace(false);
        toy.step(pass_order(L));
        CHECK(m.trace().size() == boxes.size());
        m.set_trace(true);
        CHECK(m.trace().empty());
        toy.step(pass_order(L));
        CHECK(m.trace().size() == 2 * L + 2 * 4 + 2 * (4 - 2));
        CHECK(toy.right());
    }

    TEST_CASE("offload: waiting is measured when the copies are late") {
        Gate copies, compute_came;
        Toy toy(4);
        LayerOffloadManager& m = toy.make({.disturb = [&](Stream& stream) {
            if (&stream == &toy.transfer) copies.hold(stream);
        }});
        m.attach();
        toy.compute.host_function("came", [&compute_came] { compute_came.open(); });
        toy.step(pass_order(4));
        compute_came.pass();
        std::this_thread::sleep_for(std::chrono::milliseconds(40));
        copies.open();
        toy.compute.synchronize();
        CHECK(m.stats().wait_ms > 1.0);
        CHECK(m.stats().stall_ms[0] > 1.0);
        CHECK(toy.right());
        m.reset_stats();
        CHECK(m.stats().wait_ms == 0);
        CHECK(m.stats().stall_ms == std::vector<double>(4, 0.0));
        CHECK(m.stats().slabs_in == 0);
    }

    TEST_CASE("offload: a host far ahead leaves times out rather than wait or allocate") {
        Gate work;
        Toy toy(3);
        LayerOffloadManager& m = toy.make({});
        m.attach();
        work.hold(toy.compute);
        m.pre_step(pass_order(3));
        for (int round = 0; round < 250; ++round) toy.visit_all(pass_order(3));
        m.post_step();
        CHECK(m.stats().untimed == 1500 - 1024);
        work.open();
        CHECK(toy.right());
        toy.step(pass_order(3));
        CHECK(m.stats().untimed == 1500 - 1024);
        CHECK(toy.right());
    }

    TEST_CASE("offload: layers without a slab, and nothing to stream at all") {
        Device device({.threads = 1});
        Stream compute(device, "compute"), transfer(device, "transfer");
        std::vector<SlabLayout> layouts = toy_layouts(3);
        layouts[1] = SlabLayout{};
        HostSlabs slabs(device, layouts, {});
        slabs.load([&](int layer, std::byte* dst) { fill_toy(slabs.layout(layer), layer, dst); });
        {
            LayerOffloadManager m(slabs, {}, compute, transfer, device);
            CHECK(m.streamed_layers() == 2);
            m.attach();
            m.pre_step(pass_order(3));
            for (int layer : pass_order(3)) {
                const LayerView view = m.begin_layer(layer);
                CHECK((view.base == nullptr) == (layer == 1));
                CHECK(view.layout == &slabs.layout(layer));
                m.end_layer(layer);
            }
            m.post_step();
            CHECK(m.stats().hits == 4);
            CHECK(m.stats().slabs_in == 2);
        }
        LayerOffloadManager m(slabs, {.resident_layers = {0, 1, 2}}, compute, transfer, device);
        CHECK(m.streamed_layers() == 0);
        CHECK(m.slots() == 0);
        CHECK(m.ring_bytes() == 0);
        CHECK(m.report().rfind("inactive", 0) == 0);
        m.attach();
        m.pre_step(pass_order(3));
        for (int layer : pass_order(3)) {
            CHECK((m.begin_layer(layer).base == nullptr) == (layer == 1));
            m.end_layer(layer);
        }
        m.post_step();
        CHECK(m.stats().slabs_in == 0);
        m.detach();
        m.attach();
    }

    TEST_CASE("offload: the report says what is streamed and what is spared") {
        Toy toy(6, {0});
        const LayerOffloadManager& m = toy.make({.num_slots = 3, .resident_layers = {0}});
        CHECK(m.report().find("streams 5 of 6 layers through 3 slots") != std::string::npos);
        CHECK(m.report().find(" of device memory") != std::string::npos);
        const LayerOffloadManager& wide = toy.make({.num_slots = 9, .resident_layers = {0}});
        CHECK(wide.slots() == 5);
        CHECK(wide.report().find("holds every streamed layer") != std::string::npos);
        CHECK(wide.report().find("9 slots were asked for") != std::string::npos);
    }

    TEST_CASE("offload: options that do not fit are the user's mistake, calls out of turn the programmer's") {
        Toy toy(3);
        CHECK_THROWS_AS(toy.make({.num_prefetch = 0}), std::runtime_error);
        CHECK_THROWS_AS(toy.make({.num_prefetch = 2, .num_slots = 2}), std::runtime_error);
        CHECK_THROWS_AS(toy.make({.resident_layers = {3}}), std::runtime_error);
        CHECK_THROWS_AS(toy.make({.resident_layers = {-1}}), std::runtime_error);
        LayerOffloadManager& m = toy.make({});
        CHECK_THROWS_AS(m.pre_step({0}), std::logic_error);
        CHECK_THROWS_AS(m.begin_layer(0), std::logic_error);
        CHECK_THROWS_AS(m.detach(), std::logic_error);
        m.attach();
        for (int state = 0; state < 2; ++state) {  // attached, then detached
            CHECK_THROWS_AS(m.pre_step({0, 3}), std::logic_error);
            CHECK_THROWS_AS(m.begin_layer(3), std::logic_error);
            CHECK_THROWS_AS(m.end_layer(0), std::logic_error);
            CHECK_THROWS_AS(m.end_layer(-1), std::logic_error);
            m.begin_layer(1);
            CHECK_THROWS_WITH_AS(m.begin_layer(2), "begin_layer: layer 2 asked for while layer 1 is open",
                                 std::logic_error);
            CHECK_THROWS_WITH_AS(m.end_layer(2), "end_layer: layer 2 is not open, layer 1 is", std::logic_error);
            CHECK_THROWS_AS(m.pre_step({0}), std::logic_error);
            CHECK_THROWS_AS(m.post_step(), std::logic_error);
            CHECK_THROWS_AS(m.attach(), std::logic_error);
            CHECK_THROWS_AS(m.detach(), std::logic_error);
            CHECK_THROWS_AS(m.set_trace(true), std::logic_error);
            m.end_layer(1);
            if (state == 0) m.detach();
        }
        m.attach();
        CHECK_THROWS_AS(m.attach(), std::logic_error);
        toy.step(pass_order(3));
        CHECK(toy.right());
    }

    TEST_CASE("offload: a source that fails leaves a manager that serves the next visits") {
        Toy toy(4);
        LayerOffloadManager& m = toy.make({});
        m.attach();
        toy.source.failing_layer = 2;
        m.pre_step(pass_order(4));
        toy.visit(0);
        CHECK_THROWS_WITH_AS(m.begin_layer(1), "the source fails", std::runtime_error);  // while prefetching 2
        toy.source.failing_layer = -1;
        toy.visit_all({1, 2, 3, 3, 2, 1, 0});
        m.post_step();
        toy.step(pass_order(4));
        CHECK(toy.right());
        m.detach();
        toy.source.failing_layer = 1;
        m.attach();
        CHECK_THROWS_AS(m.detach(), std::runtime_error);
        CHECK(m.attached());
        toy.source.failing_layer = -1;
        toy.step(pass_order(4));
        CHECK(toy.right());
    }

    TEST_CASE("offload: bytes that differ from the schedule are an error") {
        // A source that leaves the end of one slab out.
        struct Forgetful final : SlabSource {
            std::vector<SlabLayout> layouts = toy_layouts(4);
            std::vector<std::byte> bytes = std::vector<std::byte>(1 << 20);
            int forgetting = -1;
            int layers() const override { return 4; }
            const SlabLayout& layout(int layer) const override { return layouts[static_cast<size_t>(layer)]; }
            void enqueue(int layer, std::byte* dst, Stream& transfer) override {
                const size_t all = layout(layer).total_bytes();
                copy_async(dst, bytes.data(), layer == forgetting ? all - 4 : all, CopyKind::host_to_device, transfer);
            }
        } source;
        REQUIRE(source.layout(3).total_bytes() <= source.bytes.size());
        Device device({.threads = 1});
        Stream compute(device, "compute"), transfer(device, "transfer");
        LayerOffloadManager m(source, {}, compute, transfer, device);
        m.attach();
        const auto step = [&] {
            m.pre_step(pass_order(4));
            for (int layer : pass_order(4)) {
                m.begin_layer(layer);
                m.end_layer(layer);
            }
            m.post_step();
        };
        CHECK_NOTHROW(step());
        source.forgetting = 2;
        CHECK_THROWS_AS(step(), std::logic_error);
        transfer.synchronize();
    }

    TEST_CASE("offload: what fails on the transfer stream reaches whoever waits for the compute stream") {
        // A source that needs host work, as from a disk, and fails in it: compute must not go on with what the slot
        // held.
        struct Reading final : SlabSource {
            std::vector<SlabLayout> layouts = toy_layouts(4);
            std::vector<std::byte> bytes = std::vector<std::byte>(1 << 20);
            int failing = -1;
            int layers() const override { return 4; }
            const SlabLayout& layout(int layer) const override { return layouts[static_cast<size_t>(layer)]; }
            void enqueue(int layer, std::byte* dst, Stream& transfer) override {
                transfer.host_function("read of a slab", [fails = layer == failing] {
                    if (fails) throw std::runtime_error("the disk is gone");
                });
                copy_async(dst, bytes.data(), layout(layer).total_bytes(), CopyKind::host_to_device, transfer);
            }
        } source;
        Device device({.threads = 1});
        Stream compute(device, "compute"), transfer(device, "transfer");
        const CapturedErrors last_words;  // of the manager, which cannot know that all was reported below
        LayerOffloadManager m(source, {}, compute, transfer, device);
        m.attach();
        source.failing = 2;
        m.pre_step(pass_order(4));
        std::atomic<int> visited{0};
        for (int layer : pass_order(4)) {
            m.begin_layer(layer);
            compute.host_function("visit", [&visited] { ++visited; });
            m.end_layer(layer);
        }
        m.post_step();
        Event done(device);
        done.record(compute);
        CHECK_THROWS_WITH_AS(done.synchronize(), doctest::Contains("the disk is gone"), std::runtime_error);
        CHECK_THROWS_WITH_AS(compute.synchronize(), doctest::Contains("read of a slab"), std::runtime_error);
        CHECK(visited == 2);  // layers 0 and 1; nothing from the slot that the failed read was to fill
        CHECK_THROWS_AS(transfer.synchronize(), std::runtime_error);
    }

    TEST_CASE("offload: an error that nobody was told of is printed at the manager's end, another one is not") {
        for (const bool reported : {false, true}) {
            CAPTURE(reported);
            const CapturedErrors said;
            {
                Toy toy(4);
                Stream compute(toy.device, "compute"), transfer(toy.device, "transfer");
                try {
                    LayerOffloadManager m(toy.source, {}, compute, transfer, toy.device);
                    m.attach();
                    compute.host_function("visit", [] { throw std::runtime_error("a wrong number"); });
                    Event done(toy.device);
                    done.record(compute);
                    if (reported) done.synchronize();
                } catch (const std::runtime_error& error) {
                    CHECK(has(error.what(), "a wrong number"));
                }
            }
            const std::string text = said.text();
            CHECK(has(text, "a wrong number") == !reported);
            CHECK(text.find("a wrong number") == text.rfind("a wrong number"));
        }
    }
}

#endif  // !SLABSTREAM_CUDA
