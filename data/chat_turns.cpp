// Renderings are compared by bytes; what ends a turn is decided on tokens (chat_template.cpp).
#include "data/chat_turns.h"

#include <algorithm>

#include "data/base/error.h"

namespace slab::data {

namespace {

bool is_reply(const Conversation& conversation, size_t message) {
    const auto role = conversation.messages[message].find("role");
    return role != conversation.messages[message].end() && *role == "assistant";
}

size_t common_bytes(std::string_view a, std::string_view b) {
    return static_cast<size_t>(
        std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(std::min(a.size(), b.size())), b.begin())
            .first -
        a.begin());
}

// Generation blocks belong to the message whose words they printed; one without words, to the next reply.
Turns blocks_of(const jinja::Rendered& whole, const Conversation& conversation, std::span<const OwnWords> words,
                const std::string& where) {
    std::vector<size_t> replies;
    for (size_t m = 0; m < words.size(); ++m)
        if (is_reply(conversation, m)) replies.push_back(m);
    const bool has_flags =
        std::any_of(conversation.train.begin(), conversation.train.end(), [](Train t) { return t == Train::no; });
    Turns found;
    size_t block = 0;
    for (const jinja::Span& span : whole.generation) {
        std::optional<size_t> message;
        for (const size_t m : replies)
            if (!message && words[m].any() && words[m].begin < span.end && words[m].end > span.begin) message = m;
        if (!message && whole.generation.size() == replies.size()) message = replies[block];
        if (!message && has_flags)
            throw UserError({.subject = where,
                             .given = "a reply is not to be trained on, and the chat template's generation blocks do "
                                      "not show which of them is this reply's",
                             .hint = "leave out the record, or cut it before that reply"});
        ++block;
        if (message && conversation.train[*message] == Train::no) continue;
        found.turns.push_back({message.value_or(0), {span.begin, span.end}, span.end, false, true});
    }
    return found;
}

}  // namespace

std::vector<OwnWords> own_words(const jinja::Rendered& rendered, size_t messages) {
    std::vector<OwnWords> words(messages);
    for (const jinja::Span& span : rendered.origins) {
        if (span.origin <= kOtherOrigin) continue;
        OwnWords& own = words[(span.origin - 2) / 4];
        const uint32_t part = (span.origin - 2) % 4;
        own.seen |= static_cast<uint8_t>(1u << part);
        if (part == static_cast<uint32_t>(MessagePart::role)) continue;
        own.begin = std::min(own.begin, span.begin);
        own.end = std::max(own.end, span.end);
    }
    return words;
}

Turns find_turns(const jinja::Rendered& whole, const Conversation& conversation, const jinja::Template& of,
                 std::span<const OwnWords> words, const RenderFirst& render, const std::string& where) {
    if (of.has_generation()) return blocks_of(whole, conversation, words, where);
    const auto& names = of.context_names();
    const bool has_prompt = std::find(names.begin(), names.end(), "add_generation_prompt") != names.end();
    const std::string_view text = whole.text;
    const size_t count = words.size();
    size_t last = count;  // the last reply
    for (size_t m = 0; m < count; ++m)
        if (is_reply(conversation, m)) last = m;
    Turns found;
    size_t before_end = 0;  // the end of earlier messages' words
    for (size_t m = 0; m < count; before_end = std::max(before_end, words[m].end), ++m) {
        if (!is_reply(conversation, m) || conversation.train[m] == Train::no) continue;
        const OwnWords& own = words[m];
        Turn turn{m, {0, text.size()}, 0, false, false};
        const std::optional<std::string> prompt = render(m, true);
        const size_t same = prompt ? common_bytes(*prompt, text) : 0;
        const bool is_prompt_whole = prompt && same == prompt->size();
        const bool is_opening_other =
            prompt && !is_prompt_whole && same >= before_end && (!own.any() || same <= own.begin);
        if (is_prompt_whole || is_opening_other) {
            turn.range.begin = !has_prompt && own.any() ? std::max(same, own.begin) : same;
        } else if (m == last && own.any()) {
            turn.range.begin = own.begin;
        } else {
            ++found.context_turns;
            continue;
        }
        turn.words_end = own.any() ? std::max(own.end, turn.range.begin) : turn.range.begin;
        if (m + 1 < count) {
            const std::optional<std::string> upto = render(m + 1, false);
            const size_t reach = upto ? common_bytes(*upto, text) : 0;
            if (reach < turn.words_end || reach <= turn.range.begin) {
                ++found.context_turns;
                continue;
            }
            turn.range.end = reach;
            turn.must_end = reach < upto->size();
        }
        if (turn.range.end <= turn.range.begin) continue;  // the template shows nothing of it
        found.other_openings += is_opening_other;
        found.turns.push_back(turn);
    }
    return found;
}

}  // namespace slab::data
