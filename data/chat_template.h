// Conversations as tokens, in the two forms that most models were trained on:
//
//   ChatML   <|im_start|>ROLE\nCONTENT<|im_end|>\n                                    for each message
//   Llama 3  <|begin_of_text|>, then <|start_header_id|>ROLE<|end_header_id|>\n\nCONTENT<|eot_id|>   for each message,
//            CONTENT without the blanks around it
//
// (Sources: the `chat_template` of HuggingFaceTB/SmolLM2-135M-Instruct and Qwen/Qwen2-0.5B-Instruct; that of
// meta-llama/Meta-Llama-3-8B-Instruct.) The tokenizer's Jinja text is not run. It only tells which of the two forms it
// is, and which system message ChatML puts before a conversation without one. Dates and tools (Llama 3.1) and empty
// thoughts (Qwen3) are not added.
//
// A reply is tokenised apart from the header before it, as when a model generates it: the trained tokens are those that
// will be predicted. Text never becomes a special token: "<|im_end|>" inside a message stays plain characters.
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
    // `given` is "chatml", "llama3", or "" to recognise the form by the tokenizer's template, else by its special
    // tokens. Returns nothing when none was given and none is recognised. Throws UserError when `given` is another
    // name, or the vocabulary lacks a special token of the form.
    static std::optional<ChatTemplate> find(const Tokenizer& tokenizer, const std::string& given);

    // Appends the conversation to `tokens`, and as many bytes to is_reply: 1 for an assistant's words and the token
    // that ends its turn.
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
