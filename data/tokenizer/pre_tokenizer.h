// Cuts text into words, the pieces within which BPE merges. PCRE2 matches the regular expressions of GPT-2, Llama 3,
// Qwen2 and SmolLM (GPT-2's, after each digit was separated).
//
// Invariant: the words of a text, in order, make up the text.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace slab::data {

enum class PreTokenizerKind { gpt2, llama3, qwen2, smollm };

const char* name_of(PreTokenizerKind kind);  // "GPT-2", "Llama 3", ...

// The kind with this regular expression, spelled as in tokenizer.json files. Nothing for any other.
std::optional<PreTokenizerKind> kind_of_pattern(std::string_view pattern);
// Its regular expression as in tokenizer.json files; SmolLM's is GPT-2's.
std::string pattern_in_json(PreTokenizerKind kind);

// Immutable, so threads may share one; each has its own WordScanner.
class PreTokenizer {
  public:
    explicit PreTokenizer(PreTokenizerKind kind);
    ~PreTokenizer();
    PreTokenizer(const PreTokenizer&) = delete;
    PreTokenizer& operator=(const PreTokenizer&) = delete;

    PreTokenizerKind kind() const { return kind_; }

    // The first place at or after `from` where a cut changes no word; text.size() when there is none. `text` may
    // contain broken UTF-8, at whose bytes words end.
    static size_t safe_cut(std::string_view text, size_t from);
    // Whether text[at - 1] is a line feed without white space on either side. Text may be cut after it.
    // 0 < at < text.size().
    static bool follows_lone_line_feed(std::string_view text, size_t at);

  private:
    friend class WordScanner;
    PreTokenizerKind kind_;
    struct Compiled;
    std::unique_ptr<Compiled> compiled_;
};

// Finds words for one thread, with PCRE2's working memory.
class WordScanner {
  public:
    explicit WordScanner(const PreTokenizer& pre_tokenizer);
    ~WordScanner();
    WordScanner(const WordScanner&) = delete;
    WordScanner& operator=(const WordScanner&) = delete;

    // End of the word that begins at text[at]. `text` is valid UTF-8; at < text.size(), at a character's beginning.
    size_t word_end(std::string_view text, size_t at);
    // As word_end(), by the regular expression alone, without the fast path for ASCII.
    size_t word_end_by_pattern(std::string_view text, size_t at);

  private:
    PreTokenizerKind kind_;
    const PreTokenizer::Compiled& compiled_;
    struct Memory;
    std::unique_ptr<Memory> memory_;
};

}  // namespace slab::data
