// Files of a run that others rely on: config.toml, the log's lock, what bad steps leave. Checkpoints are on the disk
// before they have their names.
#include <filesystem>
#include <optional>
#include <string>

#include "data/base/file_lock.h"
#include "tests/system_calls.h"
#include "tests/training_bench.h"
#include "train/run/checkpoint.h"

using namespace slab;
using namespace slab::train;
using namespace slab::test;
namespace fs = std::filesystem;
using nlohmann::json;

TEST_SUITE("cpu") {
    TEST_CASE("run files: config.toml names --adapter-in so that it is found from another directory") {
        const Bench bench;
        bench.run_well("a", {{"--max-steps", "1"}});
        const fs::path whole = fs::canonical(bench.run_dir("a"));
        const std::string relative = fs::relative(whole, fs::current_path()).string();
        REQUIRE(relative != whole.string());
        bench.run_well("b", {{"--max-steps", "1"}, {"--adapter-in", relative}});
        const std::string toml = content(bench.run_dir("b") / "config.toml");
        CHECK_FALSE(has(toml, "adapter-in = \"" + relative + "\""));
        CHECK(has(toml, "adapter-in = \"" + fs::absolute(relative).string() + "\"\n"));
    }

    TEST_CASE("run files: a resumed run holds its log, also when it had to be cut") {
        const Bench bench;
        const fs::path log = bench.dir.path / "log.jsonl";
        Flags flags = {{"--log", log.string()}, {"--save-steps", "2"}, {"--max-steps", "4"}};
        bench.run_well("a", flags);
        fs::remove_all(bench.run_dir("a") / "checkpoint-4");
        flags["--resume-from-checkpoint"] = "last";
        std::optional<bool> held;
        DoAfter screen("step 3/4", [&] {
            try {
                const data::FileLock lock(log, "a log");
                held = false;
            } catch (const std::runtime_error&) {
                held = true;
            }
        });
        std::ostream out(&screen);
        CHECK(run_train_gpt(bench.arguments("a", flags), {}, out).error == "");
        CHECK(held == true);
        CHECK(steps_of(bench.run_dir("a")).size() == 0);  // the log lies elsewhere
        CHECK_NOTHROW(data::FileLock(log, "a log"));
    }

    TEST_CASE("run files: the checkpoint that bad steps leave says how many they were, and the next start knows") {
        const Bench bench;
        // Weights grow a millionfold a step until nothing is finite any more; from there every step is bad.
        const Flags flags = {{"--learning-rate", "999"},
                             {"--weight-decay", "999"},
                             {"--lr-scheduler", "constant"},
                             {"--warmup-steps", "0"},
                             {"--max-steps", "40"}};
        const Program program = bench.run("a", flags);
        CHECK(has(program.error, "3 steps in a row"));
        int bad = 0;
        for (const json& step : steps_of(bench.run_dir("a"))) bad += step.contains("skipped");
        CHECK(bad >= 3);
        const auto checkpoint = last_checkpoint(bench.run_dir("a"));
        REQUIRE(checkpoint);
        CHECK(json::parse(content(*checkpoint / "trainer_state.json"))["bad_steps_in_row"] == bad);
        Flags again = flags;
        again["--resume-from-checkpoint"] = "last";
        const size_t steps_before = steps_of(bench.run_dir("a")).size();
        CHECK(has(bench.run("a", again).error, "steps in a row"));
        // One more bad step ends it, and one may be under way: it does not begin to count anew.
        CHECK(steps_of(bench.run_dir("a")).size() <= steps_before + 2);
    }

    TEST_CASE("run files: checkpoints and the result are on the disk before they have their names") {
        const Bench bench;
        const SystemCalls calls;
        bench.run_well("a", {{"--max-steps", "2"}, {"--save-steps", "1"}});
        const auto made = calls.made();
        const fs::path run = fs::canonical(bench.run_dir("a"));
        for (const std::string name :
             {"checkpoint-1", "checkpoint-2", "adapter_model.safetensors", "adapter_config.json"}) {
            CAPTURE(name);
            CHECK(not_durable(made, run / name) == "");
        }
    }
}
