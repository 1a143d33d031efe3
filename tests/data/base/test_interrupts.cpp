// Stopping programs before they have a result: while a base loads, a model is merged, a text is tokenised. Reads are
// counted, not timed: none follows the one at which the stop is noticed, and nothing is left on the disk.
#include <filesystem>

#include "data/base/stop_signals.h"
#include "data/tokenize.h"
#include "tests/training_bench.h"
#include "train/export/export_gpt.h"
#include "train/files/base_config.h"
#include "train/run/run_setup.h"

using namespace slab;
using namespace slab::train;
using namespace slab::test;
namespace fs = std::filesystem;

namespace {

// Requested at question number `at` (1, 2, ...), or never; says how many there were.
struct StopAt {
    static constexpr size_t kNever = size_t{1} << 40;
    const size_t at;
    std::atomic<int64_t> left{static_cast<int64_t>(at)};
    explicit StopAt(size_t question) : at(question) {}
    data::StopToken token() { return data::StopToken(left); }
    size_t asked() const { return at - static_cast<size_t>(left.load()); }
};

// Pieces of a model read before the stop, and whether there was a stop. One thread, so that no other piece begins while
// the stop is noticed.
std::pair<size_t, bool> load(const fs::path& base, const ModelSettings& settings, size_t stop_at) {
    const ModelConfig config = read_base_config(base);
    BaseWeights weights = BaseWeights::from_files(base, config);
    Device device({.threads = 1});
    StopAt stop{stop_at};
    bool stopped = false;
    try {
        Model::Options options;
        options.stop = stop.token();
        const Model model(device, make_layout(config, settings), weights, options);
    } catch (const data::Interrupted&) {
        stopped = true;
    }
    return {stop.asked(), stopped};
}

// Every file below a directory, with its content.
std::map<std::string, std::string> all_files(const fs::path& directory) {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(directory))
        files[entry.path().string()] = entry.is_regular_file() ? content(entry.path()) : "";
    return files;
}

// Runs a program (run_tokenize, run_export) to its end and counts its questions, then stops it at each of them. A
// stopped program leaves nothing and asks no further question.
template <class Run>
void stop_everywhere(const fs::path& directory, const char* message, const Run& run) {
    const auto before = all_files(directory);
    std::ostringstream err;
    for (size_t at = 1;; ++at) {
        CAPTURE(at);
        StopAt stop{at};
        err.str("");
        const int code = run(stop.token(), err);
        if (stop.asked() < at) {
            CHECK(err.str() == "");
            CHECK(code == 0);
            CHECK(at > 3);
            return;
        }
        REQUIRE(code == data::kExitInterrupted);
        CHECK(has(err.str(), message));
        CHECK(stop.asked() == at);
        CHECK(all_files(directory) == before);
    }
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("interrupts: a base stops loading at any of its tensors, wherever they go") {
        const TinyBase gpt2("gpt2", 3), llama("llama", 3);
        const fs::path gguf = "tests/gguf/llama/model.gguf";
        for (const fs::path& base : {gpt2.files.path, llama.files.path, gguf}) {
            size_t parts = 0;
            for (const TensorSpec& spec : all_tensors(read_base_config(base))) parts += spec.parts.size();
            for (const ModelSettings& settings :
                 {tiny_settings(), streamed(tiny_settings(), 1, 2), streamed(tiny_settings(), 1, 2, {1}),
                  tiny_full_settings(), streamed(tiny_full_settings(1), 1, 2)}) {
                CAPTURE(base.string());
                CHECK(load(base, settings, StopAt::kNever) == std::pair(parts, false));
                for (const size_t n : {size_t{1}, parts / 3, 2 * parts / 3, parts})
                    CHECK(load(base, settings, n) == std::pair(n, true));
            }
        }
    }

    TEST_CASE("interrupts: weights drawn from a seed stop too") {
        const ModelConfig config = tiny_config("qwen3", 2);
        ThreadPool pool(1);
        BaseWeights weights = BaseWeights::random(1, config);
        for (const TensorSpec& spec : all_tensors(config)) {
            std::vector<float> values(spec.rows * spec.cols);
            StopAt stop{1};
            CHECK_THROWS_AS(weights.read(spec, values.data(), pool, stop.token()), data::Interrupted);
        }
    }

    TEST_CASE("interrupts: a run stopped while its base loads leaves the disk as it was, new or resumed") {
        const Bench bench;
        const std::vector<Flags> ways = {
            {}, {{"--layer-offloading", ""}}, {{"--adapter", "none"}}, {{"--from-scratch", ""}, {"--adapter", "none"}}};
        for (const Flags& way : ways) {
            Flags flags = way;
            const fs::path above = bench.dir.path / "deep";
            flags["--output-dir"] = (above / "er" / "run").string();
            std::ostringstream out;
            const Program program = run_train_gpt(bench.arguments("", flags), stop_at_once(), out);
            CHECK(program.error == "");
            CHECK(program.code == 130);
            CHECK(has(out.str(), "interrupted while loading; nothing was written"));
            CHECK_FALSE(fs::exists(above));
        }
        bench.run_well("a", {{"--max-steps", "4"}, {"--save-steps", "2"}});
        fs::remove_all(bench.run_dir("a") / "checkpoint-4");
        const auto before = all_files(bench.run_dir("a"));
        std::ostringstream out;
        const Flags on = {{"--max-steps", "4"}, {"--save-steps", "2"}, {"--resume-from-checkpoint", "last"}};
        CHECK(run_train_gpt(bench.arguments("a", on), stop_at_once(), out).code == 130);
        CHECK(all_files(bench.run_dir("a")) == before);
        const std::string adapter = bench.adapter("a");
        bench.run_well("a", on);
        CHECK(bench.adapter("a") == adapter);
    }

    TEST_CASE("interrupts: a merge or a GGUF adapter stopped at any tensor leaves nothing") {
        const Bench bench;
        bench.run_well("run", {{"--max-steps", "1"}});
        const FreshDirectory dir;
        const std::string base = bench.base.files.path, adapter = bench.run_dir("run"), merged = dir.path / "merged",
                          gguf = dir.path / "a.gguf";
        for (const auto& [flag, output] : {std::pair{"--merge", merged}, {"--gguf-adapter", gguf}})
            stop_everywhere(dir.path, "export_gpt: interrupted; what was being written is removed",
                            [&](data::StopToken stop, std::ostream& err) {
                                std::ostringstream out;
                                const std::vector<const char*> argv = {
                                    "export_gpt",    "--base-model", base.c_str(), "--adapter",
                                    adapter.c_str(), "--threads",    "1",          flag,
                                    output.c_str()};
                                return run_export(static_cast<int>(argv.size()), argv.data(), out, err, stop);
                            });
    }

    TEST_CASE("interrupts: tokenizing text or records leaves nothing, wherever it is stopped") {
        const FreshDirectory input;
        std::string records;
        for (int i = 0; i < 40; ++i) records += "{\"text\": \"" + std::to_string(i) + " bottles of\"}\n";
        put(input.path / "a.jsonl", records);
        put(input.path / "b.jsonl", records);
        put(input.path / "a.txt", std::string(100, 'x'));
        for (const std::vector<std::string>& names : {std::vector<std::string>{"a.jsonl", "b.jsonl"}, {"a.txt"}}) {
            const FreshDirectory output;
            std::vector<std::string> arguments = {"tokenize", "--output-dir", output.path};
            for (const std::string& name : names) arguments.push_back(input.path / name);
            std::vector<const char*> argv;
            for (const std::string& argument : arguments) argv.push_back(argument.c_str());
            stop_everywhere(output.path, "tokenize: interrupted; nothing was written",
                            [&](data::StopToken stop, std::ostream& err) {
                                std::ostringstream out;
                                return data::run_tokenize(static_cast<int>(argv.size()), argv.data(), 0, out, err,
                                                          stop);
                            });
        }
    }
}
