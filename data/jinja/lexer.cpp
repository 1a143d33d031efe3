// The lexer goes through text outside of tags, then through one tag, then through text again.
#include "data/jinja/lexer.h"

#include <algorithm>

#include "data/jinja/text.h"

namespace slab::data::jinja {
namespace {

bool is_name_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}
bool is_ascii_digit(char c) {
    return c >= '0' && c <= '9';
}
char lower(char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
}

class Lexer {
  public:
    explicit Lexer(std::string_view source) : source_(source) {}

    std::vector<Token> run() {
        while (at_ < source_.size()) {
            const size_t tag = next_tag();
            if (tag == source_.npos) {
                add(Token::Kind::data, at_, source_.size());
                break;
            }
            text_and_tag(tag);
        }
        tokens_.push_back({Token::Kind::end, static_cast<uint32_t>(source_.size()), {}});
        return std::move(tokens_);
    }

  private:
    char peek(size_t at) const { return at < source_.size() ? source_[at] : '\0'; }
    bool has(size_t at, std::string_view text) const {
        return source_.substr(std::min(at, source_.size())).starts_with(text);
    }
    size_t after_space(size_t at) const { return at + leading_space(source_.substr(at)); }

    void add(Token::Kind kind, size_t begin, size_t end) {
        if (kind == Token::Kind::data && begin == end) return;
        tokens_.push_back({kind, static_cast<uint32_t>(begin), source_.substr(begin, end - begin)});
    }

    size_t next_tag() const {
        for (size_t at = source_.find('{', at_); at != source_.npos; at = source_.find('{', at + 1))
            if (const char c = peek(at + 1); c == '{' || c == '%' || c == '#') return at;
        return source_.npos;
    }

    // Text from at_ to a tag, without the blanks that the tag takes away.
    void add_data(size_t tag, char sign, bool is_print) {
        const std::string_view text = source_.substr(at_, tag - at_);
        size_t keep = text.size();
        if (sign == '-') {
            keep -= trailing_space(text);
        } else if (sign != '+' && !is_print) {
            const size_t line = text.rfind('\n') + 1;  // npos + 1 is 0
            const bool begins_line = line > 0 || at_ == 0 || source_[at_ - 1] == '\n';
            if (begins_line && leading_space(text.substr(line)) == text.size() - line) keep = line;
        }
        add(Token::Kind::data, at_, at_ + keep);
    }

    // After the closing signs of a statement or comment at `at`, "%}" or "#}", with '-', '+' or nothing before them.
    size_t after_close(size_t at, char sign) const {
        if (sign == '-') return after_space(at + 2);
        return sign != '+' && peek(at + 2) == '\n' ? at + 3 : at + 2;
    }

    void text_and_tag(size_t tag) {
        if (const size_t raw = raw_begin(tag); raw != source_.npos) return raw_block(tag, raw);
        const char type = source_[tag + 1], sign = peek(tag + 2) == '-' || peek(tag + 2) == '+' ? peek(tag + 2) : '\0';
        add_data(tag, sign, type == '{');
        at_ = tag + 2 + (sign != '\0');
        if (type == '#') return comment(tag);
        const bool is_print = type == '{';
        add(is_print ? Token::Kind::begin_print : Token::Kind::begin_statement, tag, at_);
        while (!tag_token(tag, is_print)) continue;
    }

    void comment(size_t tag) {
        const size_t end = source_.find("#}", at_);
        if (end == source_.npos) throw SourceProblem{{"begins a comment that does not end", "#}", ""}, tag};
        at_ = after_close(end, end > at_ ? source_[end - 1] : '\0');
    }

    // Where the text of a raw block begins, if one begins at `tag`.
    size_t raw_begin(size_t tag) const {
        if (peek(tag + 1) != '%') return source_.npos;
        const size_t sign = peek(tag + 2) == '-' || peek(tag + 2) == '+';
        size_t at = after_space(tag + 2 + sign);
        if (!has(at, "raw")) return source_.npos;
        at = after_space(at + 3);
        if (has(at, "-%}")) return after_space(at + 3);
        return has(at, "%}") ? at + 2 : source_.npos;
    }

    void raw_block(size_t tag, size_t begin) {
        add_data(tag, peek(tag + 2), false);
        at_ = begin;
        for (size_t close = source_.find("{%", begin); close != source_.npos; close = source_.find("{%", close + 1)) {
            const char sign = peek(close + 2);
            size_t at = after_space(close + 2 + (sign == '-' || sign == '+'));
            if (!has(at, "endraw")) continue;
            at = after_space(at + 6);
            const char end_sign = peek(at);
            const bool signed_end = end_sign == '-' || end_sign == '+';
            if (!has(at + signed_end, "%}")) continue;
            add_data(close, sign, false);
            at_ = after_close(at + signed_end, end_sign);
            return;
        }
        throw SourceProblem{{"begins a raw block that does not end", "{% endraw %}", ""}, tag};
    }

    // The next token of the tag that began at `tag`; true when it ended the tag.
    bool tag_token(size_t tag, bool is_print) {
        if (at_ < source_.size() && is_name_char(source_[at_]) && !is_ascii_digit(source_[at_])) {
            name();
            return false;
        }
        if (open_.empty()) {
            const char sign = peek(at_) == '-' || (peek(at_) == '+' && !is_print) ? peek(at_) : '\0';
            const size_t close = at_ + (sign != '\0');
            if (has(close, is_print ? "}}" : "%}")) {
                add(is_print ? Token::Kind::end_print : Token::Kind::end_statement, at_, close + 2);
                at_ = !is_print ? after_close(close, sign) : sign == '-' ? after_space(close + 2) : close + 2;
                return true;
            }
        }
        if (const size_t after = after_space(at_); after != at_) {
            at_ = after;
            return false;
        }
        if (at_ >= source_.size())
            throw SourceProblem{{"begins a tag that does not end", is_print ? "}}" : "%}", ""}, tag};
        const char c = source_[at_];
        if (is_ascii_digit(c)) {
            number();
        } else if (c == '\'' || c == '"') {
            text(c);
        } else {
            sign();
        }
        return false;
    }

    void name() {
        size_t end = at_;
        while (end < source_.size() && is_name_char(source_[end])) ++end;
        add(Token::Kind::name, at_, end);
        at_ = end;
    }

    void text(char quote) {
        for (size_t end = at_ + 1; end < source_.size(); ++end) {
            if (source_[end] == '\\') {
                ++end;
            } else if (source_[end] == quote) {
                add(Token::Kind::text, at_, end + 1);
                at_ = end + 1;
                return;
            }
        }
        throw SourceProblem{{"begins a text that does not end", std::string(1, quote), ""}, at_};
    }

    // Digits with single underscores between them, from `at`.
    template <class IsDigit>
    size_t after_digits(size_t at, IsDigit is_digit) const {
        while (is_digit(peek(at)) || (peek(at) == '_' && is_digit(peek(at + 1)))) ++at;
        return at;
    }

    void number() {
        const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
        const size_t whole = after_digits(at_, is_ascii_digit);
        size_t end = whole;
        if (!after_dot) {
            if (peek(end) == '.' && is_ascii_digit(peek(end + 1))) end = after_digits(end + 1, is_ascii_digit);
            if (lower(peek(end)) == 'e') {
                const size_t power = end + 1 + (peek(end + 1) == '+' || peek(end + 1) == '-');
                if (is_ascii_digit(peek(power))) end = after_digits(power, is_ascii_digit);
            }
        }
        if (end != whole) {
            add(Token::Kind::number, at_, end);
            at_ = end;
            return;
        }
        if (source_[at_] == '0') end = integer_from_zero();
        add(Token::Kind::integer, at_, end);
        at_ = end;
    }

    // 0x1f, 0o17, 0b11 and 0; "01" is 0 and then 1.
    size_t integer_from_zero() const {
        const char base = lower(peek(at_ + 1));
        const auto is_digit = [&](char c) {
            if (base == 'x') return is_ascii_digit(c) || (lower(c) >= 'a' && lower(c) <= 'f');
            return c >= '0' && c <= (base == 'o' ? '7' : '1');
        };
        if (base == 'x' || base == 'o' || base == 'b')
            if (const size_t end = after_digits(at_ + 2, is_digit); end > at_ + 2) return end;
        return after_digits(at_, [](char c) { return c == '0'; });
    }

    void sign() {
        static constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
        const std::string_view two = source_.substr(at_, 2);
        const char c = source_[at_];
        const size_t size = std::find(std::begin(kTwo), std::end(kTwo), two) != std::end(kTwo) ? 2 : 1;
        if (size == 1 && std::string_view("+-*/%~[](){}><=.:|,;").find(c) == std::string_view::npos) {
            const std::string shown(source_.substr(at_, char_bytes(source_, at_)));
            throw SourceProblem{{"\"" + shown + "\" has no place in an expression", "", ""}, at_};
        }
        if (size == 1) balance(c);
        add(Token::Kind::sign, at_, at_ + size);
        at_ += size;
    }

    void balance(char c) {
        if (c == '(' || c == '[' || c == '{') open_.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
        if (c != ')' && c != ']' && c != '}') return;
        if (open_.empty() || open_.back() != c)
            throw SourceProblem{{std::string("\"") + c + "\" closes nothing",
                                 open_.empty() ? "" : std::string("\"") + open_.back() + "\"", ""},
                                at_};
        open_.pop_back();
    }

    std::string_view source_;
    size_t at_ = 0;
    std::string open_;  // the brackets that will close, innermost last
    std::vector<Token> tokens_;
};

}  // namespace

std::string normalized_source(std::string_view source) {
    std::string text;
    text.reserve(source.size());
    for (size_t i = 0; i < source.size(); ++i) {
        if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
        text += source[i] == '\r' ? '\n' : source[i];
    }
    if (text.ends_with('\n')) text.pop_back();
    return text;
}

std::vector<Token> tokens_of(std::string_view source) {
    return Lexer(source).run();
}

std::string place_in(std::string_view source, size_t at) {
    const std::string_view before = source.substr(0, std::min(at, source.size()));
    const auto line = std::count(before.begin(), before.end(), '\n') + 1;
    const size_t column = count_chars(before.substr(before.rfind('\n') + 1)) + 1;
    return "line " + std::to_string(line) + ", column " + std::to_string(column);
}

}  // namespace slab::data::jinja
