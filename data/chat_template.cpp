// A conversation becomes the template's values, then text with origins, then tokens.
#include "data/chat_template.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <string_view>

#include "data/base/checksum.h"
#include "data/base/display.h"
#include "data/base/error.h"
#include "data/base/input_file.h"
#include "data/base/json_file.h"
#include "data/chat_forms.h"
#include "data/chat_values.h"

namespace slab::data {

namespace {

constexpr size_t kMaxTemplateBytes = size_t{1} << 20;

std::string template_file(const std::string& given) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(given, error))
        throw UserError({.subject = "--chat-template " + given,
                         .given = "there is no such file",
                         .wanted = "chatml, llama3, or a file with a template in Jinja's language"});
    std::string text = InputFile(given).read_all("a chat template", kMaxTemplateBytes);
    const size_t begin = text.find_first_not_of(" \t\r\n");
    if (begin != std::string::npos && (text.compare(begin, 2, "{\"") == 0 || text.compare(begin, 2, "{\n") == 0))
        throw UserError({.subject = "--chat-template " + given,
                         .given = "is JSON",
                         .wanted = "the template's text alone",
                         .hint = "`jq -r .chat_template " + given + " > chat_template.jinja` writes it"});
    return text;
}

bool is_form(const std::string& given) {
    return given == "chatml" || given == "llama3";
}

}  // namespace

void ChatCounts::add(const ChatCounts& more) {
    conversations += more.conversations;
    context_turns += more.context_turns;
    other_openings += more.other_openings;
    endless += more.endless;
    special_replies += more.special_replies;
    if (special.empty()) special = more.special;
    lost_contents += more.lost_contents;
    lost_thoughts += more.lost_thoughts;
    lost_calls += more.lost_calls;
    unused_keys.insert(unused_keys.end(), more.unused_keys.begin(), more.unused_keys.end());
}

ChatTemplate::ChatTemplate(const Tokenizer& tokenizer, const ChatSettings& settings)
    : special_tokens_(tokenizer.chat().special_tokens) {
    options_.now = settings.now;
}

void ChatTemplate::use(std::string_view source, const std::string& name, std::string description) {
    standard_ = std::make_shared<const jinja::Template>(jinja::Template::compile(source, name));
    description_ = std::move(description);
    takes_lists_ = takes_lists();
}

void ChatTemplate::use_form(const Tokenizer& tokenizer, const std::string& form, const std::string& why) {
    const ChatForm& known = chat_form(form);
    for (const char* special : known.special_tokens)
        if (!tokenizer.id_of(special))
            throw UserError(
                {.subject = std::string("chat template ") + known.name,
                 .given = std::string("the vocabulary has no token ") + special + " (" + tokenizer.description() + ")",
                 .hint = "use the instruct variant of the model, or records of prompt and completion"});
    // A start of text that the model expects before every text stands before a conversation too.
    const auto bos = tokenizer.bos();
    special_tokens_["bos_token"] = form == "llama3" ? (tokenizer.id_of("<|begin_of_text|>") ? "<|begin_of_text|>" : "")
                                   : tokenizer.adds_bos() && bos && bos != tokenizer.id_of(known.special_tokens[0])
                                       ? tokenizer.decode({&*bos, 1}, true)
                                       : "";
    use(known.source, known.name, known.name + why);
}

std::optional<ChatTemplate> ChatTemplate::find(const Tokenizer& tokenizer, const ChatSettings& settings) {
    ChatTemplate made(tokenizer, settings);
    const ChatFiles& files = tokenizer.chat();
    if (is_form(settings.given)) {
        made.use_form(tokenizer, settings.given, "");
    } else if (!settings.given.empty()) {
        made.use(template_file(settings.given), settings.given, "chat template " + settings.given);
    } else if (!files.standard.empty()) {
        made.use(files.standard, files.from, "the model's chat template");
        if (!files.tool_use.empty())
            made.tool_use_ = std::make_shared<const jinja::Template>(
                jinja::Template::compile(files.tool_use, files.from + ", tool_use"));
    } else if (!files.names.empty()) {
        std::string names;
        for (const std::string& name : files.names) names += (names.empty() ? "" : ", ") + quote(name);
        throw UserError({.subject = files.from,
                         .given = "has chat templates named " + names,
                         .wanted = "one named \"default\"",
                         .hint = "write the right one into a file and give it as --chat-template"});
    } else {
        const char* form =
            form_of_vocabulary([&](const char* special) { return tokenizer.id_of(special).has_value(); });
        if (form == nullptr) return std::nullopt;
        made.use_form(tokenizer, form, ", as the model has no template");
    }
    return made;
}

bool ChatTemplate::shows_date() const {
    const auto shows = [](const jinja::Template& one) {
        const auto& names = one.context_names();
        return std::find(names.begin(), names.end(), "strftime_now") != names.end();
    };
    return shows(*standard_) || (tool_use_ && shows(*tool_use_));
}

// Asks the template itself: a list of one text must be printed as the text is.
bool ChatTemplate::takes_lists() const {
    const std::string mark = "some words";
    const auto rendered = [&](const nlohmann::ordered_json& content) -> std::string {
        try {
            Conversation conversation;
            conversation.messages.push_back({{"role", "user"}, {"content", content}});
            ChatValues values(conversation, special_tokens_, true);
            return standard_->render(values.context(1, false), options_).text;
        } catch (const UserError&) {
            return "";
        }
    };
    const std::string plain = rendered(mark);
    return plain.find(mark) != std::string::npos && rendered({{{"type", "text"}, {"text", mark}}}) == plain;
}

std::string chat_template_identity(const std::string& given) {
    if (given.empty() || is_form(given)) return given;
    uint64_t hash = 0xcbf29ce484222325u;
    for (const char c : template_file(given)) hash = checksum_step(hash, static_cast<unsigned char>(c));
    std::array<char, 40> text{};
    std::snprintf(text.data(), text.size(), "a file with the hash %016" PRIx64, hash);
    return text.data();
}

}  // namespace slab::data
