// What an evaluation covers, which checkpoint it makes the best, and whose time it takes.
#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "tests/training_bench.h"
#include "train/run/checkpoint.h"

using namespace slab;
using namespace slab::train;
using namespace slab::test;
using nlohmann::json;

namespace {

// A slow terminal: it takes its time over each line of an evaluation between steps.
struct SlowEvaluations : std::stringbuf {
    std::chrono::milliseconds delay;
    size_t seen = 0;
    explicit SlowEvaluations(std::chrono::milliseconds d) : delay(d) {}
    int sync() override {
        const std::string all = str();
        const std::string added = all.substr(seen);
        seen = all.size();
        if (has(added, "eval ") && !has(added, "eval 0/")) std::this_thread::sleep_for(delay);
        return 0;
    }
};

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("evaluation: covers the rows that make no whole micro-batch") {
        const Bench bench;
        const auto losses = [&](const std::string& rows) {
            bench.run_well(rows, {{"--micro-batch-size", rows},
                                  {"--val-set-size", "3"},
                                  {"--max-steps", "1"},
                                  {"--learning-rate", "0"}});
            return evals_of(bench.run_dir(rows));
        };
        const auto one = losses("1");
        REQUIRE(one.size() == 2);
        for (const std::string rows : {"2", "3", "4"}) {
            CAPTURE(rows);
            const auto several = losses(rows);
            REQUIRE(several.size() == 2);
            for (const double loss : several) CHECK(loss == doctest::Approx(one[0]).epsilon(1e-6));
        }
    }

    TEST_CASE("evaluation: at a step where none was due, as after a resumption, it makes no checkpoint the best") {
        const Bench bench;
        // What is learnt lowers the validation loss at every step, so a step that counted would be the best.
        write_token_file(bench.dir.path / "train.bin", std::vector<uint32_t>(9 * 24 + 1, 5));
        write_token_file(bench.dir.path / "val.bin", std::vector<uint32_t>(9 * 2 + 1, 5));
        const Flags flags = {{"--eval-steps", "2"},
                             {"--save-steps", "1"},
                             {"--save-total-limit", "9"},
                             {"--val-data", (bench.dir.path / "val.bin").string()}};
        bench.run_well("whole", flags);
        InterruptAfter screen("step 3/5");
        std::ostream out(&screen);
        REQUIRE(run_train_gpt(bench.arguments("stopped", flags), screen.stop, out).code == 130);
        REQUIRE(last_checkpoint(bench.run_dir("stopped"))->filename() == "checkpoint-3");
        Flags again = flags;
        again["--resume-from-checkpoint"] = "last";
        bench.run_well("stopped", again);
        const auto best_of = [&](const std::string& run, int step) {
            return json::parse(content(bench.run_dir(run) / ("checkpoint-" + std::to_string(step)) /
                                       "trainer_state.json"))["best_global_step"];
        };
        for (int step = 1; step <= 5; ++step) {
            CAPTURE(step);
            CHECK(best_of("stopped", step) == best_of("whole", step));
        }
        CHECK(best_of("whole", 3) == 2);
        CHECK(best_of("whole", 5) == 5);
    }

    TEST_CASE("evaluation: its time is no step's") {
        const Bench bench;
        const std::chrono::milliseconds delay(150);
        SlowEvaluations screen(delay);
        std::ostream out(&screen);
        const Program program = run_train_gpt(
            bench.arguments("a", {{"--val-set-size", "3"}, {"--eval-steps", "1"}, {"--max-steps", "4"}}), {}, out);
        REQUIRE(program.error == "");
        const auto steps = steps_of(bench.run_dir("a"));
        REQUIRE(steps.size() == 4);
        // A busy machine may hold one step up; the least of three is that of a step alone.
        double least = 1e9;
        for (size_t i = 1; i < steps.size(); ++i) least = std::min(least, steps[i]["step_seconds"].get<double>());
        CHECK(least < 1e-3 * static_cast<double>(delay.count()));
    }
}
