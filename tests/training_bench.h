// A tiny model, data and run directories for tests of whole runs of train_gpt, and access to their logs.
#pragma once

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/tiny_model.h"

namespace slab::test {

inline std::vector<nlohmann::json> log_of(const std::filesystem::path& run) {
    std::ifstream in(run / "log.jsonl");
    std::vector<nlohmann::json> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
}
// The lines of steps.
inline std::vector<nlohmann::json> steps_of(const std::filesystem::path& run) {
    std::vector<nlohmann::json> steps;
    for (const nlohmann::json& line : log_of(run))
        if (line.contains("step") && !line.contains("event") && !line.contains("eval_loss")) steps.push_back(line);
    return steps;
}
inline std::vector<double> evals_of(const std::filesystem::path& run) {
    std::vector<double> losses;
    for (const nlohmann::json& line : log_of(run))
        if (line.contains("eval_loss")) losses.push_back(line["eval_loss"].get<double>());
    return losses;
}
inline nlohmann::json event_of(const std::filesystem::path& run, const std::string& event) {
    for (const nlohmann::json& line : log_of(run))
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
    const data::StopToken stop{flag};
    explicit InterruptAfter(std::string t) : DoAfter(std::move(t), [this] { flag = true; }) {}
};

using Flags = std::map<std::string, std::string>;

// A base model, data and run directories; flags given as name -> value, "" for those without one.
struct Bench {
    TinyBase base;
    FreshDirectory dir;
    explicit Bench(const std::string& family = "llama", int masked = 3) : Bench(tiny_config(family, 4), masked) {}
    explicit Bench(const train::ModelConfig& config, int masked = 3) : base(config) {
        write_tiny_tokens(dir.path / "train.bin", base.config.V, 9 * 24 + 1, 1, masked);
    }
    std::filesystem::path run_dir(const std::string& name) const { return dir.path / name; }
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
        if (!flags.count("--adapter") && !flags.count("--freeze-layers") && !flags.count("--adapter-in"))
            flags.insert({"--lora-r", "2"});
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

}  // namespace slab::test
