// Text from the model, a token at a time.
//
// The prompt passes through the model once and leaves its keys and values in the cache
// (ModelSettings::cache_positions). Each further token is a pass over one row, with layers streamed and visits
// announced as in training. The token is a function of (logits, seed, place), so sampling changes nothing in a training
// run. A full cache ends the text.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/base/stop_token.h"
#include "data/chat_template.h"
#include "data/tokenizer/tokenizer.h"
#include "train/model/model.h"

namespace slab::train {

struct SampleSettings {
    int tokens = 200;
    double temperature = 0.8;  // 0: the likeliest token always
    int top_k = 0;             // > 0: of the k likeliest tokens only
    double top_p = 1;          // < 1: of the fewest likeliest tokens that have this probability together
    uint64_t seed = 0;
    std::vector<int32_t> stop_tokens = {};  // each ends the text, and is not part of it
};

enum class SampleEnd { tokens, stop_token, cache_full, interrupted, not_finite };
const char* name_of(SampleEnd end);  // as the log says it: "length", "stop", ...

// Called with each token as soon as it is known.
using TokenSink = std::function<void(int32_t token)>;

// The token that temperature, top_k and then top_p choose, for a random number in [0, 1). NaN is never taken; infinity
// is the likeliest. Returns nothing if no logit is finite.
std::optional<int32_t> pick_token(const std::vector<float>& logits, const SampleSettings& settings, float random);

// Generates after the prompt, which must not be empty and must fit the cache (std::logic_error). Logits that are not
// finite end the text, not the run.
SampleEnd sample_tokens(Model& model, const std::vector<int32_t>& prompt, const SampleSettings& settings,
                        data::StopToken stop, const TokenSink& sink);

// The prompt as the model saw texts in training: with the tokenizer's start of text, if it has one. Spellings of
// special tokens become those tokens. Throws data::UserError if a token is outside the model's vocabulary: then the
// tokenizer is another model's.
std::vector<int32_t> prompt_tokens(const data::Tokenizer& tokenizer, const std::string& prompt, int V);
// The prompt as a user's turn, up to where the model's reply begins, as the chat template has it. Nothing in the prompt
// becomes a special token. Throws data::UserError if there is no template.
std::vector<int32_t> chat_prompt_tokens(const data::Tokenizer& tokenizer, const std::string& prompt,
                                        const data::ChatSettings& chat, int V);
// The tokens that end a text or a turn, each once: eos and, if the vocabulary has them, the ends of turns and texts of
// ChatML, Llama 3 and GPT-2.
std::vector<int32_t> stop_tokens(const data::Tokenizer& tokenizer);
// Those, and the one that ends a turn in the chat template.
std::vector<int32_t> chat_stop_tokens(const data::Tokenizer& tokenizer, const data::ChatSettings& chat);

// Decodes tokens as they come into pieces of whole UTF-8 characters. Bytes that are no UTF-8 pass unchanged.
class TextStream {
  public:
    explicit TextStream(const data::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
    std::string add(int32_t token);
    std::string rest();  // the bytes of a character that was not finished

  private:
    const data::Tokenizer& tokenizer_;
    std::string held_;
};

}  // namespace slab::train
