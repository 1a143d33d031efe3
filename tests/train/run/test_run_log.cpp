// The step line and the log: what they say, and what a resumed run keeps of an earlier one.
#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/temporary_files.h"
#include "train/run/run_log.h"
#include "train/spec/text.h"

using namespace slab::train;
using namespace slab::test;
using nlohmann::json;

namespace {

StepReport report_of(int64_t step) {
    StepReport r;
    r.step = step;
    r.total_steps = 600;
    r.epoch = 0.5;
    r.loss = 1.8423;
    r.learning_rate = 1.9e-4;
    r.grad_norm = 0.613;
    r.targets = 4000;
    r.tokens = 4620;
    r.seconds = 2;
    r.left_seconds = 2470;
    r.device_peak_bytes = size_t{27} << 28;    // 6.75 GiB
    r.device_budget_bytes = size_t{23} << 29;  // 11.5 GiB
    r.streaming = true;
    r.slabs_in = 24;
    r.bytes_in = size_t{24} << 27;
    r.link_gbps = 25.04;
    r.wait_ms = 80;
    return r;
}

std::vector<json> lines_of(const std::filesystem::path& file) {
    std::ifstream in(file);
    std::vector<json> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
    return lines;
}

std::vector<int64_t> steps_of(const std::filesystem::path& file) {
    std::vector<int64_t> steps;
    for (const json& line : lines_of(file)) steps.push_back(line.at("step").get<int64_t>());
    return steps;
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("run log: the step line shows rate, memory, what was moved and how long compute waited") {
        StepReport r = report_of(120);
        CHECK(step_line(r) ==
              "step 120/600  loss 1.842  lr 0.00019  gnorm 0.613  2,310 tok/s  VRAM 6.75/11.50 GiB  "
              "moved 24 slabs 3.00 GiB  link 1.6 of 25.0 GB/s  waiting 4%  left 0:41:10");
        r.streaming = false;
        CHECK_FALSE(has(step_line(r), "slabs"));
        CHECK_FALSE(has(step_line(r), "waiting"));
        r.skipped = true;
        CHECK(has(step_line(r), "NOT FINITE: update skipped"));
        r.targets = 0;
        CHECK(step_line(r) == "step 120/600  no targets in this step: skipped");
    }

    TEST_CASE("run log: a step's numbers are in the log, not finite ones by name") {
        const FreshDirectory dir;
        RunLog log(dir.path / "log.jsonl", -1);
        log.step(report_of(1));
        StepReport bad = report_of(2);
        bad.loss = std::nan("");
        bad.grad_norm = INFINITY;
        bad.skipped = true;
        log.step(bad);
        StepReport empty = report_of(3);
        empty.targets = 0;
        log.step(empty);
        const auto lines = lines_of(dir.path / "log.jsonl");
        REQUIRE(lines.size() == 3);
        CHECK(lines[0]["step"] == 1);
        CHECK(lines[0]["loss"] == 1.8423);
        CHECK(lines[0]["learning_rate"] == 1.9e-4);
        CHECK(lines[0]["grad_norm"] == 0.613);
        CHECK(lines[0]["epoch"] == 0.5);
        CHECK(lines[0]["tokens_per_second"] == 2310);
        CHECK(lines[0]["slabs_in"] == 24);
        CHECK(lines[0]["bytes_in"] == size_t{24} << 27);
        CHECK(lines[0]["slabs_out"] == 0);
        CHECK(lines[0]["bytes_out"] == 0);
        CHECK(lines[0]["device_peak_bytes"] == size_t{27} << 28);
        CHECK(lines[0]["waiting"] == doctest::Approx(0.04));
        CHECK_FALSE(lines[0].contains("skipped"));
        CHECK(lines[1]["loss"] == "NaN");
        CHECK(lines[1]["grad_norm"] == "Infinity");
        CHECK(lines[1]["skipped"] == "not finite");
        CHECK(lines[2] == json{{"step", 3}, {"skipped", "no targets"}});
    }

    TEST_CASE("run log: a resumed run drops the lines of later steps and a line cut short, and appends") {
        const FreshDirectory dir;
        const auto file = dir.path / "log.jsonl";
        {
            RunLog log(file, -1);
            log.write({{"event", "start"}, {"step", 0}, {"max_steps", 5}});
            for (int step = 1; step <= 5; ++step) log.step(report_of(step));
            log.write({{"step", 5}, {"eval_loss", 2.5}});
        }
        put(file, content(file) + R"({"step": 6, "loss": 1.)");
        {
            RunLog log(file, 3);
            CHECK(steps_of(file) == std::vector<int64_t>{0, 1, 2, 3});
            log.step(report_of(4));
        }
        CHECK(steps_of(file) == std::vector<int64_t>{0, 1, 2, 3, 4});
        put(file, content(file) + R"({"step": 2})");  // whole, but the kill came before the line's end
        { RunLog log(file, 4); }
        CHECK(steps_of(file) == std::vector<int64_t>{0, 1, 2, 3, 4, 2});
        { RunLog log(file, 0); }
        CHECK(steps_of(file) == std::vector<int64_t>{0});
        { RunLog log(file, -1); }
        CHECK(content(file) == "");  // a new run begins a new log
        // Lines without a step do not outlive the start that they came after.
        const std::string text = R"({"event": "sample", "when": "at step 3"})";
        put(file, R"({"event": "start", "step": 3, "max_steps": 5})"
                  "\n" +
                      text + "\n");
        { RunLog log(file, 2); }
        CHECK(content(file) == "");
        { RunLog log(dir.path / "new.jsonl", 7); }
        CHECK(content(dir.path / "new.jsonl") == "");
        CHECK(names_in(dir.path) == std::vector<std::string>{"log.jsonl", "new.jsonl"});
    }

    TEST_CASE("run log: a file that cannot be written is named") {
        const FreshDirectory dir;
        CHECK(has(error_of([&] { RunLog(dir.path / "no" / "log.jsonl", -1); }), "no/log.jsonl"));
        RunLog log(dir.path / "full.jsonl", -1);
        const SmallDisk disk(0);
        const std::string error = error_of([&] { log.step(report_of(1)); });
        CHECK(has(error, "full.jsonl"));
        CHECK(has(error, "disk full"));
    }

    TEST_CASE("run log: one run at a time writes it, and what cannot be read is not taken for empty") {
        const FreshDirectory dir;
        const auto file = dir.path / "log.jsonl";
        RunLog log(file, -1);
        log.write({{"event", "start"}, {"step", 0}, {"max_steps", 5}, {"output_dir", "../run"}});
        CHECK(run_of_log(file) == "../run");
        CHECK(has(error_of([&] { RunLog(file, -1); }), "another run is writing its log"));
        log = RunLog();
        const std::string text = content(file);
        CHECK(text != "");
        CHECK(error_of([&] { RunLog(file, -1, [] { throw std::runtime_error("not yours"); }); }) == "not yours");
        CHECK(content(file) == text);
        { RunLog again(file, 0); }  // the lock is gone with its run
        CHECK(content(file) == text);

        std::filesystem::permissions(dir.path, std::filesystem::perms::all);
        std::filesystem::permissions(file, std::filesystem::perms(0222));
        {
            const NoRoot nobody;
            CHECK(has(why_not_a_log(file), "log.jsonl: cannot be opened for reading: Permission denied"));
            for (const int step : {-1, 0})
                CHECK(has(error_of([&] { RunLog(file, step); }), "is no file that can be read"));
        }
        CHECK(content(file) == text);
    }

    TEST_CASE("run log: a log that a run is writing is a log to whoever looks") {
        const FreshDirectory dir;
        const std::filesystem::path file = dir.path / "log.jsonl";
        RunLog log(file, -1);
        log.write({{"event", "start"},
                   {"step", 0},
                   {"max_steps", 5},
                   {"output_dir", "."},
                   {"model", std::string(3000, 'm')}});
        std::atomic<bool> done{false};
        std::thread writer([&] {
            for (int64_t step = 1; !done; ++step) log.step(report_of(step));
        });
        for (int look = 0; look < 2000; ++look) {
            REQUIRE(why_not_a_log(file) == "");
            REQUIRE(run_of_log(file) == ".");
        }
        done = true;
        writer.join();
        CHECK(has(error_of([&] { RunLog(file, -1); }), "another run is writing its log"));
    }

    TEST_CASE("run log: a log that was never opened takes lines in silence") {
        RunLog log;
        log.step(report_of(1));
        log.write({{"event", "end"}});
    }

    TEST_CASE("text: sizes, counts and durations as screens show them") {
        CHECK(memory_text(0) == "0.0 KiB");
        CHECK(memory_text(1536) == "1.5 KiB");
        CHECK(memory_text(size_t{5} << 19) == "2.5 MiB");
        CHECK(memory_text(size_t{3} << 29) == "1.50 GiB");
        CHECK(bytes_text(1234567) == "1,234,567 bytes");
        CHECK(count_text(0) == "0");
        CHECK(count_text(999) == "999");
        CHECK(count_text(1000) == "1,000");
        CHECK(count_text(UINT64_MAX) == "18,446,744,073,709,551,615");
        CHECK(duration_text(0.4) == "0:00:00");
        CHECK(duration_text(59.6) == "0:01:00");
        CHECK(duration_text(36000) == "10:00:00");
        CHECK(duration_text(-1) == "?");
        CHECK(duration_text(std::nan("")) == "?");
        CHECK(duration_text(INFINITY) == "?");
    }
}
