// Waits of the trainer's own: for micro-batches on their way to the device, for results on their way back.
//
// Each case holds the compute stream up and checks what the host must not do before. The waits are removed one by one
// in a copy (`mutation_test.sh`): these cases must fail, and ThreadSanitizer must report the race.
#if !defined(SLABSTREAM_CUDA)
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/tiny_model.h"

using namespace slab;
using namespace slab::test;
using namespace slab::train;

namespace {

// Holds the stream until the host is past what is tested, which `passed` says, or half a second has gone by: then the
// host is waiting, as it should.
void hold(Stream& stream, const std::atomic<bool>& passed) {
    stream.host_function("hold", [&passed] {
        for (int i = 0; i < 500 && !passed.load(std::memory_order_relaxed); ++i)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("waits: tokens stay in their staging buffer until they are copied") {
        const TinyBase base("gpt2", 1);
        TinyRun run(base, tiny_settings());
        std::vector<MicroBatch> batches;
        for (unsigned i = 0; i < 9; ++i) batches.push_back(tiny_batch(run.layout.config, {.masked = 0.1 * i}, i));
        double wanted = 0;
        size_t targets = 0;
        for (const MicroBatch& batch : batches) {
            wanted += evaluate(run, {batch}) * static_cast<double>(batch.target_count());
            targets += batch.target_count();
        }
        std::atomic<bool> passed{false};
        hold(run.model.compute(), passed);
        const double got = run.loop
                               .evaluate(batches.size(),
                                         [&](uint64_t i) {
                                             if (i + 1 == batches.size()) passed.store(true, std::memory_order_relaxed);
                                             return batches[i];
                                         },
                                         {})
                               .value();
        CHECK(got * static_cast<double>(targets) == doctest::Approx(wanted).epsilon(1e-9));
    }

    TEST_CASE("waits: a result is read after it has arrived") {
        const TinyBase base("gpt2", 1);
        TinyRun run(base, tiny_settings());
        const std::vector<MicroBatch> batches = tiny_step_data(run.layout.config, 0, 1);
        const StepSettings gradients_only = tiny_step(false);
        run.loop.enqueue(batches, gradients_only);
        run.model.compute().synchronize();
        const double wanted = run.loop.collect().loss;
        for (int i = 0; i < 2; ++i) {  // buffers that hold no result yet
            std::atomic<bool> passed{false};
            hold(run.model.compute(), passed);
            run.loop.enqueue(batches, gradients_only);
            double got = 0;
            CHECK_NOTHROW(got = run.loop.collect().loss);
            CHECK(got == wanted);
            passed.store(true, std::memory_order_relaxed);
            run.model.compute().synchronize();
        }
    }
}

#endif  // !SLABSTREAM_CUDA
