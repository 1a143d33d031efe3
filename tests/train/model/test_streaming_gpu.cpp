// The central promise on a GPU: a streamed step gives the bits of the resident step, in this build's number type.
//
// While a model trains, the slot of every coming copy is filled with NaN as soon as the transfer stream has waited for
// `free`. Both streams are delayed. A reader that did not wait for `ready` sees NaN. So does one whose slot is given
// away too early. On the CPU tests/mutation_test.sh shows that, on a GPU dev/gpu_report.sh. The slot of each copy comes
// from simulating the schedule, so the test also compares the manager with the simulation.
#if defined(SLABSTREAM_CUDA)

#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

#include "offload/stream_schedule.h"
#include "tests/tiny_model.h"
#include "train/spec/micro_batch.h"
#include "train/spec/trained_table.h"

using namespace slab;
using namespace slab::train;
using namespace slab::test;
using offload::SlabLoad;

namespace {

constexpr int kMicroBatches = 2;

// What the runs of one comparison share.
struct Subject {
    std::function<BaseWeights()> weights;
    ModelConfig config;
    ModelSettings settings;  // resident, recompute none
    int steps = 3;
};

Subject subject_of(const TinyBase& base, const ModelSettings& settings, int steps = 3) {
    return {[&base] { return base.weights(); }, base.config, settings, steps};
}

// Sizes that the tensor cores' own paths take, unlike the tiny models'.
ModelConfig aligned_config(int HD, int max_positions) {
    ModelConfig c;
    c.L = 4, c.C = 256, c.HD = HD, c.NH = 256 / HD, c.NKV = c.NH / 2, c.I = 384, c.V = 320;
    c.max_positions = max_positions;
    return c;
}
ModelSettings lora_settings(int B, int T, float dropout = 0) {
    ModelSettings s = tiny_settings(dropout);
    s.lora->r = 8;
    s.B = B, s.T = T;
    return s;
}

enum class Timing { free_running, random, late_copies, late_readers };

// What the manager calls where it is about to enter a stream.
struct Disturbance {
    Timing timing = Timing::free_running;
    std::mt19937 random;
    bool armed = false;
    std::vector<std::byte*> slots;  // [R] device memory
    size_t slot_bytes = 0;
    std::deque<SlabLoad> loads;  // the copies to come

    void operator()(Stream& stream) {
        if (!armed) return;
        const bool is_copy = stream.name() == "transfer";
        if (is_copy) {
            if (loads.empty()) throw std::logic_error("a copy that the schedule does not know of");
            fill_async(slots.at(static_cast<size_t>(loads.front().slot)), 0xFF, slot_bytes, stream);
            loads.pop_front();
        }
        if (timing == Timing::random && random() % 3 == 0) delay_async(static_cast<int>(random() % 5000), stream);
        if (timing == (is_copy ? Timing::late_copies : Timing::late_readers)) delay_async(2000, stream);
    }
};

struct Run {
    std::shared_ptr<Disturbance> disturbance = std::make_shared<Disturbance>();
    BaseWeights weights;
    ModelLayout layout;
    Session session;
    Device& device;
    Model& model;
    StepLoop& loop;
    Run(const Subject& subject, const ModelSettings& settings)
        : weights(subject.weights()),
          layout(make_layout(subject.config, settings)),
          session(open_session(std::make_unique<Device>(DeviceOptions{.threads = 8}), layout, weights, options(*this))),
          device(*session.device),
          model(*session.model),
          loop(*session.loop) {}

    static Model::Options options(const Run& run) {
        Model::Options o;
        o.disturb = [d = run.disturbance](Stream& stream) { (*d)(stream); };
        return o;
    }
};

// Finds out where the slots lie, by visiting as many layers as there are slots, and lists the copies of the steps to
// come. Returns their number.
size_t arm(Run& run, int steps) {
    auto& manager = run.model.offload();
    const ModelLayout& layout = run.layout;
    Disturbance& d = *run.disturbance;
    const offload::RingPlan& plan = manager.plan();
    const std::vector<int> first(plan.streamed().begin(), plan.streamed().begin() + plan.slots());
    offload::Simulation simulated = simulate(offload::StreamSchedule(plan), first, first);
    d.slots.assign(static_cast<size_t>(plan.slots()), nullptr);
    d.slot_bytes = plan.slot_bytes();
    manager.pre_step(first);
    for (const auto& visit : simulated.visits) {
        d.slots.at(static_cast<size_t>(visit.slot)) = const_cast<std::byte*>(manager.begin_layer(visit.layer).base);
        manager.end_layer(visit.layer);
    }
    manager.post_step();
    for (const std::byte* slot : d.slots) REQUIRE(slot != nullptr);

    const std::vector<int> order = layout.training_visits();
    std::vector<int> made;
    for (int i = 0; i < kMicroBatches; ++i) made.insert(made.end(), order.begin(), order.end());
    for (int step = 0; step < steps; ++step) {
        simulated = simulate(simulated.after, order, made);
        d.loads.insert(d.loads.end(), simulated.at_start.begin(), simulated.at_start.end());
        for (const auto& visit : simulated.visits)
            d.loads.insert(d.loads.end(), visit.loads.begin(), visit.loads.end());
    }
    manager.reset_stats();
    d.armed = true;
    return d.loads.size();
}

Outcome train(const Subject& subject, const ModelSettings& settings, Timing timing, unsigned seed) {
    Run run(subject, settings);
    run.disturbance->timing = timing;
    run.disturbance->random.seed(seed);
    const bool streams = !run.layout.ring.streamed().empty();
    REQUIRE(streams == settings.layer_offloading);
    const size_t copies = streams ? arm(run, subject.steps) : 0;
    Outcome outcome;
    for (int step = 0; step < subject.steps; ++step) {
        std::vector<MicroBatch> batches;
        for (int i = 0; i < kMicroBatches; ++i)
            batches.push_back(
                tiny_batch(subject.config,
                           {.B = settings.B,
                            .T = settings.T - (step + i) % 2 * 2,
                            .masked = i == 0 ? 0.2 : 0.6,
                            .documents = (step + i) % 3 == 1,
                            .first_sample = static_cast<uint64_t>((step * kMicroBatches + i) * settings.B)},
                           static_cast<unsigned>(1000 * step + i)));
        run.loop.enqueue(batches, tiny_step());
        const StepResult result = run.loop.collect();
        REQUIRE(std::isfinite(result.loss));
        REQUIRE_FALSE(result.skipped);
        outcome.losses.push_back(result.loss);
        outcome.grad_norms.push_back(result.grad_norm);
        outcome.grads.push_back(run.model.trained().read_grads(run.model.compute()));
    }
    outcome.weights = run.model.trained().read_weights(run.model.compute());
    outcome.exp_avg = run.model.trained().read_exp_avg(run.model.compute());
    outcome.exp_avg_sq = run.model.trained().read_exp_avg_sq(run.model.compute());
    CHECK(run.disturbance->loads.empty());
    CHECK(run.model.offload().stats().slabs_in == copies);
    CHECK(run.model.offload().stats().bytes_out == 0);
    CHECK(run.model.offload().stats().misses == 0);
    return outcome;
}

Outcome train_resident(const Subject& subject) {
    return train(subject, subject.settings, Timing::free_running, 0);
}

void check_same(const Subject& subject, const ModelSettings& settings, const Outcome& want,
                Timing timing = Timing::free_running, unsigned seed = 1) {
    CAPTURE(settings.num_prefetch);
    CAPTURE(settings.num_slots);
    CAPTURE(settings.resident_layers.size());
    CAPTURE(settings.recompute == Recompute::block);
    CAPTURE(static_cast<int>(timing));
    CAPTURE(seed);
    const Outcome got = train(subject, settings, timing, seed);
    CHECK(first_difference(make_layout(subject.config, subject.settings).trained, got, want) == "");
}

void check_all_rings(const Subject& subject) {
    const Outcome want = train_resident(subject);
    for (int R = 2; R <= subject.config.L; ++R)
        for (int P = 1; P < R; ++P)
            for (const Recompute recompute : {Recompute::none, Recompute::block})
                check_same(subject, streamed(subject.settings, P, R, {}, recompute), want);
}

}  // namespace

TEST_SUITE("gpu") {
    TEST_CASE("streaming on the GPU: every slot count, prefetch and recomputation gives the resident run's bits") {
        const TinyBase tiny("llama"), aligned(aligned_config(64, 256));
        check_all_rings(subject_of(tiny, tiny_settings()));
        check_all_rings(subject_of(aligned, lora_settings(2, 200)));
    }

    TEST_CASE("streaming on the GPU: every family, what it trains and which layers stay change no bit") {
        for (const auto& family : tiny_families()) {
            CAPTURE(family);
            const TinyBase base(family);
            for (const ModelSettings& settings : {tiny_settings(), tiny_settings(0.3f), tiny_full_settings(3)}) {
                CAPTURE(settings.lora.has_value());
                const Subject subject = subject_of(base, settings);
                const Outcome want = train_resident(subject);
                check_same(subject, streamed(settings, 1, 2, {}, Recompute::none), want);
                check_same(subject, streamed(settings, 2, 3, {}, Recompute::block), want);
                check_same(subject, streamed(settings, 1, 2, {1}, Recompute::block), want);
            }
        }
    }

    TEST_CASE("streaming on the GPU: delays in either stream change no bit") {
        const TinyBase tiny("qwen2"), frozen("gpt2"), aligned(aligned_config(128, 256));
        unsigned seed = 0;
        for (const Subject& subject :
             {subject_of(tiny, tiny_settings(0.3f), 2), subject_of(frozen, tiny_full_settings(3), 2),
              subject_of(aligned, lora_settings(1, 130, 0.1f), 2)}) {
            const Outcome want = train_resident(subject);
            for (const Timing timing : {Timing::late_copies, Timing::late_readers, Timing::random, Timing::random}) {
                check_same(subject, streamed(subject.settings, 1, 2, {}, Recompute::block), want, timing, ++seed);
                check_same(subject, streamed(subject.settings, 2, 3, {}, Recompute::none), want, timing, ++seed);
            }
        }
    }

    TEST_CASE("streaming on the GPU: a run repeated gives the same bits, resident and streamed") {
        const TinyBase base(aligned_config(64, 256));
        const Subject subject = subject_of(base, lora_settings(2, 190, 0.1f), 4);
        const Outcome want = train_resident(subject);
        const TrainedTable table = make_layout(subject.config, subject.settings).trained;
        CHECK(first_difference(table, train_resident(subject), want) == "");
        for (int i = 0; i < 3; ++i) check_same(subject, streamed(subject.settings, 1, 3), want);
    }

    TEST_CASE("streaming on the GPU: rows of 4096 tokens") {
        for (const int HD : {64, 128}) {
            const TinyBase base(aligned_config(HD, 4096));
            const Subject subject = subject_of(base, lora_settings(1, 4096), 2);
            const Outcome want = train_resident(subject);
            check_same(subject, streamed(subject.settings, 1, 2, {}, Recompute::none), want);
            check_same(subject, streamed(subject.settings, 1, 2, {}, Recompute::block), want, Timing::random);
        }
    }

    TEST_CASE("streaming on the GPU: slabs of more than 200 MB") {
        ModelConfig config;
        config.L = 3, config.C = 4096, config.HD = 128, config.NH = config.NKV = 32, config.I = 3456, config.V = 1000;
        config.max_positions = 128;
        const Subject subject{[&config] { return BaseWeights::random(5, config); }, config, lora_settings(1, 128), 2};
        const ModelSettings settings = streamed(subject.settings, 1, 2, {}, Recompute::none);
        REQUIRE(make_layout(config, settings).ring.slot_bytes() > 200'000'000);
        const Outcome want = train_resident(subject);
        check_same(subject, settings, want);
        check_same(subject, settings, want, Timing::random);
        check_same(subject, streamed(subject.settings, 1, 2, {}, Recompute::block), want, Timing::late_readers);
    }

    TEST_CASE("copies on the GPU: over several registrations of page-locked memory, both ways, from any place in it") {
        Device device;
        Stream transfer(device, "transfer");
        const size_t bytes = (size_t{2} << 30) + 3 * 4096, skipped_bytes = (size_t{1} << 30) - 4096;
        PinnedBuffer sent(device, bytes, "sent"), received(device, bytes, "received");
        DeviceBuffer there(device, bytes, MemoryCategory::ring, "copy");
        const size_t words = bytes / sizeof(uint64_t);
        device.pool().parallel_ranges(words, size_t{1} << 20, [&](size_t begin, size_t end) {
            for (size_t i = begin; i < end; ++i) sent.as<uint64_t>()[i] = i * 0x9e3779b97f4a7c15u;
        });
        for (const size_t first : {size_t{0}, skipped_bytes}) {
            fill_async(there.data(), 0xFF, bytes, transfer);
            std::memset(received.data(), 0, bytes);
            const uint64_t before = device.traffic().host_to_device_bytes;
            copy_async(there.data() + first, sent.data() + first, bytes - first, CopyKind::host_to_device, transfer);
            CHECK(device.traffic().host_to_device_bytes - before == bytes - first);
            copy_async(received.data() + first, there.data() + first, bytes - first, CopyKind::device_to_host,
                       transfer);
            transfer.synchronize();
            CHECK(std::memcmp(received.data() + first, sent.data() + first, bytes - first) == 0);
        }
    }

    TEST_CASE("streaming on the GPU: a head size that no kernel takes is refused when the layout is made") {
        ModelConfig config = aligned_config(64, 64);
        config.NH = config.NKV = 1;
        config.HD = 258;
        CHECK_THROWS_WITH_AS(make_layout(config, lora_settings(1, 32)), doctest::Contains("head size is 258"),
                             std::runtime_error);
        config.HD = 256;
        CHECK_NOTHROW(make_layout(config, lora_settings(1, 32)));
    }
}

#endif  // SLABSTREAM_CUDA
