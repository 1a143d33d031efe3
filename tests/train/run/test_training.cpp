// Whole runs of train_gpt on tiny models: what is written and said, what each flag trains, and the same bits from every
// way to place the layers. Stopping and resuming: test_training_resume.cpp; data and steps that cannot be taken:
// test_training_data.cpp; traces and times: test_training_timing.cpp.
#include <algorithm>
#include <cmath>

#include "tests/training_bench.h"
#include "train/run/learning_rate.h"
#include "train/run/run_setup.h"
#include "train/spec/model_config.h"

using namespace slab;
using namespace slab::train;
using namespace slab::test;
namespace fs = std::filesystem;
using nlohmann::json;

TEST_SUITE("cpu") {
    TEST_CASE("training: a run leaves adapter, checkpoint, log and config, and config.toml repeats it") {
        const Bench bench;
        bench.run_well("a", {{"--val-set-size", "3"}, {"--lora-dropout", "0.1"}});
        CHECK(names_in(bench.run_dir("a")) == std::vector<std::string>{"adapter_config.json",
                                                                       "adapter_model.safetensors", "checkpoint-5",
                                                                       "config.toml", "log.jsonl", "slabstream.json"});
        CHECK(bench.adapter("a") == content(bench.run_dir("a") / "checkpoint-5" / "adapter_model.safetensors"));
        const auto steps = steps_of(bench.run_dir("a"));
        REQUIRE(steps.size() == 5);
        for (size_t i = 0; i < steps.size(); ++i) {
            CHECK(steps[i]["step"] == i + 1);
            CHECK(std::isfinite(steps[i]["loss"].get<double>()));
            CHECK(steps[i]["tokens"] == 36);
            CHECK(steps[i]["targets"].get<int>() > 0);
            CHECK(steps[i]["targets"].get<int>() < 36);
            CHECK(steps[i]["epoch"].get<double>() == doctest::Approx(4.0 * static_cast<double>(i + 1) / 21));
        }
        CHECK(evals_of(bench.run_dir("a")).size() == 2);
        CHECK(event_of(bench.run_dir("a"), "start")["offload"] == "off");
        const Program again = run_train_gpt(
            {"--config", (bench.run_dir("a") / "config.toml").string(), "--output-dir", bench.run_dir("b").string()});
        CHECK(again.error == "");
        CHECK(bench.adapter("b") == bench.adapter("a"));
        CHECK(evals_of(bench.run_dir("b")) == evals_of(bench.run_dir("a")));
    }

    TEST_CASE("training: streamed runs write the resident run's adapter, and log what the schedule moves") {
        const Bench bench("qwen3");
        bench.run_well("resident", {{"--val-set-size", "3"}, {"--eval-steps", "2"}});
        const std::vector<Flags> ways = {{},
                                         {{"--num-prefetch", "2"}},
                                         {{"--num-slots", "3"}, {"--recompute", "none"}},
                                         {{"--resident-layers", "1"}},
                                         {{"--num-slots", "auto"}},
                                         {{"--threads", "1"}}};
        for (size_t i = 0; i < ways.size(); ++i) {
            const std::string name = "streamed" + std::to_string(i);
            CAPTURE(name);
            Flags flags = ways[i];
            flags.insert({{"--layer-offloading", ""}, {"--val-set-size", "3"}, {"--eval-steps", "2"}});
            bench.run_well(name, flags);
            CHECK(bench.adapter(name) == bench.adapter("resident"));
            CHECK(evals_of(bench.run_dir(name)) == evals_of(bench.run_dir("resident")));
            const json start = event_of(bench.run_dir(name), "start"), end = event_of(bench.run_dir(name), "end");
            CHECK(start["offload"] == "active");
            CHECK(end["slabs_out"] == 0);
            CHECK(end["device_peak_bytes"] == start["planned_device_bytes"]);
            uint64_t slabs = 0;
            for (const json& step : steps_of(bench.run_dir(name))) slabs += step["slabs_in"].get<uint64_t>();
            CHECK(end["slabs_in"] == slabs);
        }
    }

    TEST_CASE("training: the step line and the log carry slabs and bytes: 2(N-R) a pass, none back") {
        const Bench bench;
        for (const int R : {2, 3, 4}) {
            const std::string name = "r" + std::to_string(R);
            const Program program = bench.run(name, {{"--layer-offloading", ""}, {"--num-slots", std::to_string(R)}});
            REQUIRE(program.error == "");
            const uint64_t slab_bytes = event_of(bench.run_dir(name), "start")["slot_bytes"].get<uint64_t>();
            for (const json& step : steps_of(bench.run_dir(name))) {
                const int64_t number = step["step"].get<int64_t>();
                const uint64_t slabs = static_cast<uint64_t>(2 * 2 * (4 - R) + (number == 1 ? R : 0));
                CAPTURE(number);
                CHECK(step["slabs_in"] == slabs);
                CHECK(step["bytes_in"] == slabs * slab_bytes);
                CHECK(step["slabs_out"] == 0);
                CHECK(step["bytes_out"] == 0);
                CHECK(step["waiting"].get<double>() >= 0);
                CHECK(step["waiting"].get<double>() <= 1);
                CHECK(has(program.out, "moved " + std::to_string(slabs) + " slabs"));
            }
            CHECK(has(program.out, "weights moved back: 0 bytes"));
        }
    }

    TEST_CASE("training: --save-steps and --save-total-limit keep the newest checkpoints") {
        const Bench bench;
        bench.run_well("a", {{"--save-steps", "1"}, {"--save-total-limit", "2"}});
        CHECK(names_in(bench.run_dir("a")) ==
              std::vector<std::string>{"adapter_config.json", "adapter_model.safetensors", "checkpoint-4",
                                       "checkpoint-5", "config.toml", "log.jsonl", "slabstream.json"});
        bench.run_well("plain");
        CHECK(bench.adapter("a") == bench.adapter("plain"));  // saving leaves no trace
    }

    TEST_CASE("training: samples beyond the row's length, to where the model's positions end, leave no trace") {
        ModelConfig config = tiny_config("llama", 4);  // of 40 positions
        config.V = 260;                                // bytes
        const Bench bench(config);
        bench.run_well("plain");
        const std::string prompt = "what comes after";  // 16 bytes
        const Flags flags = {{"--sample", prompt}, {"--sample-tokens", "90"}, {"--sample-temperature", "9"}};
        for (const Flags& way : {Flags{}, Flags{{"--layer-offloading", ""}}}) {
            Flags all = flags;
            all.insert(way.begin(), way.end());
            const std::string name = way.empty() ? "resident" : "streamed";
            const Program program = bench.run(name, all);
            REQUIRE(program.error == "");
            CHECK(bench.adapter(name) == bench.adapter("plain"));
            CHECK(has(program.out, "sample before: " + prompt + "|"));
            CHECK(has(program.out, "keys and values of 40 sampled tokens"));
            const json event = event_of(bench.run_dir(name), "sample");
            CHECK(event["when"] == "before");
            CHECK(event["text"] == event_of(bench.run_dir("resident"), "sample")["text"]);
            if (event["ended"] == "stop") continue;  // chance drew the end of the text
            CHECK(event["ended"] == "positions");
            CHECK(event["new_tokens"] == 25);
            CHECK(has(program.out, "with its prompt it fills the model's 40 positions"));
        }
        const std::string error = bench.run("long", {{"--sample", std::string(40, 'x')}}).error;
        CHECK(has(error, "--sample"));
        CHECK(has(error, "40 positions"));
        CHECK_FALSE(fs::exists(bench.run_dir("long")));

        write_tiny_model(bench.base.files.path, config, [](const TensorSpec& spec, std::vector<float>& values) {
            if (spec.role == Role::head) std::fill(values.begin(), values.end(), 3e38f);  // all logits overflow
        });
        const Program overflowed = bench.run("overflowed", {{"--sample", prompt}, {"--max-steps", "2"}});
        CHECK(overflowed.error == "");
        CHECK(has(overflowed.out,
                  "this sample ends after 0 tokens: none of the model's logits for the next one is a "
                  "finite number"));
        CHECK(event_of(bench.run_dir("overflowed"), "sample")["ended"] == "not finite");
    }

    TEST_CASE("training: --adapter-in goes on from an adapter, with its settings") {
        const Bench bench;
        bench.run_well("a", {{"--val-set-size", "3"}, {"--lora-r", "3"}, {"--lora-alpha", "5"}, {"--use-rslora", ""}});
        bench.run_well("b", {{"--val-set-size", "3"}, {"--adapter-in", bench.run_dir("a").string()}});
        CHECK(evals_of(bench.run_dir("b")).front() == evals_of(bench.run_dir("a")).back());
        CHECK(evals_of(bench.run_dir("a")).front() != evals_of(bench.run_dir("a")).back());
        const json config = json::parse(content(bench.run_dir("b") / "adapter_config.json"));
        CHECK(config["r"] == 3);
        CHECK(config["lora_alpha"] == 5);
        CHECK(config["use_rslora"] == true);

        // Flags that say the same are welcome, others are refused; config.toml has what holds, and repeats the run.
        const std::string adapter = bench.run_dir("a").string(), toml = (bench.run_dir("b") / "config.toml").string();
        for (const char* line : {"lora-r = 3\n", "lora-alpha = 5\n", "lora-dropout = 0\n", "use-rslora = true\n"})
            CHECK(has(content(toml), line));
        const Program again = run_train_gpt({"--config", toml, "--output-dir", bench.run_dir("c").string()});
        CHECK(again.error == "");
        CHECK(bench.adapter("c") == bench.adapter("b"));
        bench.run_well("same", {{"--adapter-in", adapter}, {"--lora-r", "3"}, {"--lora-target-modules", "all-linear"}});
        const Program other = bench.run("d", {{"--adapter-in", adapter}, {"--lora-r", "4"}, {"--lora-dropout", "0.3"}});
        CHECK(other.code == 1);
        CHECK(has(other.error,
                  "--lora-r 4 (there: 3), --lora-dropout 0.3 (there: 0): contradicts --adapter-in " + adapter));
        CHECK_FALSE(std::filesystem::exists(bench.run_dir("d")));
        CHECK(has(bench.run("d", {{"--adapter-in", adapter}, {"--lora-target-modules", "q_proj"}}).error,
                  "--lora-target-modules q_proj (there: "));
        // On the command line --adapter-in beats a config file's --lora-*.
        put(bench.dir.path / "r.toml", "lora-r = 9\n");
        bench.run_well("e", {{"--adapter-in", adapter}, {"--config", (bench.dir.path / "r.toml").string()}});
        CHECK(has(content(bench.run_dir("e") / "config.toml"), "lora-r = 3\n"));
    }

    TEST_CASE("training: all weights, and the upper layers, give a model that loads as a base") {
        const Bench bench("gpt2");
        for (const Flags& flags :
             {Flags{{"--adapter", "none"}}, Flags{{"--freeze-layers", "2"}, {"--layer-offloading", ""}}}) {
            const std::string name = flags.begin()->first;
            Flags all = flags;
            all["--val-set-size"] = "3";
            bench.run_well(name, all);
            CHECK(names_in(bench.run_dir(name)) == std::vector<std::string>{"checkpoint-5", "config.json",
                                                                            "config.toml", "log.jsonl",
                                                                            "model.safetensors"});
            bench.run_well(name + "-on", {{"--base-model", bench.run_dir(name).string()}, {"--val-set-size", "3"}});
            CHECK(evals_of(bench.run_dir(name + "-on")).front() == evals_of(bench.run_dir(name)).back());
        }
        bench.run_well("resident", {{"--freeze-layers", "2"}, {"--val-set-size", "3"}});
        CHECK(bench.model("resident") == bench.model("--freeze-layers"));
    }

    TEST_CASE("training: nothing frozen to stream is said, and trained on resident") {
        const Bench bench;
        const Program program = bench.run("a", {{"--adapter", "none"}, {"--layer-offloading", ""}});
        CHECK(program.error == "");
        CHECK(has(program.out, "warning: --layer-offloading has nothing to stream"));
        CHECK(event_of(bench.run_dir("a"), "start")["offload"] == "inactive");
        const Program ring = bench.run("b", {{"--layer-offloading", ""}, {"--num-slots", "9"}});
        CHECK(ring.error == "");
        CHECK(has(ring.out, "the ring holds every"));
    }

    TEST_CASE("training: learns, from random weights too") {
        const Bench bench("qwen2");
        std::vector<uint32_t> tokens;  // a pattern that can be learnt: 0 1 2 3 4 5 6 0 1 ...
        for (uint32_t i = 0; i < 9 * 40 + 1; ++i) tokens.push_back(i % 7);
        write_token_file(bench.dir.path / "pattern.bin", tokens);
        const Flags usual = {{"--train-data", (bench.dir.path / "pattern.bin").string()},
                             {"--val-set-size", "4"},
                             {"--max-steps", "40"},
                             {"--learning-rate", "0.02"}};
        Flags scratch = usual;
        scratch.insert({{"--from-scratch", ""}, {"--adapter", "none"}});
        bench.run_well("scratch", scratch);
        CHECK(evals_of(bench.run_dir("scratch")).front() > 3);
        CHECK(evals_of(bench.run_dir("scratch")).back() < 0.7);
        Flags lora = usual;
        lora.insert({{"--layer-offloading", ""}, {"--lora-r", "4"}});
        bench.run_well("lora", lora);
        CHECK(evals_of(bench.run_dir("lora")).back() < 0.5 * evals_of(bench.run_dir("lora")).front());
    }

    TEST_CASE("training: another run's results, the base model, and files that are no trace are not overwritten") {
        const Bench bench;
        bench.run_well("a", {{"--max-steps", "2"}});
        const std::string adapter = bench.adapter("a");
        fs::remove_all(bench.run_dir("a") / "checkpoint-2");
        Program program = bench.run("a", {{"--max-steps", "1"}});
        CHECK(program.code == 1);
        CHECK(has(program.error, "holds adapter_model.safetensors of an earlier run"));
        CHECK(bench.adapter("a") == adapter);

        const std::string weights = content(bench.base.files.path / "model.safetensors");
        program = bench.run("base", {{"--output-dir", bench.base.files.path.string()}, {"--adapter", "none"}});
        CHECK(program.code == 1);
        CHECK(has(program.error, "base model's own directory"));
        CHECK(content(bench.base.files.path / "model.safetensors") == weights);

        const fs::path notes = bench.dir.path / "notes.txt";
        std::ofstream(notes) << "do not lose me\n";
        program = bench.run("b", {{"--trace", notes.string()}});
        CHECK(program.code == 1);
        CHECK(has(program.error, "is no trace"));
        CHECK(content(notes) == "do not lose me\n");
        const std::string trace = (bench.dir.path / "trace.json").string();
        bench.run_well("b", {{"--trace", trace}, {"--layer-offloading", ""}});
        const std::string boxes = content(trace);
        CHECK(has(bench.run("c", {{"--trace", trace}, {"--layer-offloading", ""}}).error,
                  "is the trace of another run, in " + bench.run_dir("b").string()));
        CHECK(content(trace) == boxes);
    }

    TEST_CASE("training: the learning rate warms up to its peak and follows its scheduler") {
        TrainOptions o;
        o.learning_rate = 1;
        o.warmup_ratio = 0.1;
        const auto rates = [&](std::vector<int64_t> steps) {
            std::vector<double> all;
            for (const int64_t step : steps) all.push_back(learning_rate_at(o, step, 100));
            return all;
        };
        const auto near = [](const std::vector<double>& got, const std::vector<double>& want) {
            REQUIRE(got.size() == want.size());
            for (size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] - want[i]) < 1e-12);
        };
        const double pi = std::acos(-1.0);
        near(rates({0, 4, 9}), {0.1, 0.5, 1});  // no step has rate 0
        near(rates({10, 55, 99}), {1, 0.5, 0.5 * (1 + std::cos(pi * 89 / 90))});
        o.lr_scheduler = "linear";
        near(rates({9, 10, 55, 99}), {1, 1, 0.5, 1.0 / 90});
        o.lr_scheduler = "constant";
        near(rates({0, 9, 10, 99}), {0.1, 1, 1, 1});
        o.warmup_steps = 0;  // beats the ratio
        near(rates({0, 99}), {1, 1});
        o.warmup_steps = 4;
        near(rates({0, 1, 3, 4}), {0.25, 0.5, 1, 1});
        o.warmup_steps = 200;  // longer than the run
        near(rates({0, 99}), {1.0 / 200, 0.5});
        o.warmup_steps = -1;
        o.warmup_ratio = 0.005;  // rounded up: one step
        near(rates({0, 1}), {1, 1});
        o.lr_scheduler = "cosine";
        o.warmup_steps = 99;
        near(rates({98, 99}), {1, 1});
        CHECK(learning_rate_at(o, 0, 1) == 1.0 / 99);
        o.warmup_ratio = 0;
        o.warmup_steps = -1;
        for (int64_t step = 0; step < 100; ++step)
            CHECK(learning_rate_at(o, step + 1, 100) < learning_rate_at(o, step, 100));
    }
}
