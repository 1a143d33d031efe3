// Text to token ids and back: by bytes, or by a byte-level BPE from tokenizer.json or a GGUF file.
//
// Invariant: for text without special tokens, decode(encode(text)) == text, broken UTF-8 included. bpe_tokenizer.h
// lists the exceptions that a vocabulary can force. Immutable after opening, so threads may share one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/chat_files.h"

namespace slab::data {

// Bytes begin to end-1 of a text.
struct TextRange {
    size_t begin, end;
};

// Whether the spelling of a special token in the text ("<|im_end|>") becomes that token or stays plain text.
enum class SpecialTokens { parse, as_text };

class Tokenizer {
  public:
    virtual ~Tokenizer() = default;

    // Adds no special tokens of its own.
    virtual std::vector<uint32_t> encode(std::string_view text, SpecialTokens special) const = 0;
    // As encode(), on several threads when the text is long; threads >= 1, the calling one included.
    virtual std::vector<uint32_t> encode_parallel(std::string_view text, SpecialTokens special, size_t threads) const;
    // As encode() with SpecialTokens::parse, but a special token that begins or ends within one of the ranges of
    // `plain` stays text. Gives each of `places`, bytes of the text, the index of the token that holds it; where no
    // token does, that of the next one. Ranges and places ascend; places may be equal.
    virtual std::vector<uint32_t> encode_placed(std::string_view text, std::span<const TextRange> plain,
                                                std::span<const size_t> places, std::vector<size_t>& token_at) const;
    // Special tokens appear as their spelling with `show_special`, else not at all. May end inside a UTF-8 character.
    virtual std::string decode(std::span<const uint32_t> tokens, bool show_special = false) const = 0;

    virtual size_t vocabulary_size() const = 0;                                       // largest id + 1
    virtual std::optional<uint32_t> id_of(std::string_view special_token) const = 0;  // by its spelling
    virtual std::optional<uint32_t> bos() const = 0;
    virtual std::optional<uint32_t> eos() const = 0;  // ends a text and separates documents
    virtual bool adds_bos() const = 0;                // whether the model expects bos() before a text (Llama 3: yes)
    // The model's own chat templates.
    virtual const ChatFiles& chat() const = 0;
    const std::string& chat_template() const { return chat().standard; }  // Jinja text, or ""
    // Whether the token stands for no text of its own: "<|im_end|>".
    virtual bool is_special(uint32_t id) const { return decode({&id, 1}).empty() && !decode({&id, 1}, true).empty(); }
    // A checksum over the texts of the ids i with ids[i]; never 0. Two tokenizers from any source that give these ids
    // the same texts have the same one. Ids without text do not count. Nor do merges, which do not change what an id
    // means.
    uint64_t fingerprint(const std::vector<bool>& ids) const;
    // A sentence each, where its files contradict each other and one of them counts.
    virtual std::vector<std::string> notes() const { return {}; }
    virtual std::string description() const = 0;  // "byte-level BPE, 49152 tokens (GPT-2 pre-tokenizer), from ..."
};

// "bytes" gives the byte-level tokenizer of vocabulary 260. Else `from` is a Hugging Face directory, a tokenizer.json
// or a .gguf file. tokenizer_config.json and config.json beside tokenizer.json are read if there. Throws UserError
// naming file and remedy. Kinds of tokenizers that are not implemented (SentencePiece, WordPiece, ...) are refused by
// name.
std::unique_ptr<Tokenizer> open_tokenizer(const std::filesystem::path& from);

// The existing files of the tokenizer in a Hugging Face directory: tokenizer.json, tokenizer_config.json,
// special_tokens_map.json, vocab.json, merges.txt, chat_template.jinja, ...
std::vector<std::filesystem::path> tokenizer_files(const std::filesystem::path& directory);

}  // namespace slab::data
