// Conversations as tokens, in the two forms that most models were trained on:
//
//   ChatML   <|im_start|>ROLE\nCONTENT<|im_end|>\n                                    for each message
//   Llama 3  <|begin_of_text|>, then <|start_header_id|>ROLE<|end_header_id|>\n\nCONTENT<|eot_id|>   for each message,
//            CONTENT without the blanks around it
//
// (Sources: the `chat_template` of HuggingFaceTB/SmolLM2-135M-Instruct and Qwen/Qwen2-0.5B-Instruct; that of
// meta-llama/Meta-Llama-3-8B-Instruct.) The tokenizer's Jinja text is not run, only looked at: to recognise which of
// the two it is, and for the system message that ChatML templates put before a conversation without one. Dates and
// tools (Llama 3.1) and empty thoughts (Qwen3) are not added.
//
// A reply is tokenised apart from the header in front of it, as when a model generates it: what is trained on is what
// will be predicted. Text never becomes a special token: "<|im_end|>" inside a message stays the characters it is.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/records.h"
#include "data/tokenizer/tokenizer.h"

namespace slab::data {

enum class ChatFormat { chatml, llama3 };

class ChatTemplate {
  public:
    // `given` is "" (recognise by the tokenizer's template, else by its special tokens), "chatml" or "llama3".
    // Nothing when none was given and none is recognised. Throws std::runtime_error when `given` is another name, or
    // the vocabulary lacks a special token of the form.
    static std::optional<ChatTemplate> find(const Tokenizer& tokenizer, const std::string& given);

    // Appends the conversation. is_reply [as many]: 1 for an assistant's words and the token that ends its turn.
    void render(const Tokenizer& tokenizer, std::span<const ChatMessage> messages, std::vector<uint32_t>& tokens,
                std::vector<uint8_t>& is_reply) const;

    ChatFormat format() const { return format_; }
    const std::string& default_system() const { return default_system_; }  // empty: none
    std::string description() const;                                       // "ChatML", "Llama 3"

  private:
    ChatFormat format_;
    std::optional<uint32_t> bos_;                // in front of a conversation
    uint32_t begin_ = 0, middle_ = 0, end_ = 0;  // of a message; ChatML has no middle_
    std::string default_system_;
};

}  // namespace slab::data
