// A conversation as a template's values, with the origin of every text.
//
// As transformers does, keys of messages that are null are left out, and thoughts are given by both of the names that
// templates have for them: "thinking" first, "reasoning_content" last.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "data/chat_turns.h"
#include "data/conversation.h"
#include "data/jinja/value.h"

namespace slab::data {

class ChatValues {
  public:
    // Conversation and special tokens must outlive the values. takes_lists: contents that are lists stay lists, else
    // their texts are joined. Throws a jinja::Problem for integers of more than 64 bits.
    ChatValues(const Conversation& conversation, const std::map<std::string, std::string>& special_tokens,
               bool takes_lists);

    // The context for the first n messages.
    jinja::Value context(size_t n, bool generation_prompt);

  private:
    jinja::Value message_value(const nlohmann::ordered_json& message, size_t index);
    jinja::Value content_value(const nlohmann::ordered_json& content, uint32_t origin);

    jinja::Arena arena_;
    const Conversation& conversation_;
    const std::map<std::string, std::string>& special_tokens_;
    bool takes_lists_;
    std::vector<jinja::Value> messages_;
    jinja::Value tools_ = jinja::Value::none(), variables_ = jinja::Value::none();
};

}  // namespace slab::data
