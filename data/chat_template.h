// Conversations as tokens, by the model's own chat template.
//
// The template is a program in Jinja's language (data/jinja/). It is compiled once and evaluated for each conversation,
// as transformers' apply_chat_template does; the ids are those of the whole text. Fixed forms are templates too:
//
//   chatml   <|im_start|>ROLE\nCONTENT<|im_end|>\n for each message
//   llama3   <|begin_of_text|>, then <|start_header_id|>ROLE<|end_header_id|>\n\nCONTENT<|eot_id|> for each message,
//            CONTENT without the blanks around it
//
// Which tokens are an assistant's turn: chat_turns.h. What is spelled like a special token stays text in every message
// but the assistant's. There it becomes the token, as in the template's own tokenising, and is counted.
#pragma once

#include <cstdint>
#include <ctime>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/chat_turns.h"
#include "data/conversation.h"
#include "data/jinja/template.h"
#include "data/tokenizer/tokenizer.h"

namespace slab::data {

// What rendering conversations did that a user may not expect. Numbers of messages, but for `conversations`.
struct ChatCounts {
    size_t conversations = 0;    // with such turns:
    size_t context_turns = 0;    // replies that are context only, since the template changes them later
    size_t other_openings = 0;   // replies without all of what the template's generation prompt has
    size_t endless = 0;          // replies that no special token ends
    size_t special_replies = 0;  // replies that spell special tokens, which they became
    std::string special;         // the first of these tokens
    size_t lost_contents = 0, lost_thoughts = 0, lost_calls = 0;  // what the template left out
    std::vector<std::string> unused_keys = {};                    // of messages, one each time

    void add(const ChatCounts& more);
};

struct ChatTokens {
    std::vector<uint32_t> tokens;
    std::vector<uint8_t> is_reply;  // as many: 1 for what an assistant says and the token that ends its turn
    ChatCounts counts;
};

struct ChatSettings {
    std::string given = {};  // --chat-template: "chatml", "llama3", a file, or "" for the model's own
    std::tm now = {};        // what strftime_now shows
};

class ChatTemplate {
  public:
    // The template that is given, else the model's own. Where it has none: the fixed form whose special tokens the
    // vocabulary has, or nothing. Throws UserError for a file that cannot be read, a template that does not compile,
    // and a fixed form whose special tokens are missing.
    static std::optional<ChatTemplate> find(const Tokenizer& tokenizer, const ChatSettings& settings);

    // Any thread may. where: the record, for errors. Throws UserError where the template refuses the conversation, or
    // has no place for its tools, roles or keys.
    ChatTokens render(const Tokenizer& tokenizer, const Conversation& conversation, const std::string& where) const;
    // Up to where the assistant's reply begins.
    std::vector<uint32_t> prompt(const Tokenizer& tokenizer, const Conversation& conversation,
                                 const std::string& where) const;
    // The special tokens that end an assistant's turn; none where the template has none.
    std::vector<uint32_t> ends_of_turn(const Tokenizer& tokenizer) const;

    // "chat template of FILE", "ChatML", "ChatML, as the model has no template"
    const std::string& description() const { return description_; }
    bool shows_date() const;  // whether strftime_now is called

  private:
    friend class ChatRendering;
    explicit ChatTemplate(const Tokenizer& tokenizer, const ChatSettings& settings);
    void use(std::string_view source, const std::string& name, std::string description);
    void use_form(const Tokenizer& tokenizer, const std::string& form, const std::string& why);
    bool takes_lists() const;

    std::shared_ptr<const jinja::Template> standard_, tool_use_;  // tool_use_ is null without one
    std::map<std::string, std::string> special_tokens_;           // by their names in templates
    jinja::RenderOptions options_;
    std::string description_;
    bool takes_lists_ = false;  // contents that are lists of parts
};

// The identity of --chat-template's value: a form's name, or a hash of the file's text.
std::string chat_template_identity(const std::string& given);

}  // namespace slab::data
