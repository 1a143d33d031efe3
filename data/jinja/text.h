// Texts: parts of them that keep their origins, and a builder that notes origins while it appends.
//
// Positions that templates see count code points; inside everything counts bytes. A part of a text shares its bytes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/base/utf8.h"
#include "data/jinja/value.h"

namespace slab::data::jinja {

// Bytes of the character at text[at]; a byte that is no UTF-8 counts as one.
inline size_t char_bytes(std::string_view text, size_t at) {
    return static_cast<unsigned char>(text[at]) < 0x80 ? 1 : std::max<size_t>(1, utf8_char_at(text, at).bytes);
}

// What Python's str.strip() takes away.
inline bool is_space(uint32_t c) {
    return is_white_space(c) || (c >= 0x1c && c <= 0x1f);
}

size_t count_chars(std::string_view text);
// Where the n-th character begins; text.size() past the end.
size_t byte_of_char(std::string_view text, size_t n);
// Linear in the two sizes, whatever they hold; npos when absent.
size_t find_text(std::string_view text, std::string_view wanted, size_t from = 0);
// The last place.
size_t rfind_text(std::string_view text, std::string_view wanted);
// Bytes of white space at either end.
size_t leading_space(std::string_view text);
size_t trailing_space(std::string_view text);

// Bytes begin to end-1, with their origins.
Value part_of(const Value& text, size_t begin, size_t end, Arena& arena);

class TextBuilder {
  public:
    explicit TextBuilder(size_t max_bytes) : max_bytes_(max_bytes) {}

    void add(std::string_view text, uint32_t origin = kTemplateOrigin) {
        check(text.size());
        const size_t begin = text_.size();
        text_.append(text);
        if (origin != kTemplateOrigin) mark(begin, text_.size(), origin);
    }
    void add(const Value& text);  // a string
    void add_part(const Value& text, size_t begin, size_t end);
    // One character made of another's.
    void add_char(uint32_t code_point, uint32_t origin);

    size_t size() const { return text_.size(); }
    const std::string& text() const { return text_; }
    std::string& text() { return text_; }
    const std::vector<Span>& spans() const { return spans_; }
    void clear() {
        text_.clear();
        spans_.clear();
    }
    // Everything from byte `begin` on was printed by a generation block.
    void mark_generated(size_t begin);
    // A copy in the arena.
    Value value(Arena& arena) const;

  private:
    void check(size_t more_bytes) const;
    void mark(size_t begin, size_t end, uint32_t origin);

    std::string text_;
    std::vector<Span> spans_;  // as MixedText has them
    size_t max_bytes_;
};

// Goes through a text character by character, with each one's origin.
class CharReader {
  public:
    explicit CharReader(const Value& text) : value_(text), text_(text.text()) {}
    bool at_end() const { return at_ >= text_.size(); }
    size_t at() const { return at_; }
    uint32_t next();          // the code point at at(), which moves past it
    uint32_t origin() const;  // of the character that next() gave

  private:
    const Value& value_;
    std::string_view text_;
    size_t at_ = 0, last_ = 0;
    mutable size_t span_ = 0;
};

}  // namespace slab::data::jinja
