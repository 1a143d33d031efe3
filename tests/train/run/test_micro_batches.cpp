// What a step is made of. It has the same rows, however they are cut into micro-batches. There are as many steps and
// held-out rows as the flags say, also where a division leaves a rest.
#include <string>
#include <tuple>

#include "data/tokenizer/byte_tokenizer.h"
#include "tests/training_bench.h"

using namespace slab;
using namespace slab::train;
using namespace slab::test;
using nlohmann::json;

namespace {

// The line of --plan that says what the data comes to.
std::string planned_data(const Bench& bench, const std::string& data, Flags flags) {
    flags.insert({{"--plan", ""}, {"--train-data", (bench.dir.path / data).string()}});
    const Program program = bench.run("plan", flags);
    CHECK(program.error == "");
    const size_t begin = program.out.find("\ndata: ");
    REQUIRE(begin != std::string::npos);
    return program.out.substr(begin + 1, program.out.find('\n', begin + 1) - begin - 1);
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("micro-batches: 4x1, 2x2 and 1x4 train on the same rows, each once") {
        const Bench bench("qwen3");
        const auto steps = [&](const std::string& rows, const std::string& micro_batches) {
            const std::string name = rows + "x" + micro_batches;
            bench.run_well(name, {{"--micro-batch-size", rows}, {"--gradient-accumulation-steps", micro_batches}});
            return steps_of(bench.run_dir(name));
        };
        const auto want = steps("4", "1");
        REQUIRE(want.size() == 5);
        for (const auto& [rows, micro_batches] : {std::pair<std::string, std::string>{"2", "2"}, {"1", "4"}}) {
            CAPTURE(rows);
            const auto got = steps(rows, micro_batches);
            REQUIRE(got.size() == want.size());
            for (size_t i = 0; i < want.size(); ++i) {
                CHECK(got[i]["targets"] == want[i]["targets"]);
                CHECK(got[i]["tokens"] == want[i]["tokens"]);
                CHECK(got[i]["epoch"] == want[i]["epoch"]);
                CHECK(got[i]["loss"].get<double>() == doctest::Approx(want[i]["loss"].get<double>()).epsilon(1e-6));
            }
        }
    }

    TEST_CASE("micro-batches: grad_norm is the one before clipping") {
        const Bench bench;
        const auto norm = [&](const std::string& limit) {
            bench.run_well(limit, {{"--max-grad-norm", limit}, {"--max-steps", "1"}});
            return steps_of(bench.run_dir(limit)).at(0)["grad_norm"].get<double>();
        };
        const double unclipped = norm("0");
        CHECK(unclipped > 0.001);
        CHECK(norm("0.001") == unclipped);
    }

    TEST_CASE("data: the last step of the epochs may be short of new rows, and is taken") {
        const Bench bench;
        write_tiny_tokens(bench.dir.path / "rows.bin", bench.base.config.V, 9 * 39 + 1, 1);
        const auto steps_of_epochs = [&](const char* epochs) {
            const std::string line = planned_data(bench, "rows.bin", {{"--max-steps", "0"}, {"--num-epochs", epochs}});
            CHECK(has(line, "data: 39 rows of 9 tokens to train on, "));
            return line.substr(line.rfind(", ") + 2);
        };
        CHECK(steps_of_epochs("1") == "10 steps");  // 39 rows, 4 a step
        CHECK(steps_of_epochs("2") == "20 steps");
        CHECK(steps_of_epochs("4") == "39 steps");
        CHECK(steps_of_epochs("0.01") == "1 step");
    }

    TEST_CASE("data: a share of rows or records to hold out is rounded up") {
        ModelConfig config = tiny_config("llama", 2);
        config.V = static_cast<int>(data::ByteTokenizer::kVocabularySize);
        const Bench bench(config);
        write_tiny_tokens(bench.dir.path / "rows.bin", config.V, 9 * 40 + 1, 1);
        std::string records;
        for (int i = 0; i < 40; ++i) records += "{\"text\": \"" + std::to_string(i) + "\"}\n";
        put(bench.dir.path / "rows.jsonl", records);
        for (const std::string data : {"rows.bin", "rows.jsonl"})
            for (const auto& [share, want] : {std::tuple{"0.01", "39 rows of 9 tokens to train on, 1 to evaluate on"},
                                              {"0.05", "38 rows of 9 tokens to train on, 2 to evaluate on"},
                                              {"0.051", "37 rows of 9 tokens to train on, 3 to evaluate on"}}) {
                CAPTURE(data);
                CHECK(has(planned_data(bench, data, {{"--val-set-size", share}}), want));
            }
    }
}
