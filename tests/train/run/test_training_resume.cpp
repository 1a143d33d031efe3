// Stopping a run anywhere and going on: the bits and files of a run never stopped, the best checkpoint found again, and
// what a checkpoint does not fit refused.
#include <algorithm>
#include <chrono>
#include <optional>
#include <set>
#include <tuple>

#include "tests/training_bench.h"
#include "train/spec/micro_batch.h"

using namespace slab;
using namespace slab::train;
using namespace slab::test;
namespace fs = std::filesystem;
using nlohmann::json;

TEST_SUITE("cpu") {
    TEST_CASE("training: interrupted after any step and resumed, other slots too, a run ends with the same files") {
        const Bench bench;
        const Flags usual = {{"--lora-dropout", "0.2"}, {"--val-set-size", "3"}, {"--max-steps", "6"}};
        bench.run_well("plain", usual);
        for (const int stop : {1, 2, 4}) {  // one step more is under way when the line appears
            const std::string name = "stopped" + std::to_string(stop);
            CAPTURE(name);
            InterruptAfter screen("step " + std::to_string(stop) + "/6");
            std::ostream out(&screen);
            Flags first = usual;
            first.insert({{"--layer-offloading", ""}, {"--num-slots", "3"}});
            const Program stopped = run_train_gpt(bench.arguments(name, first), screen.stop, out);
            CHECK(stopped.error == "");
            CHECK(stopped.code == 130);
            CHECK(has(screen.str(), "interrupted"));
            CHECK_FALSE(fs::exists(bench.run_dir(name) / "adapter_model.safetensors"));
            Flags second = usual;
            second.insert({{"--resume-from-checkpoint", "last"}});
            bench.run_well(name, second);
            CHECK(bench.adapter(name) == bench.adapter("plain"));
            CHECK(content(bench.run_dir(name) / "checkpoint-6" / "optimizer.safetensors") ==
                  content(bench.run_dir("plain") / "checkpoint-6" / "optimizer.safetensors"));
            const auto want = steps_of(bench.run_dir("plain")), got = steps_of(bench.run_dir(name));
            REQUIRE(got.size() == want.size());
            for (size_t i = 0; i < want.size(); ++i)
                for (const char* key : {"step", "loss", "grad_norm", "learning_rate", "targets"})
                    CHECK(got[i][key] == want[i][key]);
        }
    }

    TEST_CASE("training: a run directory in use is refused, and so is resuming with flags that change the bits") {
        const Bench bench;
        bench.run_well("a", {{"--save-steps", "2"}});
        const Program again = bench.run("a");
        CHECK(again.code == 1);
        CHECK(has(again.error, "checkpoint-5"));
        CHECK(has(again.error, "--resume-from-checkpoint last"));
        const std::vector<std::pair<std::string, std::string>> changes = {{"--seed", "9"},
                                                                          {"--learning-rate", "0.02"},
                                                                          {"--max-steps", "6"},
                                                                          {"--lora-r", "3"},
                                                                          {"--lora-alpha", "5"},
                                                                          {"--lora-dropout", "0.5"},
                                                                          {"--micro-batch-size", "1"},
                                                                          {"--sequence-len", "8"},
                                                                          {"--weight-decay", "0.1"},
                                                                          {"--warmup-steps", "2"},
                                                                          {"--max-grad-norm", "2"},
                                                                          {"--lr-scheduler", "linear"},
                                                                          {"--adam-beta2", "0.9"},
                                                                          {"--use-rslora", ""},
                                                                          {"--lora-target-modules", "q_proj"}};
        for (const auto& [flag, value] : changes) {
            CAPTURE(flag);
            const Program other = bench.run("a", {{"--resume-from-checkpoint", "last"}, {flag, value}});
            CHECK(other.code == 1);
            CHECK(has(other.error, flag));
        }
        CHECK(has(bench.run("a", {{"--resume-from-checkpoint", bench.dir.path.string()}}).error, "trainer_state.json"));
        // From an earlier checkpoint only when no later one is in the way; then it goes on, and ends the same.
        const std::string adapter = bench.adapter("a");
        const Program behind =
            bench.run("a", {{"--resume-from-checkpoint", (bench.run_dir("a") / "checkpoint-2").string()}});
        CHECK(behind.code == 1);
        CHECK(has(behind.error, "checkpoint-5"));
        for (const char* later : {"checkpoint-4", "checkpoint-5"}) fs::remove_all(bench.run_dir("a") / later);
        bench.run_well("a", {{"--resume-from-checkpoint", (bench.run_dir("a") / "checkpoint-2").string()}});
        CHECK(bench.adapter("a") == adapter);
        CHECK(steps_of(bench.run_dir("a")).size() == 5);
    }

    TEST_CASE("training: the best checkpoint that was evaluated is named, kept beside the newest, and found again") {
        const Bench bench;
        // What is learnt, that always the same token follows, is ever more wrong for another one.
        write_token_file(bench.dir.path / "train.bin", std::vector<uint32_t>(9 * 24 + 1, 5));
        write_token_file(bench.dir.path / "val.bin", std::vector<uint32_t>(9 * 3 + 1, 9));
        Flags flags = {{"--learning-rate", "0.1"},
                       {"--warmup-steps", "1"},
                       {"--max-steps", "7"},
                       {"--save-steps", "1"},
                       {"--save-total-limit", "2"},
                       {"--eval-steps", "2"},
                       {"--val-data", (bench.dir.path / "val.bin").string()}};
        const Program whole = bench.run("whole", flags);
        REQUIRE(whole.error == "");
        const auto losses = evals_of(bench.run_dir("whole"));  // of steps 0, 2, 4, 6, 7
        REQUIRE(losses.size() == 5);
        const size_t best = static_cast<size_t>(std::min_element(losses.begin() + 1, losses.end()) - losses.begin());
        const size_t best_step = std::min<size_t>(2 * best, 7);
        const std::string name = "checkpoint-" + std::to_string(best_step);
        // Which one it is depends on the machine's roundings; kept it is beside the newest two, or as one of them.
        const std::set<std::string> kept = {"adapter_config.json",
                                            "adapter_model.safetensors",
                                            name,
                                            "checkpoint-6",
                                            "checkpoint-7",
                                            "config.toml",
                                            "log.jsonl",
                                            "slabstream.json"};
        CHECK(names_in(bench.run_dir("whole")) == std::vector<std::string>(kept.begin(), kept.end()));
        const auto state_of = [&](const std::string& run, const std::string& checkpoint) {
            return json::parse(content(bench.run_dir(run) / checkpoint / "trainer_state.json"));
        };
        for (const std::string& checkpoint : {name, std::string("checkpoint-7")}) {
            CHECK(state_of("whole", checkpoint)["best_metric"] == losses[best]);
            CHECK(state_of("whole", checkpoint)["best_global_step"] == 2 * best);
            CHECK(state_of("whole", checkpoint)["best_model_checkpoint"] == (bench.run_dir("whole") / name).string());
        }
        CHECK(has(whole.out, "best checkpoint: " + (bench.run_dir("whole") / name).string() + ", validation loss "));
        CHECK(event_of(bench.run_dir("whole"), "end")["best_metric"] == losses[best]);

        // What a kill between saving and pruning left over goes when the run is taken up again.
        Flags again = flags;
        again["--resume-from-checkpoint"] = "last";
        fs::copy(bench.run_dir("whole") / "checkpoint-6", bench.run_dir("whole") / "checkpoint-1");
        bench.run_well("whole", again);
        CHECK(names_in(bench.run_dir("whole")) == std::vector<std::string>(kept.begin(), kept.end()));

        // Stopped, moved and resumed: the same best, under its new name; and "before" is still the run's beginning.
        InterruptAfter screen("eval 6/7");
        std::ostream out(&screen);
        REQUIRE(run_train_gpt(bench.arguments("stopped", flags), screen.stop, out).code == 130);
        fs::rename(bench.run_dir("stopped"), bench.run_dir("moved"));
        const Program resumed = bench.run("moved", again);
        CHECK(resumed.error == "");
        CHECK(state_of("moved", "checkpoint-7")["best_metric"] == losses[best]);
        CHECK(has(resumed.out, "best checkpoint: " + (bench.run_dir("moved") / name).string()));
        const std::string before = whole.out.substr(whole.out.find("validation loss "));
        CHECK(has(resumed.out, before.substr(0, before.find('\n'))));
        CHECK(names_in(bench.run_dir("moved")) == names_in(bench.run_dir("whole")));

        // Other validation rows, or a best checkpoint that is gone: nothing is claimed.
        fs::remove_all(bench.run_dir("moved") / name);
        const Program gone = bench.run("moved", again);
        CHECK(gone.error == "");
        CHECK_FALSE(has(gone.out, "best checkpoint"));
        write_tiny_tokens(bench.dir.path / "other.bin", bench.base.config.V, 9 * 5 + 1, 2);
        again["--val-data"] = (bench.dir.path / "other.bin").string();
        fs::remove_all(bench.run_dir("whole") / "checkpoint-7");
        const Program other = bench.run("whole", again);
        CHECK(other.error == "");
        CHECK(has(other.out, " at step 6, "));
        CHECK(has(other.out, "best checkpoint: " + (bench.run_dir("whole") / "checkpoint-7").string()));

        // Stopped while it evaluates, in mid-run or at the end, whose checkpoint is then made without: it is made good.
        // The first is the best on rows that it unlearns, the last on those that it learns.
        for (const auto& [step, code, val] : {std::tuple{2, 130, "val.bin"}, std::tuple{7, 0, "train.bin"}}) {
            CAPTURE(step);
            const std::string run = "evaluating" + std::to_string(step), unbroken = run + "_unbroken";
            flags["--val-data"] = again["--val-data"] = (bench.dir.path / val).string();
            bench.run_well(unbroken, flags);
            const json want = state_of(unbroken, "checkpoint-7");
            CHECK(want["best_global_step"] == step);
            InterruptAfter evaluating("step " + std::to_string(step) + "/7");
            std::ostream screen_of_it(&evaluating);
            REQUIRE(run_train_gpt(bench.arguments(run, flags), evaluating.stop, screen_of_it).code == code);
            REQUIRE(has(evaluating.str(), "note: the evaluation at step " + std::to_string(step) + " was interrupted"));
            bench.run_well(run, again);
            const json got = state_of(run, "checkpoint-7");
            CHECK(got["best_metric"] == want["best_metric"]);
            CHECK(got["best_global_step"] == step);
            CHECK(has(got["best_model_checkpoint"].get<std::string>(), run + "/checkpoint-"));
            CHECK(names_in(bench.run_dir(run)) == names_in(bench.run_dir(unbroken)));
        }
    }

    TEST_CASE(
        "training: a step interrupted between its micro-batches, or short of data, is dropped and changes no bit") {
        const TinyBase base("llama", 4);
        for (const ModelSettings& settings :
             {tiny_settings(0.2f), streamed(tiny_settings(0.2f), 1, 2), streamed(tiny_full_settings(2), 1, 2)}) {
            TinyRun plain(base, settings), run(base, settings);
            const Outcome want = train_steps(plain, 3, 4);
            Outcome got;
            train_steps(got, run, 0, 1, 4);
            const std::vector<MicroBatch> data = tiny_step_data(base.config, 1, 4);
            uint64_t counted = 0, made = 0;
            StepData step{.micro_batches = 4,
                          .tokens = 0,
                          .target_count =
                              [&](uint64_t i) {
                                  ++counted;
                                  return data[i].target_count();
                              },
                          .batch =
                              [&](uint64_t i) {
                                  ++made;
                                  return data[i];
                              }};
            for (const uint64_t times : {0, 2, 4, 5, 7}) {  // four questions while targets are counted, then four more
                counted = made = 0;
                std::atomic<int64_t> questions{static_cast<int64_t>(times) + 1};
                CHECK_FALSE(run.loop.enqueue(step, tiny_step(), data::StopToken(questions)).has_value());
                CHECK(counted == std::min<uint64_t>(times, 4));
                CHECK(counted + made == times);
                CHECK(run.loop.pending() == 0);
            }
            made = 0;
            step.batch = [&](uint64_t i) {
                if (++made == 3) throw std::runtime_error("no more data");
                return data[i];
            };
            CHECK_THROWS_AS(run.loop.enqueue(step, tiny_step(), {}), std::runtime_error);
            CHECK(made == 3);
            CHECK(run.loop.pending() == 0);
            step.batch = [&](uint64_t i) { return data[i]; };
            step.target_count = [&](uint64_t i) { return data[i].target_count() + (i == 3); };
            CHECK_THROWS_AS(run.loop.enqueue(step, tiny_step(), {}), std::logic_error);  // a wrong count
            train_steps(got, run, 1, 2, 4);
            CHECK(first_difference(run.layout.trained, got, want) == "");
        }
    }

    TEST_CASE(
        "training: a run that is over says so when it is taken up again, and its samples are called what they are") {
        ModelConfig config = tiny_config("llama", 4);
        config.V = 260;  // bytes
        const Bench bench(config);
        const Flags usual = {{"--max-steps", "4"},    {"--save-steps", "2"}, {"--eval-steps", "2"},
                             {"--val-set-size", "3"}, {"--sample", "Once"},  {"--sample-tokens", "3"}};
        const auto again = [&](const std::string& name, Flags flags = {}) {
            flags.insert(usual.begin(), usual.end());
            flags["--resume-from-checkpoint"] = "last";
            const Program program = bench.run(name, flags);
            CHECK(program.error == "");
            CHECK(program.code == 0);
            return program.out;
        };
        const auto files_of = [&](const std::string& name) {
            std::map<std::string, std::pair<std::string, fs::file_time_type>> files;
            for (const auto& entry : fs::recursive_directory_iterator(bench.run_dir(name)))
                if (entry.is_regular_file())
                    files[entry.path().string()] = {content(entry.path()), fs::last_write_time(entry.path())};
            return files;
        };
        const auto check_over = [&](const std::string& name, const Flags& flags) {
            const auto before = files_of(name);
            const std::string out = again(name, flags);
            CHECK(has(out, "nothing is left to do: the run in " + bench.run_dir(name).string() +
                               " ended after step 4, its result is "));
            for (const char* work : {"loaded in", "eval ", "sample ", "wrote "}) CHECK_FALSE(has(out, work));
            CHECK((files_of(name) == before));
        };
        bench.run_well("a", usual);
        check_over("a", {});
        check_over("a", {{"--layer-offloading", ""}});
        // Another prompt is no repetition, and what answers it is the trained model.
        std::string out = again("a", {{"--sample", "Twice"}});
        CHECK(has(out, "sample at step 4: Twice|"));
        CHECK_FALSE(has(out, "sample before"));
        CHECK_FALSE(has(out, "sample after"));
        check_over("a", {{"--sample", "Twice"}});
        for (const Flags& other : {Flags{{"--sample-tokens", "2"}}, Flags{{"--sample-temperature", "0.5"}}}) {
            CHECK(has(again("a", other), "sample at step 4: Once|"));
            check_over("a", other);
        }
        // A result that is gone comes back, and so does one that a kill before the end had kept from being written.
        const std::string adapter = bench.adapter("a"), log = content(bench.run_dir("a") / "log.jsonl");
        fs::remove(bench.run_dir("a") / "adapter_model.safetensors");
        again("a");
        CHECK(bench.adapter("a") == adapter);
        put(bench.run_dir("a") / "log.jsonl", log.substr(0, log.find("{\"best_metric\"")));
        CHECK_FALSE(has(again("a"), "nothing is left to do"));
        fs::remove(bench.run_dir("a") / "adapter_config.json");
        again("a");
        CHECK(fs::exists(bench.run_dir("a") / "adapter_config.json"));
        // A sample that was cut off is not the one that was asked for.
        std::string cut = content(bench.run_dir("a") / "log.jsonl");
        for (size_t at = 0; (at = cut.find("\"ended\":\"", at)) != std::string::npos; ++at)
            cut.replace(at + 9, cut.find('"', at + 9) - (at + 9), "interrupted");
        put(bench.run_dir("a") / "log.jsonl", cut);
        CHECK(has(again("a"), "sample at step 4: Once|"));

        InterruptAfter screen("step 1/4");
        std::ostream to_screen(&screen);
        REQUIRE(run_train_gpt(bench.arguments("b", usual), screen.stop, to_screen).code == 130);
        CHECK(has(screen.str(), "sample before: Once|"));
        out = again("b");
        CHECK(has(out, "sample at step 2: Once|"));
        CHECK_FALSE(has(out, "sample before"));
        CHECK(has(out, "sample after: Once|"));
        CHECK(has(content(bench.run_dir("b") / "log.jsonl"), "\"when\":\"at step 2\""));
        check_over("b", {});

        bench.run_well("c", {{"--adapter", "none"}, {"--max-steps", "2"}});
        const Program over =
            bench.run("c", {{"--adapter", "none"}, {"--max-steps", "2"}, {"--resume-from-checkpoint", "last"}});
        CHECK(has(over.out, "nothing is left to do"));
        CHECK(has(over.out, "model.safetensors"));
    }

    TEST_CASE("training: a run that is over is evaluated on other validation data, of the same name and size too") {
        const Bench bench;
        const fs::path val = bench.dir.path / "val.bin";
        write_tiny_tokens(val, bench.base.config.V, 9 * 3 + 1, 2, 3);
        const Flags flags = {{"--max-steps", "2"}, {"--val-data", val.string()}};
        bench.run_well("a", flags);
        Flags again = flags;
        again["--resume-from-checkpoint"] = "last";
        CHECK(has(bench.run("a", again).out, "nothing is left to do"));
        write_tiny_tokens(val, bench.base.config.V, 9 * 3 + 1, 3, 3);
        const Program other = bench.run("a", again);
        CHECK(other.error == "");
        CHECK(has(other.out, "eval "));
        write_tiny_tokens(val, bench.base.config.V, 9 * 3 + 1, 2, 3);
        CHECK(has(bench.run("a", again).out, "nothing is left to do"));
    }

    TEST_CASE("training: a checkpoint that is refused leaves no empty run directory") {
        const Bench bench;
        bench.run_well("a", {{"--max-steps", "2"}});
        const std::string from = (bench.run_dir("a") / "checkpoint-2").string();
        const Program refused = bench.run("new/run", {{"--resume-from-checkpoint", from}, {"--learning-rate", "0.5"}});
        CHECK(refused.code == 1);
        CHECK(has(refused.error, "learning-rate"));
        CHECK_FALSE(fs::exists(bench.dir.path / "new"));
    }

    TEST_CASE(
        "training: a refusal to go on names the flags that were given otherwise, and not what follows from them") {
        const Bench bench;
        const Flags usual = {{"--max-steps", "0"}};
        bench.run_well("a", usual);
        const auto error_with = [&](Flags flags) {
            flags.insert(usual.begin(), usual.end());
            flags["--resume-from-checkpoint"] = "last";
            const Program program = bench.run("a", flags);
            CHECK(program.code == 1);
            return program.error;
        };
        const std::string batch = error_with({{"--micro-batch-size", "1"}});
        CHECK(has(batch, "the run was made with --micro-batch-size 2, this one has 1. Hint: resume"));
        CHECK_FALSE(has(batch, "--max-steps"));
        const std::string longer = error_with({{"--sequence-len", "12"}, {"--seed", "7"}});
        CHECK(has(longer, "--seed 42, this one has 7"));
        CHECK(has(longer, "--sequence-len 9, this one has 12"));
        CHECK_FALSE(has(longer, "rows of"));
        CHECK_FALSE(has(longer, "--max-steps"));
        CHECK(has(error_with({{"--num-epochs", "2"}}),
                  "the run was made with --max-steps (or --num-epochs) 6, this one has 12"));
        const std::string fewer = error_with({{"--val-set-size", "4"}});
        CHECK(has(fewer, "the rows of --train-data were 24, this one has 20"));
        CHECK_FALSE(has(fewer, "--max-steps"));
        write_tiny_tokens(bench.dir.path / "train.bin", bench.base.config.V, 9 * 30 + 1, 2);
        const std::string data = error_with({});
        CHECK(has(data, "the data of --train-data has changed"));
        CHECK_FALSE(has(data, "--max-steps"));
        CHECK_FALSE(has(data, "rows of"));
    }

    TEST_CASE("training: going on with another base of the same shape is refused, and without knowing it is said") {
        const Bench bench;
        bench.run_well("a", {{"--max-steps", "2"}});
        const Flags on = {{"--max-steps", "2"}, {"--resume-from-checkpoint", "last"}};
        bench.run_well("a", on);
        write_tiny_model(bench.base.files.path, bench.base.config,
                         [](const TensorSpec& spec, std::vector<float>& values) {
                             if (spec.role == Role::down_weight)
                                 for (float& x : values) x = -x;
                         });
        CHECK(has(bench.run("a", on).error, "made on another base model than --base-model now names"));
        const fs::path state = bench.run_dir("a") / "checkpoint-2" / "trainer_state.json";
        json j = json::parse(content(state));
        j.erase("base_model_fingerprint");
        put(state, j.dump());
        const Program earlier = bench.run("a", on);
        CHECK(earlier.code == 0);
        CHECK(has(earlier.out, "does not say which base model it was made on"));
    }

    TEST_CASE("training: an interrupted evaluation stops at once and reports nothing") {
        const TinyBase base("llama", 2);
        TinyRun run(base, streamed(tiny_settings(), 1, 2));
        uint64_t made = 0;
        std::atomic<bool> three_made{false}, at_once{true};
        const auto batch = [&](uint64_t i) {
            CHECK(i == made++);
            three_made = made == 3;
            return tiny_batch(base.config, {}, static_cast<unsigned>(i));
        };
        CHECK_FALSE(run.loop.evaluate(1000, batch, data::StopToken(three_made)).has_value());
        CHECK(made == 3);
        CHECK_FALSE(run.loop.evaluate(5, batch, data::StopToken(at_once)).has_value());
        CHECK(made == 3);
        made = 0;
        CHECK(run.loop.evaluate(3, batch, {}).has_value());
        run.loop.enqueue(tiny_step_data(base.config, 0, 2), tiny_step());  // and training goes on
        CHECK(std::isfinite(run.loop.collect().loss));

        const Bench bench;
        InterruptAfter screen("loaded in ");
        std::ostream out(&screen);
        CHECK(run_train_gpt(bench.arguments("a", {{"--val-set-size", "3"}}), screen.stop, out).code == 130);
        CHECK(has(screen.str(), "note: the evaluation at step 0 was interrupted"));
        CHECK(evals_of(bench.run_dir("a")).empty());
    }

    TEST_CASE("training: resuming takes --lora-target-modules in any order, but no other base or start") {
        const Bench bench;
        bench.run_well("a", {{"--lora-target-modules", "q_proj,v_proj"}, {"--save-steps", "2"}, {"--max-steps", "4"}});
        fs::remove_all(bench.run_dir("a") / "checkpoint-4");
        Program program = bench.run("a", {{"--lora-target-modules", "v_proj,q_proj"},
                                          {"--max-steps", "4"},
                                          {"--from-scratch", ""},
                                          {"--resume-from-checkpoint", "last"}});
        CHECK(program.code == 1);
        CHECK(has(program.error, "--from-scratch"));
        bench.run_well(
            "a",
            {{"--lora-target-modules", "v_proj,q_proj"}, {"--max-steps", "4"}, {"--resume-from-checkpoint", "last"}});
    }

    TEST_CASE("training: a base that is written to while layers of it are frozen costs no step") {
        const Bench bench;
        const Flags usual = {{"--freeze-layers", "2"}, {"--save-steps", "4"}, {"--save-total-limit", "1"}};
        bench.run_well("plain", usual);
        const fs::path base = bench.base.files.path / "model.safetensors";
        DoAfter screen("step 1/",
                       [&] { fs::last_write_time(base, fs::last_write_time(base) + std::chrono::seconds(5)); });
        std::ostream out(&screen);
        const Program program = run_train_gpt(bench.arguments("a", usual), {}, out);
        const fs::path last = bench.run_dir("a") / "checkpoint-5";
        CHECK(program.code == 1);
        for (const std::string& part :
             {std::string("the result was not written: "), base.string(), "The last checkpoint is " + last.string(),
              std::string("--resume-from-checkpoint last")})
            CHECK(has(program.error, part));
        for (const char* step : {"4", "5"})
            CHECK(has(screen.str(), std::string("note: checkpoint-") + step + " has the trained tensors alone"));
        CHECK(names_in(last) ==
              std::vector<std::string>{"model.safetensors", "optimizer.safetensors", "trainer_state.json"});
        CHECK(names_in(bench.run_dir("a")) == std::vector<std::string>{"checkpoint-5", "config.toml", "log.jsonl"});
        Flags again = usual;
        again["--resume-from-checkpoint"] = "last";
        bench.run_well("a", again);
        CHECK(bench.model("a") == bench.model("plain"));
        CHECK(content(last / "optimizer.safetensors") ==
              content(bench.run_dir("plain") / "checkpoint-5" / "optimizer.safetensors"));
    }

    TEST_CASE("training: a save that fails says how to go on") {
        const Bench bench;
        const fs::path way = bench.run_dir("a") / "checkpoint-4";
        DoAfter screen("step 3/", [&] { put(way, "in the way"); });
        std::ostream out(&screen);
        Program program = run_train_gpt(bench.arguments("a", {{"--save-steps", "2"}}), {}, out);
        CHECK(program.code == 1);
        CHECK(has(program.error, "the checkpoint of step 4 was not saved: "));
        CHECK(has(program.error,
                  "Hint: give another name. The last checkpoint is " + (bench.run_dir("a") / "checkpoint-2").string()));
        CHECK(has(program.error, "--resume-from-checkpoint last"));
        fs::remove(way);
        bench.run_well("a", {{"--save-steps", "2"}, {"--resume-from-checkpoint", "last"}});

        // Log and checkpoint on one disk that is full.
        std::optional<SmallDisk> disk;
        DoAfter filling("step 1/", [&] { disk.emplace(fs::file_size(bench.run_dir("b") / "log.jsonl")); });
        std::ostream to_filling(&filling);
        program = run_train_gpt(bench.arguments("b", {}), {}, to_filling);
        disk.reset();
        CHECK(program.code == 1);
        CHECK(has(program.error, "is the disk full? The run ends after step "));
        CHECK(has(program.error, "was not saved: "));
        CHECK(has(program.error, ". No checkpoint is saved"));
    }

    TEST_CASE("training: drawn weights of another shape are another base") {
        const Bench bench;
        const Flags flags = {{"--from-scratch", ""}, {"--lora-target-modules", "q_proj,v_proj"}, {"--max-steps", "2"}};
        bench.run_well("a", flags);
        const fs::path config = bench.base.files.path / "config.json";
        json j = json::parse(content(config));
        j["intermediate_size"] = j["intermediate_size"].get<int>() + 8;
        put(config, j.dump());
        Flags again = flags;
        again["--resume-from-checkpoint"] = "last";
        CHECK(has(bench.run("a", again).error, "made on another base model"));
    }
}
