// Each flag of a step arrives where it belongs: another value gives another adapter, unlike any other flag's. A run
// that was begun with one value does not go on with another. What the values mean is parity_gpt's to compare.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/runtime/real.h"
#include "tests/training_bench.h"
#include "train/run/flag_table.h"

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
    {"--sequence-len", "8"},
};

// Flags of a run's identity that other tests change: they want another base, other data or another kind of result.
const std::set<std::string> kElsewhere = {"--from-scratch", "--sample-packing", "--train-on-inputs", "--chat-template",
                                          "--adapter",      "--freeze-layers",  "--exchange-every"};

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

    TEST_CASE("training: every flag that the table counts to the identity is tried") {
        for (const slab::train::Flag& flag : slab::train::flag_table()) {
            const std::string name = std::string("--") + flag.name;
            const bool tried = std::any_of(kChanges.begin(), kChanges.end(), [&](auto& c) { return c.first == name; });
            CAPTURE(name);
            CHECK((tried || kElsewhere.count(name)) == (flag.rules.identity != slab::train::Identity::none));
        }
    }

    TEST_CASE("training: a checkpoint's identity keeps its names and the form of its values") {
        const Bench bench;
        bench.run_well("run", {{"--save-steps", "3"},
                               {"--lora-dropout", "0.1"},
                               {"--lora-target-modules", "v_proj,q_proj"},
                               {"--adam-epsilon", "3e-9"}});
        const std::filesystem::path file = bench.run_dir("run") / "checkpoint-3" / "trainer_state.json";
        nlohmann::json identity = nlohmann::json::parse(content(file)).at("identity");
        identity.erase("SLABSTREAM_GENERIC_KERNELS");  // of the environment
        CHECK(identity.at("precision of the build") == slab::kPrecision);
        identity.erase("precision of the build");
        CHECK(identity.at("tokens of --train-data (a hash)").get<std::string>().size() == 16);
        identity.erase("tokens of --train-data (a hash)");
        const nlohmann::json wanted = {{"--sequence-len", "9"},
                                       {"--micro-batch-size", "2"},
                                       {"--gradient-accumulation-steps", "2"},
                                       {"--seed", "42"},
                                       {"--learning-rate", "0.01"},
                                       {"--lr-scheduler", "cosine"},
                                       {"--warmup-ratio", "0.03"},
                                       {"--warmup-steps", "-1"},
                                       {"--weight-decay", "0"},
                                       {"--max-grad-norm", "1"},
                                       {"--adam-beta1", "0.9"},
                                       {"--adam-beta2", "0.999"},
                                       {"--adam-epsilon", "3e-09"},
                                       {"--freeze-layers", "0"},
                                       {"--from-scratch", "false"},
                                       {"--max-steps (or --num-epochs)", "5"},
                                       {"--sample-packing", "false"},
                                       {"--train-on-inputs", "false"},
                                       {"--chat-template", ""},
                                       {"rows of --train-data", "24"},
                                       {"--adapter", "lora"},
                                       {"--lora-r", "2"},
                                       {"--lora-alpha", "32"},
                                       {"--lora-dropout", "0.100000001"},
                                       {"--lora-target-modules", "q_proj,v_proj"},
                                       {"layers_to_transform", ""},
                                       {"--use-rslora", "false"}};
        CHECK(identity == wanted);
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
