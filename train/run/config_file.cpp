#include "train/run/config_file.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "data/base/display.h"
#include "data/base/error.h"
#include "data/base/utf8.h"
#include "train/spec/text.h"

namespace slab::train {

namespace {

bool is_bare(const std::string& value) {
    if (value == "true" || value == "false") return true;
    if (value.empty() || value.find_first_not_of("0123456789+-.eE") != std::string::npos) return false;
    char* end = nullptr;
    std::strtod(value.c_str(), &end);
    return end == value.c_str() + value.size();
}

// One line, read from left to right.
class Line {
  public:
    Line(const std::string& where, std::string_view text, int number) : where_(where), text_(text), number_(number) {}

    // Nothing but blanks and a comment follow.
    bool at_end() {
        skip_blanks();
        return at_ == text_.size() || text_[at_] == '#';
    }
    bool take(char wanted) {
        skip_blanks();
        if (at_ == text_.size() || text_[at_] != wanted) return false;
        ++at_;
        return true;
    }
    std::string key() {
        skip_blanks();
        const size_t begin = at_;
        while (at_ < text_.size() && (std::isalnum(byte(at_)) || text_[at_] == '_' || text_[at_] == '-')) ++at_;
        if (at_ == begin) refuse("a key, such as learning-rate");
        return std::string(text_.substr(begin, at_ - begin));
    }
    std::string value(bool& is_list) {
        if (!take('[')) return single_value();
        if (take(']')) refuse("at least one value in the list");
        std::string joined;
        while (!take(']')) {
            if (!joined.empty() && !take(',')) refuse("a comma or ] in the list");
            if (take(']')) break;
            is_list = !joined.empty();
            joined += (joined.empty() ? "" : ",") + single_value();
        }
        return joined;
    }
    [[noreturn]] void refuse(const std::string& wanted) const {
        throw data::UserError({.subject = where_ + ", line " + std::to_string(number_),
                               .given = data::quote(text_),
                               .wanted = wanted,
                               .hint = ""});
    }

  private:
    void skip_blanks() {
        while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
    }
    unsigned char byte(size_t at) const { return static_cast<unsigned char>(text_[at]); }

    std::string single_value() {
        if (take('"')) return escaped_string();
        if (take('\'')) {
            const size_t begin = at_, end = text_.find('\'', begin);
            if (end == std::string_view::npos) refuse("a closing '");
            at_ = end + 1;
            return std::string(text_.substr(begin, end - begin));
        }
        const size_t begin = at_;
        while (at_ < text_.size() &&
               (std::isalnum(byte(at_)) || std::string_view("+-._").find(text_[at_]) != text_.npos))
            ++at_;
        const std::string value(text_.substr(begin, at_ - begin));
        if (!is_bare(value)) refuse("a number, true, false, a text in quotes, or a list of them");
        return value;
    }

    // After the opening quote.
    std::string escaped_string() {
        constexpr std::string_view letters = "btnfr\"\\", meanings = "\b\t\n\f\r\"\\";
        std::string value;
        while (at_ < text_.size() && text_[at_] != '"') {
            if (text_[at_] != '\\') {
                value += text_[at_++];
                continue;
            }
            const char letter = ++at_ < text_.size() ? text_[at_++] : ' ';
            if (const size_t known = letters.find(letter); known != letters.npos)
                value += meanings[known];
            else if (letter == 'u')
                data::append_utf8(value, escaped_character());
            else
                refuse("one of the escapes \\b \\t \\n \\f \\r \\\" \\\\ \\uXXXX");
        }
        if (at_ == text_.size()) refuse("a closing \"");
        ++at_;
        return value;
    }

    // After \u.
    uint32_t escaped_character() {
        uint32_t code = 0;
        for (int i = 0; i < 4; ++i, ++at_) {
            if (at_ == text_.size() || !std::isxdigit(byte(at_))) refuse("four hexadecimal digits after \\u");
            const char digit[] = {text_[at_], 0};
            code = code * 16 + static_cast<uint32_t>(std::strtoul(digit, nullptr, 16));
        }
        if (code >= 0xd800 && code < 0xe000) refuse("a character, not half of one");
        return code;
    }

    const std::string& where_;
    std::string_view text_;
    int number_;
    size_t at_ = 0;
};

}  // namespace

std::vector<ConfigEntry> parse_config(std::istream& input, const std::string& where) {
    std::vector<ConfigEntry> entries;
    int number = 0;
    for (std::string text; std::getline(input, text);) {
        if (text.ends_with('\r')) text.pop_back();
        Line line(where, text, ++number);
        if (line.at_end()) continue;
        if (line.take('[')) line.refuse("key = value: keys stand without sections");
        ConfigEntry entry{line.key(), "", number};
        std::replace(entry.key.begin(), entry.key.end(), '_', '-');
        if (!line.take('=')) line.refuse("= after the key");
        entry.value = line.value(entry.is_list);
        if (!line.at_end()) line.refuse("nothing after the value");
        for (const ConfigEntry& other : entries)
            if (other.key == entry.key)
                line.refuse("each key once; line " + std::to_string(other.line) + " has it too");
        entries.push_back(std::move(entry));
    }
    // Without this check an error of the disk, or exhausted memory, would look like the file's end.
    if (input.bad())
        throw data::IoError({.subject = where,
                             .given = "could not be read beyond line " + std::to_string(number),
                             .wanted = "a file whose lines a disk and memory can give",
                             .hint = ""});
    return entries;
}

std::string config_value(const std::string& value) {
    if (is_bare(value)) return value;
    std::string text = "\"";
    for (const char c : value) {
        if (c == '"' || c == '\\')
            text += {'\\', c};
        else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
            text += format_text("\\u%04x", static_cast<unsigned>(c));
        else
            text += c;
    }
    return text + '"';
}

}  // namespace slab::train
