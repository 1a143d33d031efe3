// A template is recognised only when it is sure to write what render() writes; a doubtful one is left to the user.
#include "data/chat_template.h"

#include <string_view>

#include "data/base/error.h"
#include "data/base/utf8.h"

namespace slab::data {

namespace {

constexpr const char* kImStart = "<|im_start|>";
constexpr const char* kImEnd = "<|im_end|>";
constexpr const char* kStartHeader = "<|start_header_id|>";
constexpr const char* kEndHeader = "<|end_header_id|>";
constexpr const char* kEndOfTurn = "<|eot_id|>";

bool holds(std::string_view text, std::string_view part) {
    return text.find(part) != std::string_view::npos;
}

std::optional<ChatFormat> recognise(const Tokenizer& tokenizer) {
    const std::string& jinja = tokenizer.chat_template();
    if (!jinja.empty()) {
        // Forms with the same special tokens that write more or less than the messages: Phi's im_sep between role and
        // text, Llama 3.1's system block of dates, Qwen3's empty thoughts before the last reply, trimmed ChatML.
        for (const char* const more : {"<|im_sep|>", "Knowledge Date", "<think>"})
            if (holds(jinja, more)) return std::nullopt;
        if (holds(jinja, kImStart) && holds(jinja, kImEnd) && !holds(jinja, "trim")) return ChatFormat::chatml;
        if (holds(jinja, kStartHeader) && holds(jinja, kEndOfTurn)) return ChatFormat::llama3;
        return std::nullopt;  // a form of its own: the special tokens would mislead
    }
    if (tokenizer.id_of(kImStart) && tokenizer.id_of(kImEnd)) return ChatFormat::chatml;
    if (tokenizer.id_of(kStartHeader) && tokenizer.id_of(kEndHeader) && tokenizer.id_of(kEndOfTurn))
        return ChatFormat::llama3;
    return std::nullopt;
}

// The system message that a ChatML template adds to a conversation without one. A message with quotes, braces or
// escapes does not count: it may be computed.
std::string default_system_of(std::string_view jinja) {
    for (const std::string_view line_end : {"\\n", "\n"}) {
        const std::string opening = std::string(kImStart) + "system" + std::string(line_end);
        for (size_t at = jinja.find(opening); at != std::string_view::npos; at = jinja.find(opening, at + 1)) {
            const std::string_view rest = jinja.substr(at + opening.size());
            const std::string_view text = rest.substr(0, rest.find(kImEnd));
            if (text.size() < rest.size() && !text.empty() && text.find_first_of("'\"{}\\") == std::string_view::npos)
                return std::string(text);
        }
    }
    return "";
}

// Trims as Jinja does: by Python's white space, which is Unicode's and four control characters.
std::string_view trimmed(std::string_view text) {
    const auto blank = [](Utf8Char c) {
        return c.bytes > 0 && (is_white_space(c.code_point) || (c.code_point >= 0x1c && c.code_point <= 0x1f));
    };
    while (!text.empty() && blank(utf8_char_at(text, 0))) text.remove_prefix(utf8_char_at(text, 0).bytes);
    while (!text.empty() && blank(utf8_char_before(text, text.size())))
        text.remove_suffix(utf8_char_before(text, text.size()).bytes);
    return text;
}

uint32_t required(const Tokenizer& tokenizer, const char* special, const char* format) {
    if (const auto id = tokenizer.id_of(special)) return *id;
    throw UserError(
        {.subject = std::string("chat template ") + format,
         .given = std::string("the vocabulary has no token ") + special + " (" + tokenizer.description() + ")",
         .hint = "use the instruct variant of the model, or records of prompt and completion"});
}

}  // namespace

std::optional<ChatTemplate> ChatTemplate::find(const Tokenizer& tokenizer, const std::string& given) {
    std::optional<ChatFormat> format;
    if (given.empty()) {
        format = recognise(tokenizer);
        if (!format) return std::nullopt;
    } else if (given == "chatml") {
        format = ChatFormat::chatml;
    } else if (given == "llama3") {
        format = ChatFormat::llama3;
    } else {
        throw UserError({.subject = "--chat-template " + given, .wanted = "chatml or llama3"});
    }
    const std::string& jinja = tokenizer.chat_template();
    ChatTemplate result;
    result.format_ = *format;
    if (*format == ChatFormat::chatml) {
        result.begin_ = required(tokenizer, kImStart, "ChatML");
        result.end_ = required(tokenizer, kImEnd, "ChatML");
        if (recognise(tokenizer) == format) result.default_system_ = default_system_of(jinja);
        const bool wants_bos = jinja.empty() ? tokenizer.adds_bos() : holds(jinja, "bos_token");
        if (wants_bos && tokenizer.bos() != result.begin_) result.bos_ = tokenizer.bos();
    } else {
        result.begin_ = required(tokenizer, kStartHeader, "Llama 3");
        result.middle_ = required(tokenizer, kEndHeader, "Llama 3");
        result.end_ = required(tokenizer, kEndOfTurn, "Llama 3");
        result.bos_ = tokenizer.id_of("<|begin_of_text|>");
    }
    return result;
}

void ChatTemplate::render(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                          std::vector<uint32_t>& tokens, std::vector<uint8_t>& is_reply) const {
    const auto special = [&](uint32_t token, bool reply = false) {
        tokens.push_back(token);
        is_reply.push_back(reply);
    };
    const auto plain = [&](std::string_view text, bool reply = false) {
        for (const uint32_t token : tokenizer.encode(text, SpecialTokens::as_text)) special(token, reply);
    };
    const auto message = [&](std::string_view role, std::string_view content) {
        const bool reply = role == "assistant";
        std::string header(role);
        special(begin_);
        if (format_ == ChatFormat::llama3) {
            plain(header);
            special(middle_);
            header.clear();
            content = trimmed(content);
        }
        header += format_ == ChatFormat::llama3 ? "\n\n" : "\n";
        if (reply) {
            plain(header);
            plain(content, true);
        } else {
            plain(header.append(content));
        }
        special(end_, reply);
        if (format_ == ChatFormat::chatml) plain("\n");
    };
    if (bos_) special(*bos_);
    if (!default_system_.empty() && !messages.empty() && messages[0].role != "system")
        message("system", default_system_);
    for (const ChatMessage& m : messages) message(m.role, m.content);
}

std::string ChatTemplate::description() const {
    return format_ == ChatFormat::chatml ? "ChatML" : "Llama 3";
}

}  // namespace slab::data
