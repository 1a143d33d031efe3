// Both forms have generation blocks, so that a conversation is rendered once.
#include "data/chat_forms.h"

#include <algorithm>

namespace slab::data {

namespace {

const ChatForm kChatml{"ChatML",
                       {"<|im_start|>", "<|im_end|>"},
                       R"({{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|im_start|>assistant
' }}{% generation %}{{ m.content }}{{ '<|im_end|>' }}{% endgeneration %}{{ '
' }}{% elif m.role in ['user', 'system'] %}{{ '<|im_start|>' + m.role + '
' + m.content + '<|im_end|>
' }}{% else %}{{ raise_exception('the fixed form ChatML has the roles system, user and assistant, and no ' + m.role) }}{%
endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %})"};

const ChatForm kLlama3{"Llama 3",
                       {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
                       R"({{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{{
'<|start_header_id|>assistant<|end_header_id|>

' }}{% generation %}{{ m.content | trim }}{{ '<|eot_id|>' }}{% endgeneration %}{% elif m.role in ['user', 'system'] %}{{
'<|start_header_id|>' + m.role + '<|end_header_id|>

' + m.content | trim + '<|eot_id|>' }}{% else %}{{
raise_exception('the fixed form Llama 3 has the roles system, user and assistant, and no ' + m.role) }}{%
endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>

' }}{% endif %})"};

}  // namespace

const ChatForm& chat_form(const std::string& form) {
    return form == "llama3" ? kLlama3 : kChatml;
}

const char* form_of_vocabulary(const std::function<bool(const char* special)>& has) {
    for (const char* form : {"chatml", "llama3"}) {
        const auto& special = chat_form(form).special_tokens;
        if (std::all_of(special.begin(), special.end(), has)) return form;
    }
    return nullptr;
}

}  // namespace slab::data
