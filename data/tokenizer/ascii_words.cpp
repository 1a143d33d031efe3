// Each function implements alternatives of the patterns in pre_tokenizer.cpp, in their order.
#include "data/tokenizer/ascii_words.h"

#include <array>

namespace slab::data {
namespace {

enum Class : unsigned char { letter = 1, digit = 2, space = 4, other = 8, line_end = 16, beyond = 32, nothing = 64 };

constexpr std::array<unsigned char, 256> make_classes() {
    std::array<unsigned char, 256> classes{};
    for (int c = 0; c < 256; ++c) {
        const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        const bool is_space = c == ' ' || (c >= '\t' && c <= '\r');
        classes[static_cast<size_t>(c)] = c >= 0x80                ? beyond
                                          : is_letter              ? letter
                                          : c >= '0' && c <= '9'   ? digit
                                          : c == '\r' || c == '\n' ? space | line_end
                                          : is_space               ? space
                                                                   : other;
    }
    return classes;
}
constexpr std::array<unsigned char, 256> kClasses = make_classes();

struct Ascii {
    std::string_view text;

    // Bits of Class; `nothing` at the end.
    unsigned at(size_t i) const {
        return i < text.size() ? kClasses[static_cast<unsigned char>(text[i])] : unsigned{nothing};
    }
    // End of the run of `wanted` from `i` on.
    size_t run(size_t i, unsigned wanted) const {
        while (i < text.size() && (kClasses[static_cast<unsigned char>(text[i])] & wanted) != 0) ++i;
        return i;
    }
    // `end`, or 0 when a character beyond ASCII there could belong to the word.
    size_t closed(size_t end) const { return at(end) == beyond ? 0 : end; }

    // End of the contraction ("'s", "'re", ...) that begins at the quotation mark text[i]; i when there is none.
    size_t contraction(size_t i, bool any_case) const {
        const auto c = [&](size_t offset) {
            const char found = i + offset < text.size() ? text[i + offset] : '\0';
            return any_case && found >= 'A' && found <= 'Z' ? static_cast<char>(found - 'A' + 'a') : found;
        };
        const char first = c(1), second = c(2);
        if (first == 's' || first == 't' || first == 'm' || first == 'd') return i + 2;
        if ((first == 'r' || first == 'v') && second == 'e') return i + 3;
        return first == 'l' && second == 'l' ? i + 3 : i;
    }

    // [space]+(?!...)|[space]+: end of the white space from `i` on, without its last character if one of `takers`
    // follows.
    size_t spaces(size_t i, unsigned takers) const {
        const size_t end = run(i, space);
        const unsigned next = at(end);
        if (next == beyond) return 0;
        return (next & takers) != 0 && end > i + 1 ? end - 1 : end;
    }
};

size_t gpt2_word(const Ascii& t, size_t i, bool single_digits) {
    if (single_digits && t.at(i) == digit) return i + 1;
    if (t.text[i] == '\'') {
        const size_t end = t.contraction(i, false);
        if (end > i) return end;
    }
    const size_t body = t.text[i] == ' ' ? i + 1 : i;
    const unsigned kind = t.at(body);
    if (kind == beyond) return 0;
    if ((kind & (letter | other)) != 0 || (kind == digit && !single_digits)) return t.closed(t.run(body, kind));
    return t.spaces(i, letter | other | (single_digits ? 0u : unsigned{digit}));
}

size_t llama3_word(const Ascii& t, size_t i, size_t most_digits) {
    if (t.text[i] == '\'') {
        if (t.at(i + 1) == beyond) return 0;  // U+017F is an s of another case
        const size_t end = t.contraction(i, true);
        if (end > i) return end;
    }
    const unsigned first = t.at(i);
    if (first == letter) return t.closed(t.run(i, letter));
    if (first == digit) {
        size_t end = i + 1;
        while (end < i + most_digits && t.at(end) == digit) ++end;
        return end < i + most_digits ? t.closed(end) : end;
    }
    const unsigned second = t.at(i + 1);
    if (second == beyond) return 0;
    if ((first & line_end) == 0 && second == letter) return t.closed(t.run(i + 1, letter));
    if (first == other || (t.text[i] == ' ' && second == other)) {
        const size_t end = t.run(i + 1, other);
        return t.at(end) == beyond ? 0 : t.run(end, line_end);
    }
    const size_t end = t.run(i, space);
    if (t.at(end) == beyond) return 0;
    for (size_t last = end; last > i; --last)
        if ((t.at(last - 1) & line_end) != 0) return last;
    return t.spaces(i, letter | digit | other);
}

}  // namespace

size_t ascii_word_end(PreTokenizerKind kind, std::string_view text, size_t at) {
    const Ascii ascii{text};
    if (ascii.at(at) == beyond) return 0;
    switch (kind) {
        case PreTokenizerKind::gpt2:
            return gpt2_word(ascii, at, false);
        case PreTokenizerKind::smollm:
            return gpt2_word(ascii, at, true);
        case PreTokenizerKind::llama3:
            return llama3_word(ascii, at, 3);
        case PreTokenizerKind::qwen2:
            return llama3_word(ascii, at, 1);
    }
    return 0;
}

}  // namespace slab::data
