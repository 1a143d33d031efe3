// The patterns are written for PCRE2, not copied as strings from tokenizer.json. PCRE2's "\s" also contains U+180E,
// which is no space in Hugging Face's engine (Oniguruma). Letters and digits that Unicode added after version 14 are
// listed here, so that ids do not depend on the age of the installed PCRE2. Every alternative is linear in its input,
// so no text is slow.
#include "data/tokenizer/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <stdexcept>

#include "data/base/error.h"
#include "data/base/utf8.h"
#include "data/tokenizer/ascii_words.h"

namespace slab::data {
namespace {

// The insides of [...] for a letter, a number, white space.
const std::string letter =
    R"(\p{L}\x{1c89}-\x{1c8a}\x{a7cb}-\x{a7cd}\x{a7da}-\x{a7dc}\x{105c0}-\x{105f3}\x{10d4a}-\x{10d65}\x{10d6f}-\x{10d85})"
    R"(\x{10ec2}-\x{10ec4}\x{1123f}-\x{11240}\x{11380}-\x{11389}\x{1138b}\x{1138e}\x{11390}-\x{113b5}\x{113b7}\x{113d1})"
    R"(\x{113d3}\x{11bc0}-\x{11be0}\x{11f02}\x{11f04}-\x{11f10}\x{11f12}-\x{11f33}\x{1342f}\x{13441}-\x{13446})"
    R"(\x{13460}-\x{143fa}\x{16100}-\x{1611d}\x{16d40}-\x{16d6c}\x{18cff}\x{1b132}\x{1b155}\x{1df25}-\x{1df2a})"
    R"(\x{1e030}-\x{1e06d}\x{1e4d0}-\x{1e4eb}\x{1e5d0}-\x{1e5ed}\x{1e5f0}\x{2b739}\x{2ebf0}-\x{2ee5d}\x{31350}-\x{323af})";
const std::string number =
    R"(\p{N}\x{10d40}-\x{10d49}\x{116d0}-\x{116e3}\x{11bf0}-\x{11bf9}\x{11f50}-\x{11f59}\x{16130}-\x{16139})"
    R"(\x{16d70}-\x{16d79}\x{1ccf0}-\x{1ccf9}\x{1d2c0}-\x{1d2d3}\x{1e4f0}-\x{1e4f9}\x{1e5f1}-\x{1e5fa})";
// Another library finds SmolLM's digits, with Unicode 17.
const std::string newer_number = R"(\x{11de0}-\x{11de9}\x{16ff4}-\x{16ff6})";
const std::string space = R"(\t-\r\x20\x{85}\p{Z})";

std::string pattern_of(PreTokenizerKind kind) {
    const std::string other = "[^" + space + letter + number + "]";
    const std::string contraction = "'(?:[stmd]|re|ve|ll)";
    // The last character of white space before a word belongs to the word.
    const std::string spaces = "[" + space + "]+(?![^" + space + "])|[" + space + "]+";
    if (kind == PreTokenizerKind::gpt2)
        return contraction + "|\\x20?[" + letter + "]++|\\x20?[" + number + "]++|\\x20?" + other + "++|" + spaces;
    if (kind == PreTokenizerKind::smollm) {
        // Each digit is a text of its own, and so is the text between digits: a digit ends white space like a text's
        // end.
        const std::string digit = number + newer_number;
        return "[" + digit + "]|" + contraction + "|\\x20?[" + letter + "]++|\\x20?[^" + space + letter + digit +
               "]++|[" + space + "]+(?![^" + space + digit + "])|[" + space + "]+";
    }
    const std::string numbers = kind == PreTokenizerKind::llama3 ? "[" + number + "]{1,3}" : "[" + number + "]";
    return "(?i:" + contraction + ")|[^\\r\\n" + letter + number + "]?[" + letter + "]++|" + numbers + "|\\x20?" +
           other + "++[\\r\\n]*+|[" + space + "]*[\\r\\n]++|" + spaces;
}

// Whether white space ends just before text[end].
bool blank_before(std::string_view text, size_t end) {
    return end > 0 && is_white_space(utf8_char_before(text, end).code_point);
}

std::string pcre2_message(int code) {
    std::array<PCRE2_UCHAR, 256> text{};
    pcre2_get_error_message(code, text.data(), text.size());
    return reinterpret_cast<const char*>(text.data());
}

}  // namespace

const char* name_of(PreTokenizerKind kind) {
    switch (kind) {
        case PreTokenizerKind::gpt2:
            return "GPT-2";
        case PreTokenizerKind::llama3:
            return "Llama 3";
        case PreTokenizerKind::qwen2:
            return "Qwen2";
        case PreTokenizerKind::smollm:
            return "SmolLM";
    }
    throw std::logic_error("no such pre-tokenizer");
}

std::string pattern_in_json(PreTokenizerKind kind) {
    if (kind == PreTokenizerKind::gpt2 || kind == PreTokenizerKind::smollm)
        return R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
    const std::string numbers = kind == PreTokenizerKind::llama3 ? R"(\p{N}{1,3})" : R"(\p{N})";
    return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)" + numbers +
           R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
}

std::optional<PreTokenizerKind> kind_of_pattern(std::string_view pattern) {
    for (const auto kind : {PreTokenizerKind::gpt2, PreTokenizerKind::llama3, PreTokenizerKind::qwen2})
        if (pattern == pattern_in_json(kind)) return kind;
    return {};
}

struct PreTokenizer::Compiled {
    pcre2_code* code = nullptr;
    bool jit = false;
    ~Compiled() { pcre2_code_free(code); }
};

PreTokenizer::PreTokenizer(PreTokenizerKind kind) : kind_(kind), compiled_(std::make_unique<Compiled>()) {
    const std::string pattern = pattern_of(kind);
    int error = 0;
    size_t offset = 0;
    compiled_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                    PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &offset, nullptr);
    if (compiled_->code == nullptr)
        throw UserError({.subject = std::string(name_of(kind)) + " pre-tokenizer",
                         .given = "the installed PCRE2 does not compile it: " + pcre2_message(error),
                         .hint = "PCRE2 must be built with Unicode support"});
    // Without JIT (some processors, some hardened systems) matching is slower, with the same result.
    compiled_->jit = pcre2_jit_compile(compiled_->code, PCRE2_JIT_COMPLETE) == 0;
}

PreTokenizer::~PreTokenizer() = default;

// Why a cut is safe. Words are found from left to right, and no pattern looks behind. So a cut changes no word on its
// right if no word of the whole text lies across it. It changes none on its left unless the one alternative that looks
// ahead ("(?!...)" after white space) saw the other side. Two places qualify:
//   1. before a space that follows something other than white space. In all four patterns a space is at a word's
//      beginning or within white space alone, so no word lies across. The word on the left ends in no white space, so
//      it did not look ahead.
//   2. after a lone line feed, with no white space on either side. Only white space follows a line feed within a word,
//      so no word lies across. The left part ends with the line feed. There it is the tail of "[\r\n]*", which does
//      not look ahead, or a run of one character, which is one word in any case.
// Broken bytes and the text's ends do not count as white space: words end there anyway.
size_t PreTokenizer::safe_cut(std::string_view text, size_t from) {
    for (size_t at = std::max<size_t>(from, 1); at < text.size(); ++at) {
        if (text[at] == ' ' && !blank_before(text, at)) return at;
        if (follows_lone_line_feed(text, at)) return at;
    }
    return text.size();
}

bool PreTokenizer::follows_lone_line_feed(std::string_view text, size_t at) {
    return text[at - 1] == '\n' && !is_white_space(utf8_char_at(text, at).code_point) && !blank_before(text, at - 1);
}

struct WordScanner::Memory {
    pcre2_match_data* match = nullptr;
    pcre2_match_context* context = nullptr;
    ~Memory() {
        pcre2_match_data_free(match);
        pcre2_match_context_free(context);
    }
};

WordScanner::WordScanner(const PreTokenizer& pre_tokenizer)
    : kind_(pre_tokenizer.kind_), compiled_(*pre_tokenizer.compiled_), memory_(std::make_unique<Memory>()) {
    memory_->match = pcre2_match_data_create(1, nullptr);
    memory_->context = pcre2_match_context_create(nullptr);
    if (memory_->match == nullptr || memory_->context == nullptr) throw std::bad_alloc();
    // The text's length bounds the steps; a fixed limit could be reached by a long run of spaces.
    pcre2_set_match_limit(memory_->context, UINT32_MAX);
}

WordScanner::~WordScanner() = default;

size_t WordScanner::word_end(std::string_view text, size_t at) {
    const size_t end = ascii_word_end(kind_, text, at);
    return end != 0 ? end : word_end_by_pattern(text, at);
}

size_t WordScanner::word_end_by_pattern(std::string_view text, size_t at) {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    const int found =
        compiled_.jit ? pcre2_jit_match(compiled_.code, subject, text.size(), at, 0, memory_->match, memory_->context)
                      : pcre2_match(compiled_.code, subject, text.size(), at, PCRE2_NO_UTF_CHECK, memory_->match,
                                    memory_->context);
    const size_t end = found > 0 ? pcre2_get_ovector_pointer(memory_->match)[1] : at;
    if (end <= at)
        throw UserError({.given = "the pre-tokenizer stopped at byte " + std::to_string(at) + " of a text of " +
                                  std::to_string(text.size()) +
                                  " bytes: " + (found < 0 ? pcre2_message(found) : "an empty match"),
                         .hint = "a very long run of one kind of character may be broken into lines"});
    return end;
}

}  // namespace slab::data
