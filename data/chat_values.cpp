// Values point into the conversation's JSON; only joined contents are copied.
#include "data/chat_values.h"

#include "data/jinja/from_json.h"

namespace slab::data {

using json = nlohmann::ordered_json;
using jinja::Value;

namespace {

Value value_of(const json& value, jinja::Arena& arena, uint32_t origin) {
    return jinja::from_json(value, arena, [origin](const std::string&) { return origin; });
}

const json* thoughts_of(const json& message) {
    for (const char* const key : {"reasoning_content", "thinking", "reasoning"})
        if (const auto found = message.find(key); found != message.end() && !found->is_null()) return &*found;
    return nullptr;
}

MessagePart part_of_key(const std::string& key) {
    if (key == "role") return MessagePart::role;
    if (key == "content") return MessagePart::content;
    if (key == "reasoning_content" || key == "thinking" || key == "reasoning") return MessagePart::thoughts;
    return MessagePart::calls;
}

}  // namespace

ChatValues::ChatValues(const Conversation& conversation, const std::map<std::string, std::string>& special_tokens,
                       bool takes_lists)
    : conversation_(conversation), special_tokens_(special_tokens), takes_lists_(takes_lists) {
    messages_.reserve(conversation.messages.size());
    for (const json& message : conversation.messages) messages_.push_back(message_value(message, messages_.size()));
    if (!conversation.tools.is_null()) tools_ = value_of(conversation.tools, arena_, kOtherOrigin);
}

Value ChatValues::content_value(const json& content, uint32_t origin) {
    if (!content.is_array() || takes_lists_) return value_of(content, arena_, origin);
    std::string joined;
    for (const json& part : content) joined += part["text"].get_ref<const std::string&>();
    return Value::text_of(arena_.copy(joined), origin);
}

Value ChatValues::message_value(const json& message, size_t index) {
    jinja::DictBuilder dict(arena_);
    const json* const thoughts = thoughts_of(message);
    const auto set = [&](const std::string& key, std::string_view name, const json& value) {
        const uint32_t origin = origin_of(index, part_of_key(key));
        dict.set(Value::text_of(name),
                 key == "content" ? content_value(value, origin) : value_of(value, arena_, origin));
    };
    if (thoughts != nullptr && !(message.contains("thinking") && !message["thinking"].is_null()))
        set("thinking", "thinking", *thoughts);
    for (auto item = message.begin(); item != message.end(); ++item)
        if (!item.value().is_null()) set(item.key(), item.key(), item.value());
    if (thoughts != nullptr) set("thinking", "reasoning_content", *thoughts);
    return dict.finish();
}

Value ChatValues::context(size_t n, bool generation_prompt) {
    jinja::DictBuilder context(arena_);
    for (const auto& [name, token] : special_tokens_) context.set(Value::text_of(name), Value::text_of(token));
    context.set(Value::text_of("messages"), Value::list_of(messages_.data(), n));
    context.set(Value::text_of("tools"), tools_);
    context.set(Value::text_of("documents"), Value::none());
    context.set(Value::text_of("add_generation_prompt"), Value::of(generation_prompt));
    if (conversation_.variables.is_object())
        for (auto item = conversation_.variables.begin(); item != conversation_.variables.end(); ++item)
            context.set(Value::text_of(item.key()), value_of(item.value(), arena_, kOtherOrigin));
    return context.finish();
}

}  // namespace slab::data
