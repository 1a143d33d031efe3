// The prompt as tokens, and the generated text on the screen while it comes.
#include "train/run/sample.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <ostream>

#include "data/base/clock.h"
#include "data/base/error.h"
#include "train/files/base_tokenizer.h"
#include "train/model/sampler.h"
#include "train/spec/text.h"

namespace slab::train {

using nlohmann::json;

namespace {

// What a model generates, and what a user types, need not be UTF-8; a log must be.
json as_utf8(const json& j) {
    return json::parse(j.dump(-1, ' ', false, json::error_handler_t::replace));
}

// While it lives the screen's line is unfinished: an exception ends the line before its own text is printed.
class OpenLine {
  public:
    OpenLine(std::ostream& out, const std::string& beginning) : out_(out) { out_ << beginning << std::flush; }
    ~OpenLine() { out_ << "\n"; }
    OpenLine(const OpenLine&) = delete;
    OpenLine& operator=(const OpenLine&) = delete;

  private:
    std::ostream& out_;
};

}  // namespace

SamplePlan plan_sample(const TrainOptions& flags, const std::filesystem::path& base, const ModelConfig& config,
                       const std::tm& now) {
    SamplePlan plan;
    if (flags.sample.empty()) return plan;
    if (base_tokenizer_path(base.string(), config).empty())
        throw data::UserError("--sample needs the model's tokenizer, and there is no tokenizer.json beside " +
                              base.string() + " (a vocabulary of 260 would be bytes; this one has " +
                              std::to_string(config.V) + ")");
    plan.tokenizer = open_base_tokenizer(base.string(), config);
    const data::ChatSettings chat{.given = flags.chat_template, .now = now};
    plan.prompt = flags.sample_chat ? chat_prompt_tokens(*plan.tokenizer, flags.sample, chat, config.V)
                                    : prompt_tokens(*plan.tokenizer, flags.sample, config.V);
    plan.stops = flags.sample_chat ? chat_stop_tokens(*plan.tokenizer, chat) : stop_tokens(*plan.tokenizer);
    const int positions = most_positions(config);
    if (plan.prompt.size() >= static_cast<size_t>(positions))
        throw data::UserError({.subject = "--sample",
                               .given = "the prompt has " + count_text(plan.prompt.size()) + " tokens and the model " +
                                        count_text(static_cast<uint64_t>(positions)) + " positions",
                               .wanted = "a shorter prompt, with room for a text after it",
                               .hint = ""});
    plan.positions = std::min(positions, static_cast<int>(plan.prompt.size()) + flags.sample_tokens);
    return plan;
}

json sample_request(const TrainOptions& flags) {
    if (flags.sample.empty()) return nullptr;
    return as_utf8({{"prompt", flags.sample},
                    {"sample_tokens", flags.sample_tokens},
                    {"temperature", flags.sample_temperature},
                    {"top_k", flags.top_k},
                    {"top_p", flags.top_p},
                    {"chat", flags.sample_chat}});
}

json write_sample(const TrainOptions& flags, const SamplePlan& plan, Model& model, const std::string& when,
                  data::StopToken stop, std::ostream& out, const std::function<void()>& at_token) {
    const auto start = std::chrono::steady_clock::now();
    const SampleSettings settings{.tokens = flags.sample_tokens,
                                  .temperature = flags.sample_temperature,
                                  .top_k = flags.top_k,
                                  .top_p = flags.top_p,
                                  .seed = flags.seed,
                                  .stop_tokens = plan.stops};
    std::string text;
    uint64_t tokens = 0;
    SampleEnd end;
    {
        const OpenLine line(out, "sample " + when + ": " + printable_text(flags.sample) + "|");
        TextStream stream(*plan.tokenizer);
        const auto show = [&](const std::string& piece) {
            text += piece;
            out << printable_text(piece) << std::flush;
        };
        end = sample_tokens(model, plan.prompt, settings, stop, [&](int32_t token) {
            ++tokens;
            if (at_token) at_token();
            show(stream.add(token));
        });
        show(stream.rest());
    }
    if (end == SampleEnd::not_finite)
        out << "note: this sample ends after " << count_text(tokens)
            << " tokens: none of the model's logits for the next one is a finite number. Hint: look at the base model "
               "if this comes before training, lower --learning-rate if it comes after\n";
    if (end == SampleEnd::cache_full)
        out << "note: this sample ends after " << count_text(tokens) << " tokens: with its prompt it fills the model's "
            << model.layout().settings.cache_positions << " positions\n";
    out << std::flush;
    json line = as_utf8({{"event", "sample"},
                         {"when", when},
                         {"text", text},
                         {"ended", name_of(end)},
                         {"new_tokens", tokens},
                         {"sample_runtime", data::seconds_since(start)}});
    line.update(sample_request(flags));
    return line;
}

}  // namespace slab::train
