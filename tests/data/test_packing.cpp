// Packed equals unpacked: the same records, one or several a row, give the same loss and gradients, in models with
// rotary and with learned positions. So a record's neighbours in its row do not affect it.
#include <doctest/doctest.h>

#include "data/prepare.h"
#include "tests/fake_tokenizer.h"
#include "tests/tiny_model.h"
#include "train/run/data_loader.h"
#include "train/spec/micro_batch.h"

using namespace slab;
using namespace slab::test;

namespace {

constexpr int T = 24;

std::vector<train::MicroBatch> batches(const FakeTokenizer& tokenizer, int V, bool packing, bool train_on_inputs) {
    data::PreparedRecords records(
        tokenizer, {.T = T, .sample_packing = packing, .train_on_inputs = train_on_inputs, .chat_template = ""});
    std::mt19937 random(11);
    for (int i = 0; i < 23; ++i) {
        std::string prompt(random() % 9, ' '), reply(1 + random() % 9, ' ');
        for (std::string* text : {&prompt, &reply})
            for (char& c : *text) c = static_cast<char>(random() % 256);
        data::Record record;
        record.kind = data::RecordKind::completion, record.line = 1, record.prompt = prompt, record.text = reply;
        records.add(record, "here");
    }
    data::TokenMemory memory(256, T);
    const auto counts = records.write({}, false, memory);
    CHECK(counts.rows == (packing ? 12 : 23));
    train::DataLoader loader(data::TokenFile("records", std::move(memory)), T, V, 1, false);
    std::vector<train::MicroBatch> all;
    for (uint64_t row = 0; row < loader.rows(); ++row) all.push_back(loader.batch(row, 1));
    return all;
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("packing: loss and gradients of packed records are those of unpacked ones") {
        const FakeTokenizer tokenizer;
        for (const std::string& family : tiny_families()) {
            CAPTURE(family);
            train::ModelConfig config = tiny_config(family, 2);
            config.V = 257;
            const TinyBase base(config);
            train::ModelSettings settings = tiny_full_settings();
            settings.B = 1;
            settings.T = T;
            TinyRun run(base, settings);
            for (const bool inputs : {false, true}) {
                auto packed = batches(tokenizer, config.V, true, inputs);
                const auto unpacked = batches(tokenizer, config.V, false, inputs);
                std::vector<double> losses;
                std::vector<std::vector<float>> gradients;
                size_t targets = 0;
                for (const std::vector<train::MicroBatch>* data : {&std::as_const(packed), &unpacked}) {
                    run.loop.enqueue(*data, tiny_step(false));
                    const train::StepResult result = run.loop.collect();
                    if (targets != 0) CHECK(result.targets == targets);
                    targets = result.targets;
                    losses.push_back(result.loss);
                    gradients.push_back(run.model.trained().read_grads(run.model.compute()));
                    CHECK(std::abs(evaluate(run, *data) - result.loss) < 1e-6);
                }
                CHECK(std::abs(losses[0] - losses[1]) < 1e-5);
                CHECK(norm_error(gradients[0], gradients[1]) < 1e-5);
                // The comparison would notice a neighbour: without the boundaries the loss differs.
                for (auto& batch : packed) batch.doc_start.clear();
                CHECK(std::abs(evaluate(run, packed) - losses[1]) > 1e-4);
            }
        }
    }
}
