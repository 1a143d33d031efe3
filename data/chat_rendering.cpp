// One conversation through the template: what the template takes, its text, the turns, and the tokens of each.
#include <algorithm>
#include <utility>

#include "data/base/display.h"
#include "data/base/error.h"
#include "data/base/json_file.h"
#include "data/chat_template.h"
#include "data/chat_values.h"
#include "data/jinja/text.h"

namespace slab::data {

using json = nlohmann::ordered_json;

namespace {

bool is_role(const json& message, std::string_view role) {
    const auto found = message.find("role");
    return found != message.end() && found->is_string() && found->get_ref<const std::string&>() == role;
}

bool says(const json& message, const char* key) {
    const auto found = message.find(key);
    return found != message.end() && !says_nothing(*found);
}

bool is_blank(std::string_view text) {
    return jinja::leading_space(text) == text.size();
}

// Whether the message has words in its content.
bool has_content(const json& message) {
    const auto content = message.find("content");
    if (content == message.end()) return false;
    if (content->is_string()) return !is_blank(content->get_ref<const std::string&>());
    return content->is_array() && std::any_of(content->begin(), content->end(), [](const json& part) {
               return !is_blank(part["text"].get_ref<const std::string&>());
           });
}

}  // namespace

class ChatRendering {
  public:
    ChatRendering(const ChatTemplate& chat, const Tokenizer& tokenizer, const Conversation& conversation,
                  const std::string& where)
        : chat_(chat),
          template_(!conversation.tools.is_null() && chat.tool_use_ ? *chat.tool_use_ : *chat.standard_),
          tokenizer_(tokenizer),
          conversation_(conversation),
          where_(where),
          values_(conversation, chat.special_tokens_, chat.takes_lists_) {}

    ChatTokens tokens();
    std::vector<uint32_t> prompt();

  private:
    [[noreturn]] void fail(const std::string& given, const std::string& wanted, const std::string& hint = "") const {
        throw UserError({.subject = where_, .given = given, .wanted = wanted, .hint = hint});
    }
    bool reads(std::string_view key) const { return template_.keys().contains(key); }
    bool has_name(std::string_view name) const {
        const auto& names = template_.context_names();
        return std::find(names.begin(), names.end(), name) != names.end();
    }
    void check_takes();
    void check_roles(std::span<const OwnWords> words) const;
    void count_lost(std::span<const OwnWords> words);
    jinja::Rendered render(size_t n, bool generation_prompt);
    std::vector<TextRange> plain_ranges(const jinja::Rendered& rendered) const;
    void mark(const jinja::Rendered& rendered, const Turns& turns);
    bool mark_turn(const Turn& turn, size_t begin, size_t words_last, size_t last, size_t after);

    const ChatTemplate& chat_;
    const jinja::Template& template_;
    const Tokenizer& tokenizer_;
    const Conversation& conversation_;
    const std::string& where_;
    ChatValues values_;
    ChatTokens out_;
};

jinja::Rendered ChatRendering::render(size_t n, bool generation_prompt) {
    return template_.render(values_.context(n, generation_prompt), chat_.options_);
}

// Refuses what the template has no place for.
void ChatRendering::check_takes() {
    const std::string lacks = ", and the chat template has no place for ";
    if (!conversation_.tools.is_null() && !has_name("tools"))
        fail("the record has \"tools\"" + lacks + "them", "none, or another --chat-template");
    if (conversation_.variables.is_object())
        for (const auto& [name, value] : conversation_.variables.items()) {
            if (name == "messages" || name == "tools" || name == "add_generation_prompt")
                fail("\"chat_template_kwargs\" has " + quote(name), "names of the template's own");
            if (!has_name(name)) fail("the record gives " + quote(name) + lacks + "it", "a name that it uses");
        }
    size_t number = 0;
    for (const json& message : conversation_.messages) {
        ++number;
        for (const char* const key : {"tool_calls", "function_call", "reasoning_content", "thinking", "reasoning"}) {
            if (!says(message, key)) continue;
            const bool thoughts = key[0] == 'r' || std::string_view(key) == "thinking";
            if (thoughts ? reads("reasoning_content") || reads("thinking") || reads(key) : reads(key)) continue;
            fail("message " + std::to_string(number) + " has " + quote(key) + lacks + "it", "none",
                 "remove the key if the message means the same without it, or give another --chat-template");
        }
    }
    for (const std::string& key : conversation_.other_keys) {
        const size_t dot = key.find('.');
        if (!reads(dot == std::string::npos ? key : key.substr(dot + 1))) out_.counts.unused_keys.push_back(key);
    }
}

// A role that the template neither names nor prints would be rendered as some other one.
void ChatRendering::check_roles(std::span<const OwnWords> words) const {
    for (size_t m = 0; m < words.size(); ++m) {
        const auto& role = conversation_.messages[m]["role"].get_ref<const std::string&>();
        if (role == "system" || role == "user" || role == "assistant") continue;
        if (reads(role) || words[m].has(MessagePart::role)) continue;
        fail("message " + std::to_string(m + 1) + " has the role " + quote(role) +
                 ", which the chat template does not know",
             "system, user or assistant");
    }
}

void ChatRendering::count_lost(std::span<const OwnWords> words) {
    for (size_t m = 0; m < words.size(); ++m) {
        const json& message = conversation_.messages[m];
        out_.counts.lost_contents += has_content(message) && !words[m].has(MessagePart::content);
        const bool thinks =
            says(message, "reasoning_content") || says(message, "thinking") || says(message, "reasoning");
        out_.counts.lost_thoughts += thinks && !words[m].has(MessagePart::thoughts);
        out_.counts.lost_calls +=
            (says(message, "tool_calls") || says(message, "function_call")) && !words[m].has(MessagePart::calls);
    }
}

// Texts of others than the assistant, where special tokens stay text.
std::vector<TextRange> ChatRendering::plain_ranges(const jinja::Rendered& rendered) const {
    std::vector<TextRange> ranges;
    for (const jinja::Span& span : rendered.origins) {
        if (span.origin > kOtherOrigin && is_role(conversation_.messages[(span.origin - 2) / 4], "assistant")) continue;
        if (!ranges.empty() && ranges.back().end == span.begin) {
            ranges.back().end = span.end;
        } else {
            ranges.push_back({span.begin, span.end});
        }
    }
    return ranges;
}

// Marks tokens from `begin` to the special token that ends the turn: the last one after the reply's words. `after` is
// the token that holds the range's end. Returns false for a turn that had to end and does not.
bool ChatRendering::mark_turn(const Turn& turn, size_t begin, size_t words_last, size_t last, size_t after) {
    size_t end = std::min(last + 1, out_.tokens.size());
    if (turn.must_end && after == last) --end;  // a token that both renderings begin with alike, and end otherwise
    size_t special = end;
    while (special > words_last && special > begin && !tokenizer_.is_special(out_.tokens[special - 1])) --special;
    const bool ends = special > words_last && special > begin;
    if (!ends && turn.must_end) return false;
    if (ends && !turn.is_exact) end = special;
    out_.counts.endless += !ends;
    for (size_t i = begin; i < end; ++i) out_.is_reply[i] = 1;
    return true;
}

void ChatRendering::mark(const jinja::Rendered& rendered, const Turns& turns) {
    struct Found {
        size_t begin = 0, words_last = 0, last = 0, after = 0;
    };
    std::vector<Found> found(turns.turns.size());
    std::vector<std::pair<size_t, size_t*>> wanted;  // a byte of the text, and where its token's index goes
    for (size_t i = 0; i < found.size(); ++i) {
        const Turn& turn = turns.turns[i];
        wanted.emplace_back(turn.range.begin, &found[i].begin);
        wanted.emplace_back(std::max(turn.words_end, turn.range.begin + 1) - 1, &found[i].words_last);
        wanted.emplace_back(turn.range.end - 1, &found[i].last);
        wanted.emplace_back(std::min(turn.range.end, rendered.text.size() - 1), &found[i].after);
    }
    struct Reply {
        size_t message, begin = 0, last = 0;
    };
    std::vector<Reply> replies;  // what assistants say, piece by piece
    for (const jinja::Span& span : rendered.origins)
        if (span.origin > kOtherOrigin && is_role(conversation_.messages[(span.origin - 2) / 4], "assistant") &&
            (span.origin - 2) % 4 != static_cast<uint32_t>(MessagePart::role))
            replies.push_back({(span.origin - 2) / 4, span.begin, span.end - 1});
    for (Reply& reply : replies) {
        wanted.emplace_back(reply.begin, &reply.begin);
        wanted.emplace_back(reply.last, &reply.last);
    }
    std::stable_sort(wanted.begin(), wanted.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<size_t> places, token_at;
    places.reserve(wanted.size());
    for (const auto& [place, into] : wanted) places.push_back(place);
    out_.tokens = tokenizer_.encode_placed(rendered.text, plain_ranges(rendered), places, token_at);
    for (size_t i = 0; i < wanted.size(); ++i) *wanted[i].second = token_at[i];

    out_.is_reply.assign(out_.tokens.size(), 0);
    for (size_t i = 0; i < found.size(); ++i) {
        const Turn& turn = turns.turns[i];
        // A turn without words may end in its first token.
        const bool has_words = turn.words_end > turn.range.begin && !turn.is_exact;
        const size_t words_last = has_words ? found[i].words_last + 1 : found[i].begin;
        out_.counts.context_turns += !mark_turn(turn, found[i].begin, words_last, found[i].last,
                                                turn.range.end < rendered.text.size() ? found[i].after : SIZE_MAX);
    }
    size_t counted = SIZE_MAX;  // the last message that was
    for (const Reply& reply : replies)
        for (size_t i = reply.begin; i <= reply.last && i < out_.tokens.size() && reply.message != counted; ++i)
            if (tokenizer_.is_special(out_.tokens[i])) {
                counted = reply.message;
                ++out_.counts.special_replies;
                if (out_.counts.special.empty()) out_.counts.special = tokenizer_.decode({&out_.tokens[i], 1}, true);
            }
}

ChatTokens ChatRendering::tokens() {
    if (conversation_.messages.empty()) return {};
    check_takes();
    const size_t count = conversation_.messages.size();
    const jinja::Rendered whole = render(count, false);
    const std::vector<OwnWords> words = own_words(whole, count);
    check_roles(words);
    count_lost(words);
    if (whole.text.empty()) return std::move(out_);
    const RenderFirst first = [&](size_t n, bool generation_prompt) -> std::optional<std::string> {
        try {
            return render(n, generation_prompt).text;
        } catch (const jinja::TemplateError&) {
            return std::nullopt;  // a beginning that the template refuses shows nothing
        }
    };
    const Turns turns = find_turns(whole, conversation_, template_, words, first, where_);
    out_.counts.context_turns = turns.context_turns;
    out_.counts.other_openings = turns.other_openings;
    mark(whole, turns);
    out_.counts.conversations = out_.counts.context_turns != 0;
    return std::move(out_);
}

std::vector<uint32_t> ChatRendering::prompt() {
    check_takes();
    const jinja::Rendered rendered = render(conversation_.messages.size(), true);
    std::vector<size_t> token_at;
    return tokenizer_.encode_placed(rendered.text, plain_ranges(rendered), {}, token_at);
}

namespace {

// Runs f. Errors of the template name the record first.
template <class F>
auto with_place(const std::string& where, const F& f) {
    try {
        return f();
    } catch (const jinja::TemplateError& error) {
        throw UserError(
            {.subject = where,
             .given = "the chat template cannot render it: " + error.error.given + " (" + error.error.subject + ")",
             .wanted = error.error.wanted,
             .hint = error.error.hint});
    } catch (const jinja::Problem& problem) {
        throw UserError({.subject = where, .given = problem.given, .wanted = problem.wanted, .hint = problem.hint});
    }
}

}  // namespace

ChatTokens ChatTemplate::render(const Tokenizer& tokenizer, const Conversation& conversation,
                                const std::string& where) const {
    return with_place(where, [&] { return ChatRendering(*this, tokenizer, conversation, where).tokens(); });
}

std::vector<uint32_t> ChatTemplate::prompt(const Tokenizer& tokenizer, const Conversation& conversation,
                                           const std::string& where) const {
    return with_place(where, [&] { return ChatRendering(*this, tokenizer, conversation, where).prompt(); });
}

std::vector<uint32_t> ChatTemplate::ends_of_turn(const Tokenizer& tokenizer) const {
    Conversation conversation;
    conversation.add("user", "a");
    conversation.add("assistant", "b");
    std::vector<uint32_t> ends;
    try {
        const ChatTokens chat = render(tokenizer, conversation, "a conversation");
        for (size_t i = chat.tokens.size(); i-- > 0;) {
            if (chat.is_reply[i] && tokenizer.is_special(chat.tokens[i])) ends.insert(ends.begin(), chat.tokens[i]);
            if (chat.is_reply[i] && !tokenizer.is_special(chat.tokens[i])) break;
        }
    } catch (const UserError&) {
        // A template that refuses this conversation says nothing of its ends.
    }
    return ends;
}

}  // namespace slab::data
