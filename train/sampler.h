// Text from the model, a token at a time.
//
// Each token is a whole forward pass over the last T tokens (no key/value cache), the layers streamed as in training;
// its visits are announced. The random numbers are a function of (seed, position), so sampling leaves no trace in a
// training run.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "train/model.h"

namespace slab::train {

struct SampleSettings {
    int tokens = 200;
    double temperature = 0.8;  // 0: the likeliest token always
    uint64_t seed = 0;
    int stop_token = -1;  // ends the text; -1: none
};

// Returns the tokens generated after the prompt (which must not be empty). Stops early when `interrupted` says so.
std::vector<int32_t> sample_tokens(Model& model, const std::vector<int32_t>& prompt, const SampleSettings& settings,
                                   const std::function<bool()>& interrupted);

// For byte-level models (vocabulary of 260): the text that follows the prompt. Throws std::runtime_error for other
// vocabularies.
std::string sample_text(Model& model, const std::string& prompt, const SampleSettings& settings,
                        const std::function<bool()>& interrupted);
// Whether sample_text would refuse this model, before anything is loaded.
void check_can_sample(const ModelConfig& config);

}  // namespace slab::train
