// Text to token ids and back, whatever the vocabulary: bytes, or a byte-level BPE from tokenizer.json or a GGUF file.
//
// Invariant: for text without special tokens, decode(encode(text)) == text, broken UTF-8 included; what a vocabulary
// makes impossible is said in bpe_tokenizer.h. Immutable after opening, so threads may share one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace slab::data {

// Whether the spelling of a special token inside the text ("<|im_end|>") becomes that token, or stays plain text.
enum class SpecialTokens { parse, as_text };

class Tokenizer {
  public:
    virtual ~Tokenizer() = default;

    virtual std::vector<uint32_t> encode(std::string_view text,
                                         SpecialTokens special) const = 0;  // adds none of its own
    // The same ids, from several threads when the text is long; threads >= 1, the calling one included.
    virtual std::vector<uint32_t> encode_parallel(std::string_view text, SpecialTokens special, size_t threads) const;
    // Special tokens come as their spelling when `show_special`, else as nothing. May end inside a UTF-8 character.
    virtual std::string decode(std::span<const uint32_t> tokens, bool show_special = false) const = 0;

    virtual size_t vocabulary_size() const = 0;                                       // largest id + 1
    virtual std::optional<uint32_t> id_of(std::string_view special_token) const = 0;  // by its spelling
    virtual std::optional<uint32_t> bos() const = 0;
    virtual std::optional<uint32_t> eos() const = 0;  // ends a text and separates documents
    virtual bool adds_bos() const = 0;                // whether the model expects bos() before a text (Llama 3: yes)
    // The file's own chat template (Jinja text), or empty. Only looked at to recognise ChatML and Llama 3.
    virtual const std::string& chat_template() const = 0;
    // A number that tells whether the ids i with ids[i] mean the same text in two tokenizers, wherever they are from;
    // never 0. Of ids without text nothing counts, nor do merges: they decide which ids a text gets, not what ids mean.
    uint64_t fingerprint(const std::vector<bool>& ids) const;
    virtual std::string description() const = 0;  // "byte-level BPE, 49152 tokens (GPT-2 pre-tokenizer), from ..."
};

// "bytes" gives the byte-level tokenizer of vocabulary 260. Else `from` is a Hugging Face directory (tokenizer.json in
// it, tokenizer_config.json and config.json beside it if there), a tokenizer.json, or a .gguf file. Throws
// std::runtime_error naming file and remedy; a kind of tokenizer that is not implemented (SentencePiece, WordPiece,
// ...) is refused by name.
std::unique_ptr<Tokenizer> open_tokenizer(const std::filesystem::path& from);

// Files that make up the tokenizer of a Hugging Face directory, those that exist: tokenizer.json,
// tokenizer_config.json, special_tokens_map.json, vocab.json, merges.txt, chat_template.jinja, ...
std::vector<std::filesystem::path> tokenizer_files(const std::filesystem::path& directory);

}  // namespace slab::data
