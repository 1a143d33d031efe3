// The fixed forms of conversations, for models that have no chat template: ChatML and Llama 3, as templates.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace slab::data {

struct ChatForm {
    std::string name;  // "ChatML"
    std::vector<const char*> special_tokens;
    const char* source;  // Jinja
};

const ChatForm& chat_form(const std::string& form);  // "chatml" or "llama3"
// The form whose special tokens a vocabulary has, or null.
const char* form_of_vocabulary(const std::function<bool(const char* special)>& has);

}  // namespace slab::data
