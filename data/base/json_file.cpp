// The checks are in nlohmann's parser callback. The callback knows no byte offsets; an iterator that records the
// parser's progress gives them.
#include "data/base/json_file.h"

#include <algorithm>
#include <iterator>
#include <unordered_set>
#include <vector>

#include "data/base/display.h"
#include "data/base/error.h"
#include "data/base/foreign_file.h"
#include "data/base/input_file.h"

namespace slab::data {
namespace {

// Input iterator over text that records the furthest byte handed out.
struct NotingIterator {
    using iterator_category = std::input_iterator_tag;
    using value_type = char;
    using difference_type = std::ptrdiff_t;
    using pointer = const char*;
    using reference = const char&;

    const char* at;
    const char** furthest;

    reference operator*() const { return *at; }
    NotingIterator& operator++() {
        *furthest = ++at;
        return *this;
    }
    bool operator==(const NotingIterator& other) const { return at == other.at; }
    bool operator!=(const NotingIterator& other) const { return at != other.at; }
};

constexpr std::string_view kBlanks = " \t\r\n", kPunctuation = "[]{}:,", kEndsWord = " \t\r\n[]{}:,\"";

// Beginning of the token that ends at `end` or holds that byte; `end` itself when that is a blank.
size_t token_begin(std::string_view text, size_t end) {
    size_t at = 0, begin = 0;
    while (at < end) {
        begin = at;
        if (text[at] == '"') {
            for (++at; at < text.size() && text[at] != '"'; ++at) at += text[at] == '\\';
            ++at;
        } else if (kBlanks.find(text[at]) != kBlanks.npos || kPunctuation.find(text[at]) != kPunctuation.npos) {
            ++at;
        } else {
            at = std::min(text.find_first_of(kEndsWord, at), text.size());
        }
    }
    return begin;
}

// The parts of nlohmann's message: "[json.exception.parse_error.101] parse error at line 1, column 8: syntax error
// while parsing object - invalid literal; last read: 'x'; expected '}'".
struct Complaint {
    std::string problem, expected;
};

Complaint complaint_of(std::string text) {
    Complaint complaint;
    const std::string_view wants = "; expected ";
    if (const size_t end = text.find("] "); text.starts_with('[') && end != text.npos) text.erase(0, end + 2);
    const size_t read = text.find("; last read: '");
    // A problem of the kind "invalid number; expected digit" has one of its own, before what was read.
    if (const size_t at = text.rfind(wants);
        at != text.npos && (read == text.npos ? text.find("unexpected") : read) < at) {
        complaint.expected = text.substr(at + wants.size());
        text.erase(at);
    }
    if (read < text.size()) text.erase(read);
    const size_t context = text.find(" - ");
    complaint.problem = context == text.npos ? text : text.substr(context + 3);
    return complaint;
}

std::string wanted_for(const std::string& expected) {
    if (expected == "string literal") return "a key in double quotes";
    if (expected == "']'" || expected == "'}'") return "',' or " + expected;
    if (expected == "end of input") return "nothing more";
    return expected == "':'" ? expected : "a value";
}

// Index of the wrong byte of `text`, after the parser has read `read` bytes.
size_t place_of(const Complaint& complaint, std::string_view text, size_t read) {
    const std::string& problem = complaint.problem;
    if (problem.starts_with("unexpected end of input")) return text.size();
    // The parser notices a word like "tru" only at the byte after it.
    if (problem == "invalid literal" && read > 1 && kEndsWord.find(text[read - 1]) != kEndsWord.npos) --read;
    // In a string the last byte read is wrong, elsewhere the token that holds it.
    if (problem.starts_with("invalid string") && problem.find("missing closing quote") == problem.npos && read > 0)
        return read - 1;
    return token_begin(text, read);
}

// The token that begins at `at`; empty at the text's end.
std::string_view token_at(std::string_view text, size_t at) {
    if (at == text.size()) return {};
    size_t end = at + 1;
    if (text[at] == '"') {
        while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
        ++end;
    } else if (kPunctuation.find(text[at]) == kPunctuation.npos) {
        end = text.find_first_of(kEndsWord, end);
    }
    return text.substr(at, end - at);
}

// Advice for the usual mistakes; "" for others. `at` is the wrong byte.
std::string hint_for(std::string_view text, size_t at, const Complaint& complaint, const JsonPlace& place,
                     const std::string& path) {
    const std::string_view found = token_at(text, at);
    if (text.starts_with("version https://git-lfs")) return kGitLfsHint;
    if (found.empty())
        return !place.is_line ? "was the file cut short? Write or fetch it again"
                              : "a record stands on one line; `jq -c . " + path + "` writes each of the file so";
    if (complaint.problem.find("ill-formed UTF-8") != std::string::npos)
        return "texts are UTF-8; `iconv -f LATIN1 -t UTF-8` converts from Latin-1";
    if (found[0] == '\'') return "JSON has double quotes, as Python's json.dumps writes them, where print() does not";
    for (const char* word : {"NaN", "Infinity", "-Infinity", "None", "True", "False"})
        if (found == word) return "JSON knows true, false and null, and finite numbers only";
    if (place.is_line && complaint.expected == "end of input") return "one record a line, and nothing after it";
    const size_t before = text.substr(0, at).find_last_not_of(kBlanks);
    if ((found[0] == '}' || found[0] == ']') && before != text.npos && text[before] == ',')
        return "remove the comma before it";
    return "";
}

// Byte `at` of the text is wrong: "FILE, line 3: <error.given> at column 4: <found>; wanted ...". An empty `found` is
// left out.
[[noreturn]] void fail_at(std::string_view text, size_t at, const std::string& path, const JsonPlace& place,
                          ErrorText error, const std::string& found) {
    const std::string_view read = text.substr(0, at);
    error.subject = path;
    if (place.offset_bytes) {
        error.given += " at byte " + std::to_string(*place.offset_bytes + at) + ", in the header";
    } else {
        const auto line = static_cast<size_t>(std::count(read.begin(), read.end(), '\n'));
        const std::string_view before = read.substr(read.rfind('\n') + 1);  // npos + 1 is 0
        const auto column = std::count_if(before.begin(), before.end(), [](char c) { return (c & 0xc0) != 0x80; });
        error.subject += ", line " + std::to_string(place.line + line);
        error.given += " at column " + std::to_string(column + 1);
    }
    if (!found.empty()) error.given += ": " + found;
    throw UserError(error);
}

// The token found in place of the wanted one, in words.
std::string found_text(std::string_view token) {
    if (token.empty()) return "it ends here";
    return "found " + quote(token.size() > 1 && token.starts_with('"') ? token.substr(1, token.size() - 2) : token);
}

std::string cut_when_long(std::string text) {
    constexpr size_t longest = 80;
    if (text.size() > longest) text = text.substr(0, longest) + "...";
    return text;
}

template <class json>
json parse_as(std::string_view text, const std::string& path, const JsonPlace& place) {
    const char* const begin = text.data();
    const char* const end = begin + text.size();
    const auto fail = [&](size_t at, ErrorText error, const std::string& found = "") {
        fail_at(text, at, path, place, std::move(error), found);
    };
    const std::string invalid = "is not valid JSON";
    if (const size_t at = text.find('\0'); at != std::string_view::npos)
        fail(at,
             {.given = invalid,
              .wanted = "JSON text in UTF-8, which has no such byte",
              .hint = "a file that was being written when the machine stopped may hold such bytes; write or fetch it "
                      "again"},
             "the byte there is 0");
    const char* furthest = begin;
    const auto read_bytes = [&] { return static_cast<size_t>(furthest - begin); };

    std::vector<std::unordered_set<std::string>> keys_of_open_objects;
    const auto check = [&](int depth, typename json::parse_event_t event, json& value) {
        if (depth > kMaxJsonDepth)
            fail(token_begin(text, read_bytes()),
                 {.given = "JSON nested deeper than " + std::to_string(kMaxJsonDepth) + " levels"});
        if (event == json::parse_event_t::object_start) keys_of_open_objects.emplace_back();
        if (event == json::parse_event_t::object_end) keys_of_open_objects.pop_back();
        if (event == json::parse_event_t::key) {
            const auto& key = value.template get_ref<const std::string&>();
            if (!keys_of_open_objects.back().insert(key).second)
                fail(token_begin(text, read_bytes()), {.given = "key " + quote(key) + " is given twice, again"});
        }
        return true;
    };
    try {
        return json::parse(NotingIterator{begin, &furthest}, NotingIterator{end, &furthest}, check);
    } catch (const nlohmann::json::exception& error) {
        const auto* parse_error = dynamic_cast<const nlohmann::json::parse_error*>(&error);
        const Complaint complaint = complaint_of(error.what());
        // A number ends at the byte after it; only the parser's own count leaves that byte out.
        const size_t read = std::min(parse_error ? parse_error->byte : read_bytes() - 1, text.size());
        const size_t at = place_of(complaint, text, read);
        const bool named = complaint.problem.starts_with("invalid") && complaint.problem != "invalid literal";
        const bool explained = named || !parse_error;
        fail_at(text, at, path, place,
                {.given = invalid,
                 .wanted = explained ? "" : wanted_for(complaint.expected),
                 .hint = hint_for(text, at, complaint, place, path)},
                explained ? complaint.problem : found_text(token_at(text, at)));
    }
}

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& path, const JsonPlace& place) {
    return parse_as<nlohmann::json>(text, path, place);
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& path, const JsonPlace& place) {
    return parse_as<nlohmann::ordered_json>(text, path, place);
}

nlohmann::json read_json_file(const std::filesystem::path& path) {
    const InputFile file(path);
    refuse_foreign_content(file, "JSON");
    const std::string text = file.read_all("JSON", kMaxJsonBytes);
    return parse_json(text, path.string());
}

std::string shown(const nlohmann::json& value) {
    return cut_when_long(value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
}

std::string shown_ordered(const nlohmann::ordered_json& value) {
    return cut_when_long(value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
}

}  // namespace slab::data
