// Tokens are chosen on the host, from the logits of one row.
#include "train/model/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <stdexcept>
#include <utility>

#include "data/base/error.h"
#include "data/base/utf8.h"
#include "kernels/philox.h"
#include "train/model/step_loop.h"

namespace slab::train {

namespace {

struct Candidate {
    int32_t token;
    double weight;  // its probability, but for a common factor
};

// Likelier first; of equals the lower id, so that the order is one.
bool likelier(const Candidate& a, const Candidate& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
}

std::vector<int32_t> checked_prompt(const data::Tokenizer& tokenizer, const std::vector<uint32_t>& ids, int V) {
    for (const uint32_t id : ids)
        if (id >= static_cast<uint32_t>(V))
            throw data::UserError("--sample: the tokenizer (" + tokenizer.description() + ") makes token " +
                                  std::to_string(id) + " of the prompt, and the model's vocabulary ends at " +
                                  std::to_string(V - 1) + "; wanted the tokenizer of --base-model");
    if (ids.empty()) throw data::UserError("--sample: the prompt is empty; wanted a text to go on from");
    return {ids.begin(), ids.end()};
}

// The shortest beginning of the sorted candidates that has the share p of all their weight.
void keep_top_p(std::vector<Candidate>& sorted, double p) {
    double all = 0, kept = 0;
    for (const Candidate& c : sorted) all += c.weight;
    size_t count = 0;
    while (count < sorted.size() && (count == 0 || kept < p * all)) kept += sorted[count++].weight;
    sorted.resize(count);
}

}  // namespace

const char* name_of(SampleEnd end) {
    switch (end) {
        case SampleEnd::tokens:
            return "length";
        case SampleEnd::stop_token:
            return "stop";
        case SampleEnd::cache_full:
            return "positions";
        case SampleEnd::interrupted:
            return "interrupted";
        case SampleEnd::not_finite:
            return "not finite";
    }
    return "";
}

std::optional<int32_t> pick_token(const std::vector<float>& logits, const SampleSettings& settings, float random) {
    const auto finite = [](float logit) { return std::isfinite(logit); };
    if (std::none_of(logits.begin(), logits.end(), finite)) return std::nullopt;
    int32_t likeliest = 0;
    double highest = -std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < logits.size(); ++i)  // NaN compares false
        if (logits[i] > highest) highest = logits[i], likeliest = static_cast<int32_t>(i);
    if (settings.temperature == 0 || !std::isfinite(highest)) return likeliest;
    std::vector<Candidate> candidates;
    candidates.reserve(logits.size());
    for (size_t i = 0; i < logits.size(); ++i)
        if (!std::isnan(logits[i]))
            candidates.push_back({static_cast<int32_t>(i), std::exp((logits[i] - highest) / settings.temperature)});
    const size_t k = settings.top_k > 0 ? std::min<size_t>(settings.top_k, candidates.size()) : candidates.size();
    if (k < candidates.size() || settings.top_p < 1) {
        std::partial_sort(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(k), candidates.end(),
                          likelier);
        candidates.resize(k);
        if (settings.top_p < 1) keep_top_p(candidates, settings.top_p);
    }
    double left = 0;
    for (const Candidate& c : candidates) left += c.weight;
    left *= random;
    for (const Candidate& c : candidates)
        if ((left -= c.weight) < 0) return c.token;
    return likeliest;  // rounding ate the last weight
}

SampleEnd sample_tokens(Model& model, const std::vector<int32_t>& prompt, const SampleSettings& settings,
                        data::StopToken stop, const TokenSink& sink) {
    const int positions = model.layout().settings.cache_positions;
    if (prompt.empty() || prompt.size() > static_cast<size_t>(positions))
        throw std::logic_error("a prompt of " + std::to_string(prompt.size()) + " tokens; the cache holds " +
                               std::to_string(positions));
    model.clear_cache();
    StreamingScope scope(model.offload(), model.layout().evaluation_visits());
    std::vector<int32_t> next = prompt;
    SampleEnd end = SampleEnd::tokens;
    for (int i = 0; i < settings.tokens; ++i) {
        if (stop.requested()) end = SampleEnd::interrupted;
        if (model.cached() == positions) end = SampleEnd::cache_full;
        if (end != SampleEnd::tokens) break;
        const std::vector<float> logits = model.next_logits(next);
        const PhiloxOut out = philox(settings.seed, static_cast<uint32_t>(i), 0, 0, philox_use::sampling);
        const std::optional<int32_t> token = pick_token(logits, settings, uniform01(out.v[0]));
        if (!token) {
            end = SampleEnd::not_finite;
            break;
        }
        if (std::find(settings.stop_tokens.begin(), settings.stop_tokens.end(), *token) != settings.stop_tokens.end()) {
            end = SampleEnd::stop_token;
            break;
        }
        sink(*token);
        next = {*token};
    }
    scope.finish();
    return end;
}

std::vector<int32_t> prompt_tokens(const data::Tokenizer& tokenizer, const std::string& prompt, int V) {
    std::vector<uint32_t> ids = tokenizer.encode(prompt, data::SpecialTokens::parse);
    if (tokenizer.adds_bos() && tokenizer.bos()) ids.insert(ids.begin(), *tokenizer.bos());
    return checked_prompt(tokenizer, ids, V);
}

std::vector<int32_t> chat_prompt_tokens(const data::Tokenizer& tokenizer, const std::string& prompt,
                                        const data::ChatSettings& chat, int V) {
    const auto form = data::ChatTemplate::find(tokenizer, chat);
    if (!form)
        throw data::UserError({.subject = "--sample-chat",
                               .given = "the model has no chat template (" + tokenizer.description() + ")",
                               .wanted = "one",
                               .hint = "give one with --chat-template: a file, chatml or llama3"});
    data::Conversation conversation;
    conversation.add("user", prompt);
    return checked_prompt(tokenizer, form->prompt(tokenizer, conversation, "--sample-chat"), V);
}

std::vector<int32_t> stop_tokens(const data::Tokenizer& tokenizer) {
    std::vector<int32_t> stops;
    const auto add = [&](std::optional<uint32_t> id) {
        const auto token = static_cast<int32_t>(id.value_or(0));
        if (id && std::find(stops.begin(), stops.end(), token) == stops.end()) stops.push_back(token);
    };
    add(tokenizer.eos());
    // A chat model's eos ends a turn, its base's a text. Either may come, whichever the file calls eos.
    for (const char* end : {"<|im_end|>", "<|eot_id|>", "<|endoftext|>", "<|end_of_text|>"}) add(tokenizer.id_of(end));
    return stops;
}

std::vector<int32_t> chat_stop_tokens(const data::Tokenizer& tokenizer, const data::ChatSettings& chat) {
    std::vector<int32_t> stops = stop_tokens(tokenizer);
    const auto form = data::ChatTemplate::find(tokenizer, chat);
    const std::vector<uint32_t> ends = form ? form->ends_of_turn(tokenizer) : std::vector<uint32_t>();
    if (!ends.empty()) {
        const auto last = static_cast<int32_t>(ends.back());
        if (std::find(stops.begin(), stops.end(), last) == stops.end()) stops.push_back(last);
    }
    return stops;
}

std::string TextStream::add(int32_t token) {
    const auto id = static_cast<uint32_t>(token);
    if (id < tokenizer_.vocabulary_size()) held_ += tokenizer_.decode({&id, 1});  // a model may have more ids than that
    const size_t whole = held_.size() - data::unfinished_utf8_bytes(held_);
    std::string piece = held_.substr(0, whole);
    held_.erase(0, whole);
    return piece;
}

std::string TextStream::rest() {
    return std::exchange(held_, {});
}

}  // namespace slab::train
