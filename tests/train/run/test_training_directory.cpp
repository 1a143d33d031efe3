// Whose files a run writes over: its own, and nobody else's, whatever they are called and however they are reached.
#include "data/base/file_lock.h"
#include "tests/training_bench.h"

using namespace slab;
using namespace slab::train;
using namespace slab::test;
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// The run is refused, its message has `why`, and everything in its directory and `file` is as it was.
void check_refused(const Bench& bench, const std::string& name, const Flags& flags, const std::string& why,
                   const fs::path& file = {}) {
    const auto names_there = [&] {
        return fs::exists(bench.run_dir(name)) ? names_in(bench.run_dir(name)) : std::vector<std::string>{};
    };
    const auto names = names_there();
    const std::string before = file.empty() ? "" : content(file);
    const Program program = bench.run(name, flags);
    CAPTURE(program.error);
    CHECK(program.code == 1);
    CHECK(has(program.error, why));
    CHECK(names_there() == names);
    if (!file.empty()) CHECK(content(file) == before);
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("training: --resume-from-checkpoint with nothing there to resume protects as a new run does") {
        const Bench bench;
        const Flags last = {{"--max-steps", "2"}, {"--resume-from-checkpoint", "last"}};
        bench.run_well("a", {{"--max-steps", "2"}});
        bench.run_well("other", {{"--max-steps", "2"}});
        const fs::path adapter = bench.run_dir("a") / "adapter_model.safetensors";
        const fs::path checkpoint = bench.run_dir("a") / "checkpoint-2";
        // A checkpoint without its state is one that somebody may still need.
        fs::rename(checkpoint / "trainer_state.json", bench.dir.path / "state");
        check_refused(bench, "a", last, checkpoint.string() + ": has no trainer_state.json", adapter);
        check_refused(bench, "a", {{"--max-steps", "2"}}, checkpoint.string() + ": has no trainer_state.json", adapter);
        fs::rename(bench.dir.path / "state", checkpoint / "trainer_state.json");
        fs::create_directory(bench.run_dir("a") / "checkpoint-1");  // behind the one to go on from, and not touched
        bench.run_well("a", last);
        fs::remove_all(checkpoint);
        fs::remove_all(bench.run_dir("a") / "checkpoint-1");

        check_refused(bench, "a", last, "holds adapter_model.safetensors of an earlier run", adapter);
        const std::string from = (bench.run_dir("other") / "checkpoint-2").string();
        check_refused(bench, "a", {{"--max-steps", "2"}, {"--resume-from-checkpoint", from}},
                      "holds adapter_model.safetensors of an earlier run", adapter);
        // A restart loop's first two starts: into nothing, and into what a run leaves that got to no checkpoint.
        fs::remove(adapter);
        for (const char* name : {"adapter_config.json", "slabstream.json"}) fs::remove(bench.run_dir("a") / name);
        bench.run_well("a", last);
        bench.run_well("loop", last);
    }

    TEST_CASE("training: another model's or adapter's files, and a config that no run wrote, are refused by name") {
        const Bench bench;
        put(bench.base.files.path / "generation_config.json", "{}");
        const auto foreign = [&](const std::string& name, const Flags& flags) {
            CAPTURE(name);
            const fs::path file = bench.run_dir("foreign") / name;
            fs::create_directories(file.parent_path());
            put(file, "{\"mine\": 1}");
            check_refused(bench, "foreign", flags, "holds " + name, file);
            Flags last = flags;
            last["--resume-from-checkpoint"] = "last";
            check_refused(bench, "foreign", last, "holds " + name, file);
            fs::remove_all(bench.run_dir("foreign"));
        };
        const Flags lora = {}, full = {{"--adapter", "none"}}, frozen = {{"--freeze-layers", "1"}};
        for (const char* name : {"model.safetensors.index.json", "config.json", "generation_config.json"}) {
            foreign(name, full);
            foreign(name, frozen);
        }
        for (const char* name :
             {"adapter_config.json", "adapter_model.safetensors", "slabstream.json", "model.safetensors"})
            foreign(name, lora);
        foreign("config.toml", lora);
        foreign("config.toml", full);

        const fs::path own = bench.run_dir("own") / "config.toml";  // read by --config and about to be written
        fs::create_directories(own.parent_path());
        put(own, "lora-r = 2  # why: a note of mine\n");
        check_refused(bench, "own", {{"--config", own.string()}}, "holds config.toml that no run wrote", own);
        const fs::path elsewhere = bench.dir.path / "mine.toml";
        fs::rename(own, elsewhere);
        Flags from_own = {{"--config", elsewhere.string()}, {"--max-steps", "1"}};
        bench.run_well("own", from_own);
        // What a run wrote may name itself, as a restart does.
        fs::remove_all(bench.run_dir("own") / "checkpoint-1");
        for (const char* name : {"adapter_model.safetensors", "adapter_config.json", "slabstream.json"})
            fs::remove(bench.run_dir("own") / name);
        from_own["--config"] = own.string();
        bench.run_well("own", from_own);
    }

    TEST_CASE("training: --log and --trace are neither the data, nor each other, nor what else the run writes") {
        const Bench bench;
        put(bench.dir.path / "records.jsonl",
            "{\"step\": 1, \"event\": \"start\", \"max_steps\": 2, \"text\": \"ab\"}\n");
        fs::create_symlink("records.jsonl", bench.dir.path / "link.jsonl");
        fs::create_hard_link(bench.dir.path / "records.jsonl", bench.dir.path / "hard.jsonl");
        for (const char* data : {"--train-data", "--val-data"})
            for (const char* name : {"records.jsonl", "link.jsonl", "hard.jsonl", "../", "./records.jsonl"}) {
                const fs::path file = std::string(name) == "../"
                                          ? bench.dir.path / ".." / bench.dir.path.filename() / "records.jsonl"
                                          : bench.dir.path / name;
                CAPTURE(file.string());
                check_refused(bench, "a",
                              {{data, (bench.dir.path / "records.jsonl").string()}, {"--log", file.string()}},
                              std::string("is the data of ") + data, bench.dir.path / "records.jsonl");
            }
        put(bench.dir.path / "events.jsonl", "{\"event\": \"a birth\", \"step\": 3}\n");
        check_refused(bench, "a", {{"--log", (bench.dir.path / "events.jsonl").string()}}, "is no log of a run",
                      bench.dir.path / "events.jsonl");
        // Without --log there is no other file to name.
        fs::create_directory(bench.run_dir("notes"));
        const fs::path notes = bench.run_dir("notes") / "log.jsonl";
        put(notes, "my notes\n");
        check_refused(
            bench, "notes", {},
            "--output-dir " + bench.run_dir("notes").string() +
                ": its log.jsonl is no log of a run, which would be overwritten. Hint: give another directory",
            notes);

        const std::string both = (bench.dir.path / "both").string();
        check_refused(bench, "a", {{"--log", both}, {"--trace", both}}, "is the log, which would be overwritten");
        CHECK_FALSE(fs::exists(both));
        for (const char* flag : {"--log", "--trace"})
            for (const char* name : {"adapter_model.safetensors", "adapter_config.json", "config.toml", "config.json",
                                     "model.safetensors", "checkpoint-5", "checkpoint-5/x"}) {
                CAPTURE(flag);
                CAPTURE(name);
                check_refused(bench, "a", {{flag, (bench.run_dir("a") / name).string()}},
                              "the place of the run's own ");
                CHECK_FALSE(fs::exists(bench.run_dir("a")));
            }
        check_refused(bench, "a", {{"--trace", (bench.run_dir("a") / "log.jsonl").string()}},
                      "the place of the run's own ");
        // Places of their own in the run directory stay good, the log's usual one too.
        const Flags beside = {{"--log", (bench.run_dir("a") / "log.jsonl").string()},
                              {"--trace", (bench.run_dir("a") / "trace.json").string()},
                              {"--trace-steps", "1:2"},
                              {"--max-steps", "2"}};
        bench.run_well("a", beside);
        Flags again = beside;
        again["--resume-from-checkpoint"] = "last";
        bench.run_well("a", again);

        // config.toml begins another run without touching the log and the trace of this one.
        const std::string log = content(bench.run_dir("a") / "log.jsonl");
        const Program repeated =
            run_train_gpt({"--config", (bench.run_dir("a") / "config.toml").string(), "--output-dir",
                           bench.run_dir("b").string(), "--resume-from-checkpoint", "last"});
        CHECK(repeated.error == "");
        CHECK(content(bench.run_dir("a") / "log.jsonl") == log);
        CHECK(steps_of(bench.run_dir("b")).size() == 2);
        CHECK(bench.adapter("a") == bench.adapter("b"));
    }

    TEST_CASE("training: a log or a trace of another run, or one that cannot be read, is refused") {
        const Bench bench;
        const fs::path log = bench.dir.path / "log.jsonl", trace = bench.dir.path / "trace.json";
        const Flags traced = {{"--log", log.string()},
                              {"--trace", trace.string()},
                              {"--trace-steps", "1:2"},
                              {"--max-steps", "2"},
                              {"--save-steps", "1"}};
        bench.run_well("a", traced);
        for (const char* flag : {"--log", "--trace"}) {
            CAPTURE(flag);
            const fs::path file = traced.at(flag);
            const std::string is = file.string() + ": is the " + (flag + 2) + " of another run, in ";
            Flags flags = {{flag, file.string()}};
            check_refused(bench, "b", flags, is + bench.run_dir("a").string(), file);
            CHECK_FALSE(fs::exists(bench.run_dir("b")));
            for (const std::string& from : {std::string("last"), (bench.run_dir("a") / "checkpoint-1").string()}) {
                flags = {{flag, file.string()}, {"--max-steps", "2"}, {"--resume-from-checkpoint", from}};
                check_refused(bench, "b", flags, is, file);
            }
            // By another name, or beside the runs: the log of a run lies in the directory of this one.
            fs::create_symlink(file, bench.dir.path / "link");
            check_refused(bench, "b", {{flag, (bench.dir.path / "link").string()}}, "of another run", file);
            fs::remove(bench.dir.path / "link");
            flags = {{flag, file.string()}, {"--output-dir", bench.dir.path.string()}};
            check_refused(bench, "b", flags, "of another run", file);

            fs::permissions(bench.dir.path, fs::perms::all);
            fs::permissions(file, fs::perms(0222));
            const fs::path base = bench.base.files.path;
            fs::permissions(base, fs::perms::all);
            const std::string before = content(file);
            {
                const NoRoot nobody;
                CHECK(has(bench.run("b", {{flag, file.string()}}).error, "Permission denied"));
            }
            fs::permissions(file, fs::perms(0644));
            CHECK(content(file) == before);
        }
        const std::string usual = (bench.run_dir("c") / "log.jsonl").string();
        bench.run_well("c", {{"--max-steps", "1"}});
        check_refused(bench, "d", {{"--log", usual}}, "is the log of another run", usual);

        // The run itself goes on with both; moved together with them, too.
        Flags again = traced;
        again["--resume-from-checkpoint"] = "last";
        fs::remove_all(bench.run_dir("a") / "checkpoint-2");
        const std::string first_boxes = content(trace);
        bench.run_well("a", again);
        CHECK(content(trace) != first_boxes);
        fs::create_directory(bench.dir.path / "moved");
        for (const char* name : {"a", "log.jsonl", "trace.json"})
            fs::rename(bench.dir.path / name, bench.dir.path / "moved" / name);
        again["--log"] = (bench.dir.path / "moved" / "log.jsonl").string();
        again["--trace"] = (bench.dir.path / "moved" / "trace.json").string();
        again["--trace-steps"] = "2:2";
        fs::remove_all(bench.dir.path / "moved" / "a" / "checkpoint-2");
        bench.run_well("moved/a", again);
        // The same names again, but the run that they are of is elsewhere by now.
        fs::rename(bench.dir.path / "moved" / "a", bench.dir.path / "moved" / "elsewhere");
        for (const char* from : {"", "last"}) {
            Flags anew = {{"--log", again.at("--log")}, {"--max-steps", "2"}};
            if (*from) anew["--resume-from-checkpoint"] = from;
            check_refused(bench, "moved/a", anew, *from ? "holds nothing any more" : "of an earlier run into",
                          again.at("--log"));
        }
        // Of an earlier version, which did not say whose they are.
        json line = json::parse(content(again.at("--log")).substr(0, content(again.at("--log")).find('\n')));
        line.erase("output_dir");
        put(log, line.dump() + "\n");
        check_refused(bench, "d", {{"--log", log.string()}}, "earlier version", log);
        put(trace, "{\n \"displayTimeUnit\": \"ms\",\n \"traceEvents\": []\n}\n");
        check_refused(bench, "d", {{"--trace", trace.string()}}, "earlier version", trace);
        fs::create_directory(bench.run_dir("d"));
        fs::rename(log, bench.run_dir("d") / "log.jsonl");
        bench.run_well("d", {{"--max-steps", "1"}});
    }

    TEST_CASE("training: two runs do not write one log or one trace") {
        const Bench bench;
        const fs::path log = bench.dir.path / "log.jsonl", trace = bench.dir.path / "trace.json";
        {
            const data::FileLock other(log, "its log");
            check_refused(bench, "a", {{"--log", log.string()}}, "another run is writing its log");
        }
        const std::string boxes =
            "{\n \"displayTimeUnit\": \"ms\",\n \"otherData\": {\n  \"output_dir\": \"b\"\n },\n \"traceEvents\": "
            "[]\n}\n";
        DoAfter screen("step 1/", [&] { put(trace, boxes); });
        std::ostream out(&screen);
        const Program program =
            run_train_gpt(bench.arguments("a", {{"--trace", trace.string()}, {"--trace-steps", "3:3"}}), {}, out);
        CHECK(program.code == 1);
        CHECK(has(program.error, "is the trace of another run, in " + bench.run_dir("b").string()));
        CHECK(has(program.error, "a checkpoint is saved"));
        CHECK(content(trace) == boxes);
    }

    TEST_CASE("training: resuming from elsewhere leaves another run's checkpoints alone") {
        const Bench bench;
        bench.run_well("a", {{"--save-steps", "3"}, {"--max-steps", "6"}});
        bench.run_well("b", {{"--seed", "2"}, {"--save-steps", "1"}, {"--max-steps", "2"}});
        for (const char* name : {"adapter_model.safetensors", "adapter_config.json"})
            fs::remove(bench.run_dir("b") / name);
        Flags flags = {{"--max-steps", "6"},
                       {"--save-total-limit", "1"},
                       {"--resume-from-checkpoint", (bench.run_dir("a") / "checkpoint-3").string()}};
        check_refused(bench, "b", flags, "holds checkpoint-2 of another run than ", bench.run_dir("b") / "config.toml");
        CHECK(fs::exists(bench.run_dir("b") / "checkpoint-1" / "trainer_state.json"));
        // Nor do those of a run further down make a directory this run's.
        flags["--output-dir"] = bench.run_dir("b").string();
        fs::rename(bench.run_dir("a"), bench.run_dir("b") / "a");
        flags["--resume-from-checkpoint"] = (bench.run_dir("b") / "a" / "checkpoint-3").string();
        check_refused(bench, "b", flags, "holds checkpoint-2 of another run than ", bench.run_dir("b") / "config.toml");
        bench.run_well("c", {{"--max-steps", "6"}, {"--resume-from-checkpoint", flags.at("--resume-from-checkpoint")}});
    }
}
