// A conversation of a record: what a chat template gets, and which messages are to be trained on.
//
// A message is an object with "role" and "content", a text or a list of {"type": "text", "text": "..."}. Its other keys
// are kept in their order, for the template. These say whether a reply is trained on: "train", "training", "loss" and
// "loss_mask", as true, false, 1 or 0, and "weight", as 1 or 0. They may not contradict each other. Keys that would
// change what is trained on and have no meaning here are refused by name, unless they are empty.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace slab::data {

enum class Train : uint8_t { unsaid, no, yes };

struct Conversation {
    nlohmann::ordered_json messages = nlohmann::ordered_json::array();  // without the keys that say what is trained on
    nlohmann::ordered_json tools = nullptr;                             // a list, or null
    nlohmann::ordered_json variables = nullptr;  // more names for the template: an object, or null
    std::vector<Train> train = {};               // by message
    std::vector<std::string> other_keys = {};    // of messages: those without a meaning of their own, one each time

    // A message of a text.
    void add(std::string_view role, std::string_view content);
    // Appends a list of messages. where: the record. Throws UserError naming record, message and key.
    void add_messages(nlohmann::ordered_json list, const std::string& where);
    // Puts a system message first. One that is there must have the same text.
    void add_system(const std::string& text, const std::string& where);
    // Tools as a list of objects, or as the text of such a list.
    void set_tools(const nlohmann::ordered_json& value, const std::string& where);
};

// Whether the value says nothing: null, an empty text, list or object.
bool says_nothing(const nlohmann::ordered_json& value);
// "no keys", or "the keys "a", "b"", for messages.
std::string keys_of(const nlohmann::ordered_json& object);
// Removes the keys that say whether to train on `object`, a message or a record, and returns what they say.
Train take_train_keys(nlohmann::ordered_json& object, const std::string& where);
// Refuses each of `keys` that `object` has and that says something.
void refuse_keys(const nlohmann::ordered_json& object, const std::vector<std::string_view>& keys,
                 const std::string& where);

}  // namespace slab::data
