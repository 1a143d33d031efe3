// Generation of text. See sampler.h.
#include "train/sampler.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "data/byte_tokenizer.h"
#include "kernels/cross_entropy.h"
#include "kernels/philox.h"
#include "train/step_loop.h"

namespace slab::train {

namespace {

int32_t pick(const std::vector<float>& logits, double temperature, float random) {
    const auto likeliest = std::max_element(logits.begin(), logits.end());
    if (temperature == 0) return static_cast<int32_t>(likeliest - logits.begin());
    double sum = 0;
    std::vector<double> weights(logits.size());
    for (size_t i = 0; i < logits.size(); ++i)
        sum += weights[i] = std::exp((static_cast<double>(logits[i]) - *likeliest) / temperature);
    double left = random * sum;
    for (size_t i = 0; i < logits.size(); ++i)
        if ((left -= weights[i]) < 0) return static_cast<int32_t>(i);
    return static_cast<int32_t>(likeliest - logits.begin());  // rounding ate the last weight
}

}  // namespace

std::vector<int32_t> sample_tokens(Model& model, const std::vector<int32_t>& prompt, const SampleSettings& settings,
                                   const std::function<bool()>& interrupted) {
    if (prompt.empty()) throw std::logic_error("sampling needs a prompt of at least one token");
    const size_t T = static_cast<size_t>(model.layout().settings.T);
    std::vector<int32_t> all = prompt;
    StreamingScope scope(model.offload(), model.layout().evaluation_visits());
    for (int i = 0; i < settings.tokens && !interrupted(); ++i) {
        MicroBatch batch;
        batch.B = 1;
        batch.T = static_cast<int>(std::min(all.size(), T));
        batch.tokens.assign(all.end() - batch.T, all.end());
        batch.targets.assign(batch.T, kIgnoreTarget);
        const std::vector<float> logits = model.logits(batch, static_cast<size_t>(batch.T) - 1, 1);
        const PhiloxOut out = philox(settings.seed, static_cast<uint32_t>(i), 0, 0, 0x5A3F1Eu);
        const int32_t token = pick(logits, settings.temperature, uniform01(out.v[0]));
        if (token == settings.stop_token) break;
        all.push_back(token);
    }
    scope.finish();
    return {all.begin() + static_cast<std::ptrdiff_t>(prompt.size()), all.end()};
}

void check_can_sample(const ModelConfig& config) {
    if (config.V != static_cast<int>(data::ByteTokenizer::vocabulary_size))
        throw std::runtime_error("--sample works for byte-level models, whose vocabulary is " +
                                 std::to_string(data::ByteTokenizer::vocabulary_size) + "; this model's is " +
                                 std::to_string(config.V));
}

std::string sample_text(Model& model, const std::string& prompt, const SampleSettings& settings,
                        const std::function<bool()>& interrupted) {
    check_can_sample(model.layout().config);
    std::vector<int32_t> tokens = {static_cast<int32_t>(data::ByteTokenizer::end_of_text)};  // a text begins
    for (const uint32_t token : data::ByteTokenizer::encode(prompt)) tokens.push_back(static_cast<int32_t>(token));
    SampleSettings stopping = settings;
    stopping.stop_token = static_cast<int>(data::ByteTokenizer::end_of_text);
    const std::vector<int32_t> generated = sample_tokens(model, tokens, stopping, interrupted);
    return data::ByteTokenizer::decode(std::vector<uint32_t>(generated.begin(), generated.end()));
}

}  // namespace slab::train
