// That each flag of a step arrives where it belongs: another value gives another adapter, unlike any other flag's, and
// a run that was begun with one value does not go on with another. What the values mean is parity_gpt's to compare.
#include <doctest/doctest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/training_bench.h"

using namespace slab::test;

namespace {

// Each differs from the bench's own or the default; "" for a flag without a value.
const std::vector<std::pair<std::string, std::string>> kChanges = {
    {"--adam-beta1", "0.5"},
    {"--adam-beta2", "0.5"},
    {"--adam-epsilon", "0.1"},
    {"--weight-decay", "0.5"},
    {"--max-grad-norm", "0.001"},
    {"--learning-rate", "0.02"},
    {"--lr-scheduler", "constant"},
    {"--warmup-steps", "2"},
    {"--warmup-ratio", "0.9"},
    {"--seed", "7"},
    {"--micro-batch-size", "1"},
    {"--gradient-accumulation-steps", "1"},
    {"--lora-r", "3"},
    {"--lora-alpha", "3"},
    {"--lora-dropout", "0.1"},
    {"--lora-target-modules", "q_proj"},
    {"--use-rslora", ""},
};

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("training: every flag of a step changes what is trained, and no run goes on with another value of it") {
        const Bench bench;
        bench.run_well("base", {{"--save-steps", "3"}});
        const std::string from = (bench.run_dir("base") / "checkpoint-3").string();
        std::set<std::string> adapters = {bench.adapter("base")};
        for (const auto& [flag, value] : kChanges) {
            CAPTURE(flag);
            bench.run_well("with" + flag, {{flag, value}});
            CHECK(adapters.insert(bench.adapter("with" + flag)).second);
            const Program resumed = bench.run("from" + flag, {{flag, value}, {"--resume-from-checkpoint", from}});
            CHECK(resumed.code == 1);
            CHECK(has(resumed.error, flag));
        }
    }

    TEST_CASE("training: --logging-steps and --threads arrive") {
        const Bench bench;
        const Program sparse = bench.run("sparse", {{"--logging-steps", "2"}});
        for (const int step : {1, 2, 3, 4, 5})  // the last one always
            CHECK(has(sparse.out, "\nstep " + std::to_string(step) + "/5 ") == (step != 1 && step != 3));
        if (slab::kBackend != slab::Backend::cpu) return;  // a GPU's name says nothing of threads
        CHECK(has(bench.run("three", {{"--threads", "3"}}).out, "CPU, 3 threads"));
    }
}
