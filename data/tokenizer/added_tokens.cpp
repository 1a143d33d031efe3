// Searching without an automaton. Nearly all bytes of a text begin no token, and a few bytes narrow the sorted list of
// tokens to few. The cost is at most the text's length times the longest token's.
#include "data/tokenizer/added_tokens.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "data/base/display.h"
#include "data/base/error.h"
#include "data/base/utf8.h"

namespace slab::data {
namespace {

// `at`, moved left over white space, to `least` at most.
size_t before_blanks(std::string_view text, size_t at, size_t least) {
    while (at > least) {
        const Utf8Char c = utf8_char_before(text, at);
        if (c.bytes == 0 || !is_white_space(c.code_point) || at - least < c.bytes) break;
        at -= c.bytes;
    }
    return at;
}

size_t after_blanks(std::string_view text, size_t at) {
    while (at < text.size()) {
        const Utf8Char c = utf8_char_at(text, at);
        if (c.bytes == 0 || !is_white_space(c.code_point)) break;
        at += c.bytes;
    }
    return at;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) {
    std::map<std::string, AddedToken> sorted;
    for (AddedToken& token : tokens) {
        if (token.text.size() > kLongestBytes)
            throw UserError({.subject = "the added token " + quote(token.text),
                             .given = "has " + std::to_string(token.text.size()) + " bytes",
                             .wanted = "at most " + std::to_string(kLongestBytes)});
        if (!token.text.empty()) sorted[token.text] = std::move(token);
    }
    for (auto& [text, token] : sorted) tokens_.push_back(std::move(token));
    for (const AddedToken& token : tokens_) ++first_with_byte_[static_cast<unsigned char>(token.text[0]) + size_t{1}];
    for (int byte = 0; byte < 256; ++byte) {
        const auto b = static_cast<size_t>(byte);
        if (!tokens_.empty() && first_with_byte_[b + 1] == tokens_.size()) only_first_byte_ = byte;
        begins_token_[b] = first_with_byte_[b + 1] != 0;
        first_with_byte_[b + 1] += first_with_byte_[b];
    }
}

// The longest token at the beginning of `text`, or nullptr.
const AddedToken* AddedTokenFinder::longest_at(std::string_view text) const {
    const auto first = static_cast<unsigned char>(text[0]);
    auto low = tokens_.begin() + first_with_byte_[first], high = tokens_.begin() + first_with_byte_[first + size_t{1}];
    const AddedToken* longest = nullptr;
    // All of [low, high) begin with the first `length` bytes of text; a token of exactly that length is the first.
    for (size_t length = 1; low != high; ++length) {
        if (low->text.size() == length) {
            longest = &*low;
            if (++low == high) break;
        }
        if (length == text.size()) break;
        const auto less = [&](const AddedToken& token, unsigned char c) {
            return static_cast<unsigned char>(token.text[length]) < c;
        };
        const auto greater = [&](unsigned char c, const AddedToken& token) {
            return c < static_cast<unsigned char>(token.text[length]);
        };
        const auto next = static_cast<unsigned char>(text[length]);
        low = std::lower_bound(low, high, next, less);
        high = std::upper_bound(low, high, next, greater);
    }
    return longest;
}

void AddedTokenFinder::split(std::string_view text, std::span<const TextRange> plain,
                             std::vector<TextPart>& parts) const {
    size_t range = 0;  // the first of `plain` that ends after `at`
    const auto stays_text = [&](size_t begin, size_t end) {
        while (range < plain.size() && plain[range].end <= begin) ++range;
        return range < plain.size() && plain[range].begin < end;
    };
    size_t done = 0;                              // end of the last part
    size_t run_begin = text.size(), run_end = 0;  // the last run of white space that was measured
    for (size_t at = 0; at < text.size() && !tokens_.empty();) {
        if (only_first_byte_ >= 0) {
            const void* found = std::memchr(text.data() + at, only_first_byte_, text.size() - at);
            if (found == nullptr) break;
            at = static_cast<size_t>(static_cast<const char*>(found) - text.data());
        } else {
            while (at < text.size() && !begins_token_[static_cast<unsigned char>(text[at])]) ++at;
            if (at == text.size()) break;
        }
        const AddedToken* token = longest_at(text.substr(at));
        if (token == nullptr) {
            ++at;
            continue;
        }
        const size_t here = at;
        at += token->text.size();
        if (token->special && stays_text(here, at)) {
            // Another token may begin where a part of this one's text is no range's.
            if (plain[range].begin > here || plain[range].end < at) at = here + 1;
            continue;
        }
        // A token may begin in the white space that the one before it took. It counts all the same, and the white space
        // after it is a part again, unless this token takes it too. So the search goes on after the token's own text,
        // not after `end`.
        const size_t begin = !token->lstrip ? here : done < here ? before_blanks(text, here, done) : done;
        if (token->rstrip && (at < run_begin || at > run_end)) {  // once a run, however many tokens are in it
            run_begin = at;
            run_end = after_blanks(text, at);
        }
        const size_t end = token->rstrip ? run_end : at;
        if (done < begin) parts.push_back({text.substr(done, begin - done)});
        if (begin < end) parts.push_back({text.substr(begin, end - begin), token->id});
        done = end;
    }
    if (done < text.size()) parts.push_back({text.substr(done)});
}

}  // namespace slab::data
