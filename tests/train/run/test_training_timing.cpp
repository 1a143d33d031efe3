// Traces, times, and steps under way: what is measured is the device's, and measuring or failing to write it costs no
// step.
#include <map>

#include "tests/training_bench.h"
#include "train/spec/micro_batch.h"

using namespace slab;
using namespace slab::train;
using namespace slab::test;
namespace fs = std::filesystem;
using nlohmann::json;

TEST_SUITE("cpu") {
    TEST_CASE("training: a trace has a box for every visit and every copy of the steps asked for") {
        const Bench bench;
        const fs::path file = bench.run_dir("a") / "trace.json";
        bench.run_well("a", {{"--layer-offloading", ""}, {"--trace", file.string()}, {"--trace-steps", "2:3"}});
        const json trace = json::parse(content(file));
        std::map<std::string, int> boxes;
        std::map<int, int> visits_of_step;
        std::map<std::string, std::set<int>> lanes;
        const uint64_t slab_bytes = event_of(bench.run_dir("a"), "start")["slot_bytes"].get<uint64_t>();
        for (const json& event : trace["traceEvents"]) {
            if (event["ph"] != "X") continue;
            const std::string kind = event["cat"].get<std::string>();
            ++boxes[kind];
            lanes[kind].insert(event["tid"].get<int>());
            CHECK(event["dur"].get<double>() >= 0);
            CHECK(event["args"]["layer"].get<int>() < 4);
            if (kind == "copy") CHECK(event["args"]["bytes"] == slab_bytes);
            if (kind == "visit") ++visits_of_step[event["args"]["step"].get<int>()];
        }
        CHECK(boxes["visit"] == 2 * 2 * 8);  // 2 steps of 2 passes of 8 visits
        CHECK(visits_of_step == std::map<int, int>{{2, 16}, {3, 16}});
        CHECK(boxes["copy"] == 2 * 2 * 2 * 2);  // 2(N-R) a pass
        CHECK(lanes["visit"].size() == 1);
        CHECK(lanes["copy"].size() == 1);
        CHECK(lanes["copy"] != lanes["visit"]);
    }

    TEST_CASE("training: a log or trace that fails in mid-run costs no step") {
        const Bench bench;
        bench.run_well("plain", {{"--max-steps", "5"}});
        fs::create_directory(bench.dir.path / "traces");
        // The directory of the trace goes away after the run began.
        struct Remover : std::stringbuf {
            fs::path gone;
            int sync() override {
                if (str().find("step 1/") != std::string::npos) fs::remove_all(gone);
                return 0;
            }
        } remover;
        remover.gone = bench.dir.path / "traces";
        std::ostream screen(&remover);
        const Program program = run_train_gpt(
            bench.arguments("a", {{"--trace", (remover.gone / "t.json").string()}, {"--trace-steps", "3:3"}}), {},
            screen);
        CHECK(program.code == 1);
        CHECK(has(program.error, "of which a checkpoint is saved"));
        bench.run_well("a", {{"--resume-from-checkpoint", "last"}});
        CHECK(bench.adapter("a") == bench.adapter("plain"));
    }

    TEST_CASE("training: results of two steps may be under way, more are refused, and none needs to be collected") {
        const TinyBase base("llama", 2);
        TinyRun plain(base, streamed(tiny_settings(), 1, 2)), run(base, streamed(tiny_settings(), 1, 2));
        const Outcome want = train_steps(plain, 2);
        for (const int step : {0, 1}) run.loop.enqueue(tiny_step_data(base.config, step, 2), tiny_step());
        CHECK(run.loop.pending() == 2);
        CHECK_THROWS_AS(run.loop.enqueue(tiny_step_data(base.config, 2, 2), tiny_step()), std::logic_error);
        CHECK(run.loop.collect().loss == want.losses[0]);
        CHECK(run.loop.collect().loss == want.losses[1]);
        CHECK_THROWS_AS(run.loop.collect(), std::logic_error);
        CHECK(same_bits(run.model.trained().read_weights(run.model.compute()), want.weights));
        run.loop.enqueue(tiny_step_data(base.config, 2, 2), tiny_step());  // left to the destructors
    }

    TEST_CASE("training: a step's seconds are those of the device, from the end of the step before") {
        const TinyBase base("llama", 2);
        TinyRun run(base, tiny_settings());
        run.loop.enqueue(tiny_step_data(base.config, 0, 2), tiny_step());
        delay_async(30'000, run.model.compute());
        run.loop.enqueue(tiny_step_data(base.config, 1, 2), tiny_step());
        CHECK_THROWS_AS(run.loop.restart_clock(), std::logic_error);
        CHECK(run.loop.collect().seconds > 0);
        CHECK(run.loop.collect().seconds >= 0.03);  // what lay between counts, though both were there by now
        auto without_targets = tiny_step_data(base.config, 2, 2);
        for (MicroBatch& batch : without_targets) std::fill(batch.targets.begin(), batch.targets.end(), kIgnoreTarget);
        for (int i = 0; i < 5; ++i) {  // more than there are slots
            run.loop.enqueue(without_targets, tiny_step());
            CHECK(run.loop.collect().seconds == 0);
        }
        run.loop.enqueue(tiny_step_data(base.config, 3, 2), tiny_step());
        CHECK(run.loop.collect().seconds > 0);
    }
}
