// A line is JSON first, then a record of the one kind whose keys it has.
#include "data/records.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <nlohmann/json.hpp>

#include "data/base/display.h"
#include "data/base/error.h"
#include "data/base/foreign_file.h"
#include "data/base/json_file.h"

namespace slab::data {

using json = nlohmann::ordered_json;

namespace {

constexpr size_t kReadBytes = size_t{1} << 20;

struct Shape {
    RecordKind kind;
    std::string_view name;
    std::vector<std::string_view> keys;  // all required
};

const std::array<Shape, 4>& shapes() {
    static const std::array<Shape, 4> all = {
        {{RecordKind::text, "text", {"text"}},
         {RecordKind::completion, "prompt and completion", {"prompt", "completion"}},
         {RecordKind::instruction, "instruction and output", {"instruction", "output"}},
         {RecordKind::chat, "messages", {"messages"}}}};
    return all;
}

[[noreturn]] void fail(const std::string& where, const std::string& given, const std::string& wanted,
                       const std::string& hint = "") {
    throw UserError({.subject = where, .given = given, .wanted = wanted, .hint = hint});
}

// The one kind whose keys the record has.
RecordKind kind_of(const json& object, const std::string& where) {
    const std::string wanted =
        "\"text\", or \"prompt\" and \"completion\", or \"instruction\" and \"output\" (with or "
        "without \"input\"), or \"messages\"";
    const Shape* found = nullptr;
    for (const Shape& shape : shapes()) {
        if (std::none_of(shape.keys.begin(), shape.keys.end(), [&](auto key) { return object.contains(key); }))
            continue;
        if (found)
            fail(where,
                 "the record has " + keys_of(object) + ", which are of two kinds (" + std::string(found->name) + "; " +
                     std::string(shape.name) + ")",
                 "the keys of one kind only", "remove the others");
        found = &shape;
    }
    if (!found) fail(where, "the record has " + keys_of(object), wanted);
    for (const std::string_view key : found->keys)
        if (!object.contains(key))
            fail(where, "the record has " + keys_of(object) + " and lacks \"" + std::string(key) + "\"", wanted);
    return found->kind;
}

std::string text_of(const json& object, const char* key, const std::string& where) {
    const json& value = object.at(key);
    if (!value.is_string()) fail(where, "\"" + std::string(key) + "\" is " + shown(value), "a text in quotes");
    return value.get<std::string>();
}

// Keys of records that change what is trained on, or what the model sees, and have no meaning here.
const std::vector<std::string_view>& refused_keys() {
    static const std::vector<std::string_view> keys = {
        "context",         "functions",     "function_call",  "reasoning_content",
        "reasoning",       "thinking",      "thought",        "thoughts",
        "chosen",          "rejected",      "conversations",  "chat_template",
        "prefix",          "suffix",        "input_ids",      "attention_mask",
        "labels",          "mask",          "masks",          "completion_mask",
        "assistant_masks", "token_weights", "loss_weight",    "loss_weights",
        "sample_weight",   "weights",       "train_on_input", "train_on_inputs",
        "train_on_prompt", "image",         "images",         "video",
        "videos",          "audio",         "audios"};
    return keys;
}

// A list of [question, answer], or of messages, that comes before an instruction.
void add_history(const json& history, Conversation& conversation, const std::string& where) {
    if (says_nothing(history)) return;
    const std::string wanted = "a list of [question, answer], or of messages";
    if (!history.is_array()) fail(where, "\"history\" is " + shown(history), wanted);
    if (history[0].is_object()) return conversation.add_messages(history, where + ", \"history\"");
    for (const json& turn : history) {
        if (!turn.is_array() || turn.size() != 2 || !turn[0].is_string() || !turn[1].is_string())
            fail(where, "\"history\" holds " + shown(turn), wanted);
        conversation.add("user", turn[0].get_ref<const std::string&>());
        conversation.add("assistant", turn[1].get_ref<const std::string&>());
    }
}

// The keys that chats and instructions have beside their own.
void read_chat_keys(const json& object, Record& record, const std::string& where) {
    Conversation& conversation = record.conversation;
    if (const auto system = object.find("system"); system != object.end() && !says_nothing(*system)) {
        conversation.add_system(text_of(object, "system", where), where);
        record.asks_for_template = "system";
    }
    if (const auto tools = object.find("tools"); tools != object.end()) {
        conversation.set_tools(*tools, where);
        if (!conversation.tools.is_null()) record.asks_for_template = "tools";
    }
    json& variables = conversation.variables;
    if (const auto more = object.find("chat_template_kwargs"); more != object.end() && !says_nothing(*more)) {
        if (!more->is_object()) fail(where, "\"chat_template_kwargs\" is " + shown(*more), "an object of names");
        variables = *more;
    }
    if (const auto documents = object.find("documents"); documents != object.end() && !says_nothing(*documents)) {
        if (variables.is_null()) variables = json::object();
        variables["documents"] = *documents;
    }
    if (!variables.is_null()) record.asks_for_template = "chat_template_kwargs or documents";
}

bool belongs_to(RecordKind kind, std::string_view key) {
    const Shape& shape = shapes()[static_cast<size_t>(kind)];
    if (std::find(shape.keys.begin(), shape.keys.end(), key) != shape.keys.end()) return true;
    const bool instruction = kind == RecordKind::instruction;
    if (instruction && (key == "input" || key == "history")) return true;
    if (!instruction && kind != RecordKind::chat) return false;
    return key == "system" || key == "tools" || key == "chat_template_kwargs" || key == "documents";
}

// Refuses or notes the keys that the record's kind has no meaning for.
void check_other_keys(const json& object, Record& record, const std::string& where) {
    refuse_keys(object, refused_keys(), where);
    for (auto item = object.begin(); item != object.end(); ++item) {
        const std::string& key = item.key();
        if (belongs_to(record.kind, key)) continue;
        // Keys of another kind of record say what this one cannot show.
        for (const std::string_view other :
             {"system", "history", "tools", "input", "chat_template_kwargs", "documents"})
            if (key == other && !says_nothing(item.value()))
                fail(where, quote(key) + " is " + shown(item.value()),
                     "none beside " + std::string(name_of(record.kind)) + ", where it has no place",
                     key == "history" || key == "input" ? "" : "records of \"messages\" have one");
        if (!item.value().is_null()) record.unused.push_back(key);
    }
}

Record record_of(json object, const std::string& where) {
    if (!object.is_object()) fail(where, "found " + shown(object), "a JSON object, {...}, on each line");
    Record record;
    record.kind = kind_of(object, where);
    record.train = take_train_keys(object, where);
    check_other_keys(object, record, where);
    switch (record.kind) {
        case RecordKind::text:
            record.text = text_of(object, "text", where);
            break;
        case RecordKind::completion:
            record.prompt = text_of(object, "prompt", where);
            record.text = text_of(object, "completion", where);
            break;
        case RecordKind::instruction:
            record.prompt = text_of(object, "instruction", where);
            if (object.contains("input") && !object["input"].is_null()) record.input = text_of(object, "input", where);
            record.text = text_of(object, "output", where);
            if (const auto history = object.find("history"); history != object.end()) {
                add_history(*history, record.conversation, where);
                if (!record.conversation.messages.empty()) record.asks_for_template = "history";
            }
            read_chat_keys(object, record, where);
            record.conversation.add("user", record.prompt + (record.input.empty() ? "" : "\n\n" + record.input));
            record.conversation.add("assistant", record.text);
            break;
        case RecordKind::chat:
            record.conversation.add_messages(std::move(object["messages"]), where);
            read_chat_keys(object, record, where);
            break;
    }
    return record;
}

}  // namespace

std::string_view name_of(RecordKind kind) {
    return shapes()[static_cast<size_t>(kind)].name;
}

bool is_records_file(const std::filesystem::path& path) {
    std::string extension = path.extension().string();
    std::transform(extension.begin(), extension.end(), extension.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return extension == ".jsonl" || extension == ".ndjson" || extension == ".json";
}

void refuse_records_as_text(std::string_view text, const std::string& name) {
    if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
    const size_t begin = text.find_first_not_of(" \t\r\n");
    if (begin == std::string_view::npos || text[begin] != '{') return;
    const std::string_view line = text.substr(begin, text.find('\n', begin) - begin);
    if (line.size() > kMaxJsonBytes) return;
    json object;
    try {
        object = parse_ordered_json(line, name);
    } catch (const UserError&) {
        return;  // no JSON: text that begins with a brace
    }
    for (const Shape& shape : shapes())
        if (std::all_of(shape.keys.begin(), shape.keys.end(), [&](auto key) { return object.contains(key); }))
            fail(name, "is named as a text, and its first line is a record (" + keys_of(object) + ")",
                 "a name that ends in .jsonl for records",
                 "rename it; a text that begins so may have any other line first");
}

RecordReader::RecordReader(const std::filesystem::path& path) : file_(path) {
    unsigned char mark[3] = {};
    const size_t bytes = std::min(file_.size_bytes(), sizeof mark);
    file_.read(0, mark, bytes, "first bytes");
    if (bytes == 3 && mark[0] == 0xef && mark[1] == 0xbb && mark[2] == 0xbf) buffer_begin_ = line_end_ = 3;
    if (bytes >= 2 && ((mark[0] == 0xff && mark[1] == 0xfe) || (mark[0] == 0xfe && mark[1] == 0xff)))
        fail(path.string(), "is UTF-16", "UTF-8", "iconv -f UTF-16 -t UTF-8");
    refuse_foreign_content(file_, "records, a JSON object on each line");
}

// Refuses a file whose first line begins with [: it is most likely one JSON list.
void RecordReader::refuse_list(std::string_view line) const {
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string_view::npos || line[begin] != '[') return;
    fail(where(line_), "begins with [, so that the file looks like one JSON list", "a JSON object, {...}, on each line",
         "`jq -c '.[]' " + file_.path().string() +
             " > records.jsonl` writes each element of a list on a line of its own");
}

// The next line without its '\n', a view into buffer_. Nothing at the end.
std::optional<std::string_view> RecordReader::next_line() {
    line_begin_ = line_end_;
    if (line_begin_ == file_.size_bytes()) return std::nullopt;
    ++line_;
    for (size_t searched = 0;;) {
        const size_t begin = line_begin_ - buffer_begin_;  // of the line, in the buffer
        const size_t end = buffer_.find('\n', begin + searched);
        const size_t held_end = buffer_begin_ + buffer_.size();  // in the file
        if (end != std::string::npos || held_end == file_.size_bytes()) {
            line_end_ = end == std::string::npos ? held_end : buffer_begin_ + end + 1;
            return std::string_view(buffer_).substr(begin, end == std::string::npos ? end : end - begin);
        }
        searched = buffer_.size() - begin;
        if (searched > kMaxJsonBytes) {
            if (!begun_) refuse_list(std::string_view(buffer_).substr(begin));
            fail(where(line_), "is longer than " + std::to_string(kMaxJsonBytes) + " bytes", "one record a line");
        }
        buffer_.erase(0, begin);  // at most once a read
        buffer_begin_ = line_begin_;
        buffer_.resize(searched + std::min(file_.size_bytes() - held_end, kReadBytes));
        file_.read(held_end, buffer_.data() + searched, buffer_.size() - searched, "records");
    }
}

std::string RecordReader::where(size_t line) const {
    return file_.path().string() + ", line " + std::to_string(line);
}

std::vector<RecordLine> RecordReader::next_lines(size_t most_bytes, size_t most_lines) {
    std::vector<RecordLine> lines;
    for (size_t bytes = 0; lines.empty() || (bytes < most_bytes && lines.size() < most_lines);) {
        const auto line = next_line();
        if (!line) break;
        bytes += line->size();
        if (line->find_first_not_of(" \t\r") == std::string_view::npos) continue;
        if (!begun_) refuse_list(*line);
        begun_ = true;
        lines.push_back({std::string(*line), line_});
    }
    return lines;
}

Record RecordReader::parse(const RecordLine& line) const {
    const std::string here = where(line.line);
    Record record =
        record_of(parse_ordered_json(line.text, file_.path().string(), {.line = line.line, .is_line = true}), here);
    record.line = line.line;
    return record;
}

void RecordReader::check_kind(const Record& record) {
    if (!kind_) {
        kind_ = record.kind;
        kind_line_ = record.line;
    }
    if (*kind_ != record.kind)
        fail(where(record.line), "the record has \"" + std::string(name_of(record.kind)) + "\"",
             std::string(name_of(*kind_)) + " as in line " + std::to_string(kind_line_) +
                 ": a file holds records of one kind");
}

}  // namespace slab::data
