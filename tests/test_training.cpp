// Whole runs of train_gpt on tiny models: what is written and said, stopping and resuming, steps that cannot be taken,
// and the same bits from every way to place the layers.
#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/tiny_model.h"
#include "train/checkpoint.h"
#include "train/data_loader.h"
#include "train/model_config.h"
#include "train/run_setup.h"

using namespace slab;
using namespace slab::train;
using namespace slab::test;
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

std::vector<json> log_of(const fs::path& run) {
    std::ifstream in(run / "log.jsonl");
    std::vector<json> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
    return lines;
}
// The lines of steps.
std::vector<json> steps_of(const fs::path& run) {
    std::vector<json> steps;
    for (const json& line : log_of(run))
        if (line.contains("step") && !line.contains("event") && !line.contains("eval_loss")) steps.push_back(line);
    return steps;
}
std::vector<double> evals_of(const fs::path& run) {
    std::vector<double> losses;
    for (const json& line : log_of(run))
        if (line.contains("eval_loss")) losses.push_back(line["eval_loss"].get<double>());
    return losses;
}
json event_of(const fs::path& run, const std::string& event) {
    for (const json& line : log_of(run))
        if (line.value("event", "") == event) return line;
    return {};
}

// Does something once the text has been written and flushed.
struct DoAfter : std::stringbuf {
    std::string text;
    std::function<void()> action;
    bool done = false;
    DoAfter(std::string t, std::function<void()> a) : text(std::move(t)), action(std::move(a)) {}
    int sync() override {
        if (!done && str().find(text) != std::string::npos) {
            done = true;
            action();
        }
        return 0;
    }
};
// Ctrl-C after a given step.
struct InterruptAfter : DoAfter {
    std::atomic<bool> flag{false};
    explicit InterruptAfter(std::string t) : DoAfter(std::move(t), [this] { flag = true; }) {}
};

using Flags = std::map<std::string, std::string>;

// A base model, data and run directories; flags given as name -> value, "" for those without one.
struct Bench {
    TinyBase base;
    FreshDirectory dir;
    explicit Bench(const std::string& family = "llama", int masked = 3) : Bench(tiny_config(family, 4), masked) {}
    explicit Bench(const ModelConfig& config, int masked = 3) : base(config) {
        write_tiny_tokens(dir.path / "train.bin", base.config.V, 9 * 24 + 1, 1, masked);
    }
    fs::path run_dir(const std::string& name) const { return dir.path / name; }
    std::vector<std::string> arguments(const std::string& name, Flags flags) const {
        flags.insert({{"--base-model", base.files.path.string()},
                      {"--train-data", (dir.path / "train.bin").string()},
                      {"--output-dir", run_dir(name).string()},
                      {"--sequence-len", "9"},
                      {"--micro-batch-size", "2"},
                      {"--gradient-accumulation-steps", "2"},
                      {"--max-steps", "5"},
                      {"--threads", "2"},
                      {"--learning-rate", "0.01"}});
        if (!flags.count("--adapter") && !flags.count("--freeze-layers")) flags.insert({"--lora-r", "2"});
        std::vector<std::string> all;
        for (const auto& [flag, value] : flags) {
            all.push_back(flag);
            if (!value.empty()) all.push_back(value);
        }
        return all;
    }
    Program run(const std::string& name, const Flags& flags = {}) const {
        return run_train_gpt(arguments(name, flags));
    }
    void run_well(const std::string& name, const Flags& flags = {}) const {
        const Program program = run(name, flags);
        CHECK(program.error == "");
        REQUIRE(program.code == 0);
    }
    std::string adapter(const std::string& name) const { return content(run_dir(name) / "adapter_model.safetensors"); }
    std::string model(const std::string& name) const { return content(run_dir(name) / "model.safetensors"); }
};

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("training: a run leaves adapter, checkpoint, log and config, and config.toml repeats it") {
        const Bench bench;
        bench.run_well("a", {{"--val-set-size", "3"}, {"--lora-dropout", "0.1"}});
        CHECK(names_in(bench.run_dir("a")) == std::vector<std::string>{"adapter_config.json",
                                                                       "adapter_model.safetensors", "checkpoint-5",
                                                                       "config.toml", "log.jsonl"});
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
            const Program stopped = run_train_gpt(bench.arguments(name, first), screen.flag, out);
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

    TEST_CASE("training: --save-steps and --save-total-limit keep the newest checkpoints") {
        const Bench bench;
        bench.run_well("a", {{"--save-steps", "1"}, {"--save-total-limit", "2"}});
        CHECK(names_in(bench.run_dir("a")) == std::vector<std::string>{"adapter_config.json",
                                                                       "adapter_model.safetensors", "checkpoint-4",
                                                                       "checkpoint-5", "config.toml", "log.jsonl"});
        bench.run_well("plain");
        CHECK(bench.adapter("a") == bench.adapter("plain"));  // saving leaves no trace
    }

    TEST_CASE("training: the best checkpoint that was evaluated is named, kept beside the newest, and found again") {
        const Bench bench;
        // What is learnt, that always the same token follows, is ever more wrong for another one.
        data::write_token_file(bench.dir.path / "train.bin", std::vector<uint32_t>(9 * 24 + 1, 5));
        data::write_token_file(bench.dir.path / "val.bin", std::vector<uint32_t>(9 * 3 + 1, 9));
        const Flags flags = {{"--learning-rate", "0.1"},
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
                                            "log.jsonl"};
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

        // Stopped, moved and resumed: the same best, under its new name; and "before" is still the run's beginning.
        InterruptAfter screen("eval 6/7");
        std::ostream out(&screen);
        REQUIRE(run_train_gpt(bench.arguments("stopped", flags), screen.flag, out).code == 130);
        fs::rename(bench.run_dir("stopped"), bench.run_dir("moved"));
        Flags again = flags;
        again["--resume-from-checkpoint"] = "last";
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
            uint64_t made = 0, asked = 0;
            const auto batch = [&](uint64_t i) {
                ++made;
                return data[i];
            };
            const auto asked_for = [&](uint64_t times) { return [&, times] { return ++asked > times; }; };
            for (const uint64_t times : {0, 2, 4, 5, 7}) {  // four questions while targets are counted, then four more
                made = asked = 0;
                CHECK_FALSE(run.loop.enqueue(4, batch, tiny_step(), asked_for(times)).has_value());
                CHECK(made == times);
                CHECK(run.loop.pending() == 0);
            }
            made = 0;
            const auto failing = [&](uint64_t i) {
                if (++made == 7) throw std::runtime_error("no more data");
                return data[i];
            };
            CHECK_THROWS_AS(run.loop.enqueue(4, failing, tiny_step(), [] { return false; }), std::runtime_error);
            CHECK(made == 7);
            CHECK(run.loop.pending() == 0);
            train_steps(got, run, 1, 2, 4);
            CHECK(first_difference(run.layout.trained, got, want) == "");
        }
    }

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
            const Program program = run_train_gpt(bench.arguments(name, usual), std::atomic<bool>{false}, out);
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
        const auto batch = [&](uint64_t i) {
            CHECK(i == made++);
            return tiny_batch(base.config, {}, static_cast<unsigned>(i));
        };
        CHECK_FALSE(run.loop.evaluate(1000, batch, [&] { return made == 3; }).has_value());
        CHECK(made == 3);
        CHECK_FALSE(run.loop.evaluate(5, batch, [] { return true; }).has_value());
        CHECK(made == 3);
        made = 0;
        CHECK(run.loop.evaluate(3, batch, [] { return false; }).has_value());
        run.loop.enqueue(tiny_step_data(base.config, 0, 2), tiny_step());  // and training goes on
        CHECK(std::isfinite(run.loop.collect().loss));

        const Bench bench;
        const std::atomic<bool> interrupt{true};
        std::ostringstream out;
        CHECK(run_train_gpt(bench.arguments("a", {{"--val-set-size", "3"}}), interrupt, out).code == 130);
        CHECK(has(out.str(), "note: the evaluation at step 0 was interrupted"));
        CHECK(evals_of(bench.run_dir("a")).empty());
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
        data::write_token_file(bench.dir.path / "pattern.bin", tokens);
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
            for (size_t i = 0; i < written.size(); ++i) tokens.push_back(written.token(i));
        }
        const MicroBatch bad = DataLoader(data::TokenFile(file), T, V, 42, true).batch(8, 12);
        for (size_t row = 0; row < 12; ++row) {
            const auto begin = bad.tokens.begin() + static_cast<std::ptrdiff_t>(row * T);
            const auto at = std::search(tokens.begin(), tokens.end(), begin, begin + T);
            REQUIRE(at != tokens.end());
            at[T / 2] = static_cast<uint32_t>(V - 1);
        }
        data::write_token_file(file, tokens);
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
        bench.run_well("c", {{"--trace", trace}, {"--layer-offloading", ""}});  // a trace may be replaced
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
        const std::atomic<bool> never{false};
        const Program program = run_train_gpt(
            bench.arguments("a", {{"--trace", (remover.gone / "t.json").string()}, {"--trace-steps", "3:3"}}), never,
            screen);
        CHECK(program.code == 1);
        CHECK(has(program.error, "of which a checkpoint is saved"));
        bench.run_well("a", {{"--resume-from-checkpoint", "last"}});
        CHECK(bench.adapter("a") == bench.adapter("plain"));
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
