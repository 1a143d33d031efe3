// Everything that needs no template is checked here; the rest when the conversation is rendered (chat_template.h).
#include "data/conversation.h"

#include <algorithm>
#include <array>
#include <optional>

#include "data/base/display.h"
#include "data/base/error.h"
#include "data/base/json_file.h"

namespace slab::data {

using json = nlohmann::ordered_json;

namespace {

[[noreturn]] void fail(const std::string& where, const std::string& given, const std::string& wanted,
                       const std::string& hint = "") {
    throw UserError({.subject = where, .given = given, .wanted = wanted, .hint = hint});
}

std::string named(std::string_view key, const json& value) {
    return quote(std::string(key)) + " is " + shown(value);
}

// What the flag of a message or record says; nothing for null.
std::optional<bool> flag_of(std::string_view key, const json& value, const std::string& where) {
    if (value.is_null()) return std::nullopt;
    if (value.is_boolean() && key != "weight") return value.get<bool>();
    if (value == 0) return false;
    if (value == 1) return true;
    if (key == "weight") fail(where, named(key, value), "1 or 0: other weights are not implemented");
    fail(where, named(key, value), "true, false, 1 or 0");
}

constexpr std::array<std::string_view, 5> kTrainKeys = {"train", "training", "loss", "loss_mask", "weight"};

// Of messages: keys that change what is trained on, or what the model sees beside the text.
const std::vector<std::string_view>& refused_keys() {
    static const std::vector<std::string_view> keys = {"train_detail",
                                                       "training_detail",
                                                       "trainable",
                                                       "masked",
                                                       "mask",
                                                       "masks",
                                                       "ignore_loss",
                                                       "loss_weight",
                                                       "loss_weights",
                                                       "weights",
                                                       "token_mask",
                                                       "image",
                                                       "images",
                                                       "video",
                                                       "videos",
                                                       "audio",
                                                       "audios",
                                                       "refusal",
                                                       "continue_final_message"};
    return keys;
}

// Keys that the template knows or that are checked with it.
bool has_meaning(std::string_view key) {
    for (const std::string_view known :
         {"role", "content", "tool_calls", "function_call", "reasoning_content", "reasoning", "thinking"})
        if (key == known) return true;
    return std::find(refused_keys().begin(), refused_keys().end(), key) != refused_keys().end();
}

void check_content(const json& message, Conversation& conversation, const std::string& where) {
    const auto content = message.find("content");
    const auto calls = message.find("tool_calls"), call = message.find("function_call");
    const bool has_calls =
        (calls != message.end() && !says_nothing(*calls)) || (call != message.end() && !says_nothing(*call));
    if (content == message.end() || content->is_null()) {
        if (has_calls) return;  // a reply that only calls
        if (content == message.end()) fail(where, "it has " + keys_of(message), "\"role\" and \"content\"");
    } else if (content->is_string()) {
        return;
    }
    const std::string wanted = "a text, or a list of {\"type\": \"text\", \"text\": \"...\"}";
    if (!content->is_array()) fail(where, named("content", *content), wanted);
    for (const json& part : *content) {
        if (!part.is_object() || part.value("type", json()) != "text" || !part.contains("text"))
            fail(where, "\"content\" has the part " + shown(part), wanted);
        if (!part["text"].is_string()) fail(where, named("text", part["text"]), "a text in quotes");
        for (const auto& [key, value] : part.items())
            if (key != "type" && key != "text" && !value.is_null()) conversation.other_keys.push_back("content." + key);
    }
}

// The thoughts that a message gives by one of their three names; two names must agree.
void check_thoughts(const json& message, const std::string& where) {
    const json* first = nullptr;
    for (const char* const key : {"reasoning_content", "thinking", "reasoning"}) {
        const auto found = message.find(key);
        if (found == message.end() || found->is_null()) continue;
        if (!found->is_string()) fail(where, named(key, *found), "a text in quotes");
        if (first != nullptr && *first != *found)
            fail(where, named(key, *found), "the same thoughts as under the other name");
        first = &*found;
    }
}

}  // namespace

bool says_nothing(const json& value) {
    return value.is_null() || (value.is_string() ? value == "" : value.is_structured() && value.empty());
}

std::string keys_of(const json& object) {
    constexpr size_t most = 12;
    std::string keys;
    size_t n = 0;
    for (const auto& [key, value] : object.items()) {
        if (n++ == most) return "the keys " + keys + ", ...";
        keys += (keys.empty() ? "" : ", ") + quote(key);
    }
    return keys.empty() ? "no keys" : "the keys " + keys;
}

Train take_train_keys(json& object, const std::string& where) {
    Train said = Train::unsaid;
    std::string first;
    for (const std::string_view key : kTrainKeys) {
        const auto found = object.find(key);
        if (found == object.end()) continue;
        if (const auto flag = flag_of(key, *found, where)) {
            const Train now = *flag ? Train::yes : Train::no;
            if (said != Train::unsaid && said != now)
                fail(where, named(key, *found) + ", and " + first, "keys that agree on whether to train on it");
            said = now;
            first = named(key, *found);
        }
        object.erase(found);
    }
    return said;
}

void refuse_keys(const json& object, const std::vector<std::string_view>& keys, const std::string& where) {
    for (auto item = object.begin(); item != object.end(); ++item) {
        if (std::find(keys.begin(), keys.end(), item.key()) == keys.end() || says_nothing(item.value())) continue;
        fail(where, named(item.key(), item.value()), "none: it is not implemented",
             "remove the key if the record means the same without it");
    }
}

void Conversation::add(std::string_view role, std::string_view content) {
    messages.push_back(json{{"role", role}, {"content", content}});
    train.push_back(Train::unsaid);
}

void Conversation::add_messages(json list, const std::string& where) {
    if (!list.is_array()) fail(where, named("messages", list), "a list of {\"role\", \"content\"}");
    size_t number = 0;
    for (json& message : list) {
        const std::string here = where + ", message " + std::to_string(++number);
        if (!message.is_object()) fail(here, "it is " + shown(message), "{\"role\": ..., \"content\": ...}");
        refuse_keys(message, refused_keys(), here);
        const auto role = message.find("role");
        if (role == message.end()) fail(here, "it has " + keys_of(message), "\"role\" and \"content\"");
        if (!role->is_string() || *role == "") fail(here, named("role", *role), "a text in quotes");
        check_content(message, *this, here);
        check_thoughts(message, here);
        const Train said = take_train_keys(message, here);
        if (said == Train::yes && message["role"] != "assistant")
            fail(here, "it is a message of the role " + shown(message["role"]) + " that is to be trained on",
                 "replies: role \"assistant\"", "--train-on-inputs trains on everything");
        for (auto item = message.begin(); item != message.end(); ++item)
            if (!has_meaning(item.key()) && !item.value().is_null()) other_keys.push_back(item.key());
        messages.push_back(std::move(message));
        train.push_back(said);
    }
}

void Conversation::add_system(const std::string& text, const std::string& where) {
    if (!messages.empty() && messages[0].value("role", json()) == "system") {
        if (messages[0].value("content", json()) == text) return;
        fail(where, "\"system\" is " + shown(json(text)) + ", and the first message is another system message",
             "one of them");
    }
    messages.insert(messages.begin(), json{{"role", "system"}, {"content", text}});
    train.insert(train.begin(), Train::unsaid);
}

void Conversation::set_tools(const json& value, const std::string& where) {
    if (says_nothing(value)) return;
    const std::string wanted = "a list of objects, each with a tool's description";
    tools = value;
    if (value.is_string()) tools = parse_ordered_json(value.get_ref<const std::string&>(), where + ", \"tools\"");
    if (tools.is_array() && tools.empty()) tools = nullptr;
    if (tools.is_null()) return;
    if (!tools.is_array()) fail(where, named("tools", value), wanted);
    for (const json& tool : tools)
        if (!tool.is_object()) fail(where, "\"tools\" holds " + shown(tool), wanted);
}

}  // namespace slab::data
