// Runs whose data changes or has no target, whose numbers are not finite, or whose base's files disappear. The steps
// done are never lost, and skipping changes no bit.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "data/tokenizer/byte_tokenizer.h"
#include "tests/fake_tokenizer.h"
#include "tests/training_bench.h"
#include "train/run/checkpoint.h"
#include "train/run/data_loader.h"
#include "train/run/sample.h"
#include "train/spec/micro_batch.h"

using namespace slab;
using namespace slab::train;
using namespace slab::test;
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// A tiny Llama that takes the byte tokenizer's ids, so that text and records can be its data.
ModelConfig with_bytes() {
    ModelConfig config = tiny_config("llama", 4);
    config.V = static_cast<int>(data::ByteTokenizer::kVocabularySize);
    return config;
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("training: data cut short in place, or written to, ends the run with its steps saved") {
        const Bench bench;
        const Flags usual = {{"--max-steps", "6"}};
        bench.run_well("plain", usual);
        const fs::path data = bench.dir.path / "train.bin";
        const std::string whole = content(data);
        const auto cut = [&] { fs::resize_file(data, whole.size() / 2); };
        const auto write_to = [&] {
            put(data, whole);
            fs::last_write_time(data, fs::last_write_time(data) + std::chrono::hours(1));
        };
        for (const auto& [name, action, why] :
             {std::tuple("cut", std::function<void()>(cut), "become shorter since it was opened"),
              std::tuple("written", std::function<void()>(write_to), "was written to since it was opened")}) {
            CAPTURE(name);
            DoAfter screen("step 2/6", action);
            std::ostream out(&screen);
            const Program program = run_train_gpt(bench.arguments(name, usual), {}, out);
            CHECK(program.code == 1);
            CHECK(has(program.error, data.string() + ": tokens: "));
            CHECK(has(program.error, why));
            CHECK(has(program.error, "The run ends after step 3, of which a checkpoint is saved"));
            put(data, whole);
            Flags second = usual;
            second.insert({{"--resume-from-checkpoint", "last"}});
            bench.run_well(name, second);
            CHECK(bench.adapter(name) == bench.adapter("plain"));
        }
    }

    TEST_CASE("training: a file of the base that goes away under a run is left out, and said, and nothing is lost") {
        const Bench bench;
        const fs::path generation = bench.base.files.path / "generation_config.json";
        put(generation, "{}");
        DoAfter screen("step 1/", [&] {
            fs::remove(generation);
            fs::create_directory(generation);
        });
        std::ostream out(&screen);
        const Program program =
            run_train_gpt(bench.arguments("a", {{"--adapter", "none"}, {"--save-steps", "3"}}), {}, out);
        CHECK(program.error == "");
        CHECK(program.code == 0);
        CHECK(has(screen.str(), "note: generation_config.json is not copied beside the weights: "));
        CHECK(names_in(bench.run_dir("a") / "checkpoint-5") ==
              std::vector<std::string>{"config.json", "model.safetensors", "optimizer.safetensors",
                                       "trainer_state.json"});
        CHECK(bench.model("a") == content(bench.run_dir("a") / "checkpoint-5" / "model.safetensors"));
    }

    TEST_CASE("training: data that is not there is said with what would do") {
        const Bench bench;
        for (const char* flag : {"--train-data", "--val-data"}) {
            const Program program = bench.run("a", {{flag, (bench.dir.path / "gone.txt").string()}});
            CHECK(program.code == 1);
            CHECK(has(program.error, std::string(flag) + " "));
            CHECK(has(program.error, "gone.txt: no such file; wanted a text, records (*.jsonl) or a token file"));
        }
    }

    TEST_CASE("training: flags and names that do not fit what the data is are refused before anything is made") {
        const Bench bench(with_bytes());
        const auto error = [&](const std::string& name, const std::string& text, Flags flags) {
            put(bench.dir.path / name, text);
            flags.insert({{"--train-data", (bench.dir.path / name).string()}});
            const Program program = bench.run("a", flags);
            CHECK(program.code == 1);
            CHECK_FALSE(fs::exists(bench.run_dir("a")));
            return program.error;
        };
        std::string prose, records;
        for (int i = 0; i < 50; ++i) {
            prose += std::to_string(i) + " bottles\n";
            records += "{\"text\": \"" + std::to_string(i) + " bottles of\"}\n";
        }
        for (const Flags& flags :
             {Flags{{"--sample-packing", ""}}, {{"--train-on-inputs", ""}}, {{"--chat-template", "chatml"}}})
            CHECK(has(error("prose.txt", prose, flags), "prose.txt is a text. Hint: leave the flag out"));
        CHECK(has(error("pc.txt", records, {}), "pc.txt: is named as a text, and its first line is a record"));
        CHECK(has(error("pc.jsonl", records, {{"--sequence-len", "1"}}), "pc.jsonl holds records, whose rows"));
        put(bench.dir.path / "PC.JSONL", records);
        bench.run_well("upper", {{"--train-data", (bench.dir.path / "PC.JSONL").string()}});
    }

    TEST_CASE("training: --plan looks at the data as the run would, before it shows the plan, and makes nothing") {
        const Bench bench(with_bytes());
        const auto plan = [&](const std::string& data, Flags flags) {
            flags.insert({{"--plan", ""}, {"--train-data", (bench.dir.path / data).string()}});
            const Program program = bench.run("a", flags);
            CHECK_FALSE(fs::exists(bench.run_dir("a")));
            return program;
        };
        std::string records;
        for (int i = 0; i < 40; ++i) records += "{\"text\": \"" + std::to_string(i) + " bottles\"}\n";
        put(bench.dir.path / "r.jsonl", records);
        const Program good = plan(
            "r.jsonl", {{"--sequence-len", "16"}, {"--val-set-size", "0.1"}, {"--preview", "2"}, {"--max-steps", "0"}});
        CHECK(good.error == "");
        CHECK(good.code == 0);
        CHECK(has(good.out, "row 2: "));
        CHECK_FALSE(has(good.out, "row 3: "));
        const size_t data = good.out.find("data: 36 rows of 16 tokens to train on, 4 to evaluate on, 9 steps\n");
        REQUIRE(data != std::string::npos);
        CHECK(data < good.out.find("device memory"));

        put(bench.dir.path / "broken.jsonl", records + "{\"text\": 7}\n");
        write_token_file(bench.dir.path / "beyond.bin", std::vector<uint32_t>(100, 300));
        write_tiny_tokens(bench.dir.path / "masked.bin", bench.base.config.V, 9 * 4 + 1, 2, 10);
        put(bench.dir.path / "cut.bin", content(bench.dir.path / "train.bin").substr(0, 1100));
        for (const auto& [name, flags, why] :
             {std::tuple{"broken.jsonl", Flags{}, "line 41"},
              {"beyond.bin", Flags{}, "vocabulary ends at 259"},
              {"cut.bin", Flags{}, "cut.bin"},
              {"train.bin", Flags{{"--sequence-len", "999"}}, "--sequence-len 999"},
              {"train.bin", Flags{{"--val-data", (bench.dir.path / "masked.bin").string()}}, "has a target"},
              {"train.bin", Flags{{"--trace", (bench.dir.path / "t.json").string()}, {"--trace-steps", "8:9"}},
               "--trace-steps 8:9"}}) {
            CAPTURE(name);
            const Program bad = plan(name, flags);
            CHECK(bad.code == 1);
            CHECK(has(bad.error, why));
            CHECK_FALSE(has(bad.out, "device memory"));
        }
        const std::string base = bench.base.files.path;
        CHECK(has(run_train_gpt({"--base-model", base, "--plan", "--preview", "2"}).error, "--preview"));
        CHECK(run_train_gpt({"--base-model", base, "--plan"}).code == 0);
        std::ostringstream out;
        const Program stopped = run_train_gpt(
            bench.arguments("a", {{"--plan", ""}, {"--train-data", (bench.dir.path / "r.jsonl").string()}}),
            stop_at_once(), out);
        CHECK(stopped.code == 130);
        // What trains is named for what it is.
        const std::string adapters = plan("train.bin", {}).out, full = plan("train.bin", {{"--adapter", "none"}}).out;
        CHECK(has(adapters, "  adapters "));
        CHECK_FALSE(has(adapters, "trained weights "));
        CHECK(has(full, "  trained weights "));
        CHECK_FALSE(has(full, "adapters"));
    }

    TEST_CASE("training: tokens are counted without what fills rows up") {
        const Bench bench(with_bytes());
        std::string records;
        size_t tokens = 0;
        for (size_t n = 2; n < 14; ++n) {
            records += "{\"text\": \"" + std::string(n, 'x') + "\"}\n";
            tokens += n + 1;  // with its end
        }
        put(bench.dir.path / "r.jsonl", records);
        put(bench.dir.path / "t.txt", std::string(159, 'x'));
        const Flags epoch = {{"--sequence-len", "16"},
                             {"--micro-batch-size", "1"},
                             {"--max-steps", "0"},
                             {"--gradient-accumulation-steps", "1"}};
        const auto counted = [&](const std::string& run, const std::string& data, Flags flags) {
            flags.insert(epoch.begin(), epoch.end());
            flags["--train-data"] = (bench.dir.path / data).string();
            bench.run_well(run, flags);
            size_t sum = 0;
            for (const json& step : steps_of(bench.run_dir(run))) sum += step["tokens"].get<size_t>();
            return sum;
        };
        CHECK(counted("rows", "r.jsonl", {}) == tokens);
        CHECK(counted("packed", "r.jsonl", {{"--sample-packing", ""}}) == tokens);
        CHECK(counted("text", "t.txt", {}) == 9 * 16);
    }

    TEST_CASE("training: Ctrl-C while text or records are prepared ends the run, with nothing written") {
        const Bench bench(with_bytes());
        put(bench.dir.path / "t.txt", std::string(1000, 'x'));
        put(bench.dir.path / "t.jsonl", "{\"text\": \"0123456789\"}\n");
        for (const char* name : {"t.txt", "t.jsonl"}) {
            CAPTURE(name);
            std::ostringstream out;
            const Program program = run_train_gpt(
                bench.arguments("a", {{"--train-data", (bench.dir.path / name).string()}}), stop_at_once(), out);
            CHECK(program.error == "");
            CHECK(program.code == 130);
            CHECK(has(out.str(), "interrupted while loading; nothing was written"));
            CHECK_FALSE(fs::exists(bench.run_dir("a")));
        }
    }

    TEST_CASE("training: an error of the tokenizer follows no unfinished line on the screen") {
        const Bench bench;  // its base has no tokenizer
        put(bench.dir.path / "t.txt", std::string(1000, 'x'));
        const Program program = bench.run("a", {{"--train-data", (bench.dir.path / "t.txt").string()}});
        CHECK(program.code == 1);
        CHECK(has(program.error, "tokenizer"));
        CHECK(program.out.ends_with("\n"));
        CHECK_FALSE(has(program.out, "tokenizer: "));
    }

    TEST_CASE("training: an error in a sample follows no unfinished line on the screen") {
        const TinyBase base("gpt2", 1);
        TinyRun run(base, tiny_settings());  // without a cache: sampling is refused
        TrainOptions flags;
        flags.sample = "ab";
        const SamplePlan plan{
            .tokenizer = std::make_unique<FakeTokenizer>(), .prompt = {1, 2}, .stops = {}, .positions = 0};
        std::ostringstream out;
        CHECK_THROWS_AS(write_sample(flags, plan, run.model, "before", {}, out), std::logic_error);
        CHECK(out.str() == "sample before: ab|\n");
    }

    TEST_CASE("training: validation rows without a single target are refused at the start") {
        const Bench bench;
        write_tiny_tokens(bench.dir.path / "val.bin", bench.base.config.V, 9 * 4 + 1, 2, 10);
        const Program program = bench.run("a", {{"--val-data", (bench.dir.path / "val.bin").string()}});
        CHECK(program.code == 1);
        CHECK(has(program.error, "val.bin"));
        CHECK(has(program.error, "target"));
        CHECK_FALSE(fs::exists(bench.run_dir("a")));
    }

    TEST_CASE("training: an infinite validation loss is logged as such, and is never the best") {
        const Bench bench;
        write_tiny_model(bench.base.files.path, bench.base.config,
                         [](const TensorSpec& spec, std::vector<float>& values) {
                             if (spec.role == Role::head) std::fill(values.begin(), values.end(), 3e38f);
                         });
        bench.run("a", {{"--val-set-size", "3"}, {"--max-steps", "2"}, {"--eval-steps", "1"}, {"--save-steps", "1"}});
        size_t seen = 0;
        for (const json& line : log_of(bench.run_dir("a"))) {
            if (!line.contains("eval_loss")) continue;
            ++seen;
            CHECK(line["eval_loss"].is_string());
        }
        CHECK(seen > 0);
        CHECK_FALSE(has(content(bench.run_dir("a") / "log.jsonl"), "best_metric"));
    }

    TEST_CASE("training: a step without targets is skipped and said, and changes no bit") {
        const Bench bench("llama", 10);  // no token is a target
        const Program program = bench.run("none", {{"--max-steps", "2"}});
        CHECK(program.error == "");
        CHECK(has(program.out, "step 1/2  no targets in this step: skipped"));
        CHECK(steps_of(bench.run_dir("none"))[0] == json{{"step", 1}, {"skipped", "no targets"}});

        const TinyBase& base = bench.base;
        for (const ModelSettings& settings : {streamed(tiny_settings(0.1f), 1, 2), tiny_full_settings()}) {
            TinyRun plain(base, settings), run(base, settings);
            const Outcome want = train_steps(plain, 2);
            Outcome got;
            train_steps(got, run, 0, 1);
            auto empty = tiny_step_data(base.config, 7, 2);
            for (auto& batch : empty) std::fill(batch.targets.begin(), batch.targets.end(), kIgnoreTarget);
            const Traffic before = run.device.traffic();
            const uint64_t slabs = run.model.offload().stats().slabs_in;
            run.loop.enqueue(empty, tiny_step());
            const StepResult result = run.loop.collect();
            CHECK(result.targets == 0);
            CHECK(result.tokens == 32);
            CHECK(run.device.traffic().host_to_device_bytes == before.host_to_device_bytes);
            CHECK(run.device.traffic().device_to_host_bytes == before.device_to_host_bytes);
            CHECK(run.model.offload().stats().slabs_in == slabs);
            train_steps(got, run, 1, 1);
            CHECK(first_difference(run.layout.trained, got, want) == "");
            CHECK(run.model.trained().read_applied_updates(run.model.compute()) == 2);
            CHECK(std::isnan(evaluate(run, empty)));
        }
    }

    TEST_CASE("training: a step that is not finite is not applied, and training goes on from where it was") {
        const TinyBase base("qwen3");
        for (const ModelSettings& settings : {streamed(tiny_settings(), 1, 2), tiny_full_settings(2)}) {
            TinyRun plain(base, settings), run(base, settings);
            const Outcome want = train_steps(plain, 3);
            Stream& stream = run.model.compute();
            Outcome got;
            train_steps(got, run, 0, 2);
            for (const float poison : {NAN, INFINITY}) {
                std::vector<float> poisoned = got.weights;
                poisoned[poisoned.size() / 2] = poison;
                run.model.trained().write_weights(poisoned, stream);
                run.loop.enqueue(tiny_step_data(base.config, 2, 2), tiny_step());
                const StepResult result = run.loop.collect();
                CHECK(result.skipped);
                CHECK(result.targets > 0);
                CHECK(same_bits(run.model.trained().read_weights(stream), poisoned));
                CHECK(same_bits(run.model.trained().read_exp_avg(stream), got.exp_avg));
                CHECK(same_bits(run.model.trained().read_exp_avg_sq(stream), got.exp_avg_sq));
                CHECK(run.model.trained().read_applied_updates(stream) == 2);
            }
            run.model.trained().write_weights(got.weights, stream);
            train_steps(got, run, 2, 1);
            CHECK(first_difference(run.layout.trained, got, want) == "");
        }
    }

    TEST_CASE("training: three steps in a row that are not finite stop the run, and no checkpoint is made of it") {
        const Bench bench;
        write_tiny_model(bench.base.files.path, bench.base.config,
                         [](const TensorSpec& spec, std::vector<float>& values) {
                             if (spec.role == Role::head)
                                 std::fill(values.begin(), values.end(), 3e38f);  // logits overflow
                         });
        const Program program =
            bench.run("a", {{"--save-steps", "1"}, {"--max-steps", "9"}, {"--layer-offloading", ""}});
        CHECK(program.code == 1);
        CHECK(has(program.error, "3 steps in a row, up to step 3"));
        CHECK(has(program.out, "NOT FINITE: update skipped"));
        CHECK(names_in(bench.run_dir("a")) == std::vector<std::string>{"config.toml", "log.jsonl"});
        const auto steps = steps_of(bench.run_dir("a"));
        REQUIRE(steps.size() == 3);
        for (const json& step : steps) CHECK(step["skipped"] == "not finite");
    }

    TEST_CASE("training: a gradient of exactly 0 in three steps in a row ends the run, and is told at its end") {
        const Bench bench;
        write_tiny_model(bench.base.files.path, bench.base.config,
                         [](const TensorSpec& spec, std::vector<float>& values) {
                             if (spec.role == Role::head) std::fill(values.begin(), values.end(), 0.0f);
                         });
        const Program stopped = bench.run("a", {{"--max-steps", "9"}});
        CHECK(stopped.code == 1);
        CHECK(has(stopped.error, "the gradient was exactly 0 in 3 steps in a row, up to step 3, at a loss of 3.97"));
        CHECK(has(stopped.error, "try a lower --learning-rate; nothing is saved"));
        CHECK(steps_of(bench.run_dir("a")).size() <= 4);  // one may be under way
        CHECK(!fs::exists(bench.run_dir("a") / "adapter_model.safetensors"));

        const Program short_run = bench.run("b", {{"--max-steps", "2"}});
        CHECK(short_run.code == 0);
        CHECK(has(short_run.out, "note: the gradient of the last steps was exactly 0 at a loss of 3.97"));
        const Bench well;
        const Program fine = well.run("c", {{"--max-steps", "4"}});
        CHECK(fine.code == 0);
        CHECK(!has(fine.out, "exactly 0"));
    }

    TEST_CASE("training: a gradient of exactly 0 where all is learned is no mistake") {
        ModelConfig config = tiny_config("gpt2", 2);
        config.tied_head = false;
        const Bench bench(config);
        write_tiny_model(bench.base.files.path, config, [](const TensorSpec& spec, std::vector<float>& values) {
            if (spec.role == Role::final_norm_weight) std::fill(values.begin(), values.end(), 0.0f);
            if (spec.role == Role::final_norm_bias) std::fill(values.begin(), values.end(), 1.0f);
            if (spec.role != Role::head) return;
            for (size_t i = 0; i < values.size(); ++i) values[i] = i / spec.cols == 5 ? 100.0f : 0.0f;
        });
        write_token_file(bench.dir.path / "train.bin", std::vector<uint32_t>(9 * 24 + 1, 5));
        const Program program = bench.run("a", {{"--max-steps", "5"}});
        CHECK(program.error == "");
        CHECK(program.code == 0);
        CHECK(has(program.out, "as is the loss: nothing is left to learn"));
        CHECK(!has(program.out, "at a loss of"));
    }

    TEST_CASE("training: a run that stops at bad steps keeps what it reached, unless a checkpoint has it") {
        Bench bench("gpt2");
        bench.base.config.tied_head = false;
        const fs::path file = bench.dir.path / "train.bin";
        const int V = bench.base.config.V, T = 9;
        // The last token of the vocabulary overflows; it is put into the rows that steps 3 to 5 read, of 4 rows each.
        write_tiny_model(bench.base.files.path, bench.base.config,
                         [](const TensorSpec& spec, std::vector<float>& values) {
                             if (spec.role == Role::token_embedding)
                                 std::fill(values.end() - static_cast<std::ptrdiff_t>(spec.cols), values.end(), 3e38f);
                         });
        write_tiny_tokens(file, V - 1, T * 24 + 1, 1);
        std::vector<uint32_t> tokens;
        {
            const data::TokenFile written(file);
            for (size_t i = 0; i < written.size(); ++i) tokens.push_back(token_at(written, i));
        }
        const MicroBatch bad = DataLoader(data::TokenFile(file), T, V, 42, true).batch(8, 12);
        for (size_t row = 0; row < 12; ++row) {
            const auto begin = bad.tokens.begin() + static_cast<std::ptrdiff_t>(row * T);
            const auto at = std::search(tokens.begin(), tokens.end(), begin, begin + T);
            REQUIRE(at != tokens.end());
            at[T / 2] = static_cast<uint32_t>(V - 1);
        }
        write_token_file(file, tokens);
        Program program = bench.run("kept", {{"--max-steps", "6"}});
        CHECK(program.code == 1);
        CHECK(has(program.error, "3 steps in a row, up to step 5"));
        CHECK(has(program.error, "what was reached is in"));
        CHECK(last_checkpoint(bench.run_dir("kept"))->filename() == "checkpoint-6");  // a step was under way
        bench.run_well("kept", {{"--max-steps", "6"}, {"--resume-from-checkpoint", "last"}});

        program = bench.run("saved", {{"--max-steps", "6"}, {"--save-steps", "1"}});
        CHECK(program.code == 1);
        CHECK(has(program.error, "the last checkpoint is"));
        CHECK(last_checkpoint(bench.run_dir("saved"))->filename() == "checkpoint-2");
    }

    TEST_CASE("training: a micro-batch that is larger than planned, or misshapen, is a programmer's mistake") {
        const TinyBase base("gpt2", 1);
        TinyRun run(base, tiny_settings());
        const auto evaluate_one = [&](const MicroBatch& batch) { evaluate(run, {batch}); };
        CHECK_THROWS_AS(evaluate_one(tiny_batch(base.config, {.B = 3, .T = 9}, 1)), std::logic_error);
        CHECK_THROWS_AS(evaluate_one(tiny_batch(base.config, {.B = 1, .T = 10}, 1)), std::logic_error);
        MicroBatch batch = tiny_batch(base.config, {}, 1);
        batch.targets.pop_back();
        CHECK_THROWS_AS(evaluate_one(batch), std::logic_error);
        CHECK(std::isfinite(evaluate(run, {tiny_batch(base.config, {}, 1)})));
    }
}
