// --sample: a text that the run continues before, during and after training, on the screen and in the log.
#pragma once

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "data/base/stop_token.h"
#include "data/tokenizer/tokenizer.h"
#include "train/model/model.h"
#include "train/run/options.h"
#include "train/spec/model_config.h"

namespace slab::train {

// Without --sample: no tokenizer, no prompt, no positions.
struct SamplePlan {
    std::unique_ptr<data::Tokenizer> tokenizer;
    std::vector<int32_t> prompt, stops;
    int positions = 0;  // of the key/value cache: prompt and the tokens to generate
};

// Reads the base's tokenizer. now: what chat templates show as the date. Throws data::UserError if there is none, or if
// the prompt leaves no room for a token.
SamplePlan plan_sample(const TrainOptions& flags, const std::filesystem::path& base, const ModelConfig& config,
                       const std::tm& now);

// What is asked for, as the log has it; null without --sample.
nlohmann::json sample_request(const TrainOptions& flags);

// Prints a sample as it is generated and returns its line of the log. when: "before", "after", "at step N". at_token is
// called for each token.
nlohmann::json write_sample(const TrainOptions& flags, const SamplePlan& plan, Model& model, const std::string& when,
                            data::StopToken stop, std::ostream& out, const std::function<void()>& at_token = {});

}  // namespace slab::train
