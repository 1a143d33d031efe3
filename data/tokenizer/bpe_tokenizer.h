// A byte-level BPE tokenizer. tokenizer_json.h and tokenizer_gguf.h read its vocabulary.
//
// Meaning: ids are those of Hugging Face's `tokenizers` for every text that is valid UTF-8. Added tokens are cut out
// first. The rest is brought into Unicode's normal form if the vocabulary asks for it, then cut into words, whose bytes
// are merged. A byte that is not valid UTF-8 ends the text before it and becomes its own token.
// decode() gives the text back, with three exceptions. The normal form stays. White space that a token took is lost.
// Bytes without a token are dropped; description() says so when the vocabulary lacks any.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/bpe_model.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/tokenizer.h"

namespace slab::data {

// A tokenizer as a file describes it.
struct BpeTokenizerParts {
    std::string source;  // the file, for errors and description()
    BpeVocabulary vocabulary;
    std::vector<AddedToken> added;
    PreTokenizerKind pre_tokenizer = PreTokenizerKind::gpt2;
    bool nfc = false;  // text is brought into Unicode's normal form C
    std::optional<uint32_t> bos, eos;
    std::string eos_from;  // the model's file that names eos; "" when a tokenizer's file does
    bool adds_bos = false;
    ChatFiles chat = {};
    std::vector<std::string> notes;  // see Tokenizer::notes()
};

class BpeTokenizer final : public Tokenizer {
  public:
    // Throws UserError when the parts contradict each other.
    explicit BpeTokenizer(BpeTokenizerParts parts);
    ~BpeTokenizer() override;

    std::vector<uint32_t> encode(std::string_view text, SpecialTokens special) const override;
    std::vector<uint32_t> encode_parallel(std::string_view text, SpecialTokens special, size_t threads) const override;
    std::vector<uint32_t> encode_placed(std::string_view text, std::span<const TextRange> plain,
                                        std::span<const size_t> places, std::vector<size_t>& token_at) const override;
    std::string decode(std::span<const uint32_t> tokens, bool show_special = false) const override;

    size_t vocabulary_size() const override { return size_; }
    std::optional<uint32_t> id_of(std::string_view special_token) const override;
    bool is_special(uint32_t id) const override { return id < special_.size() && special_[id]; }
    std::optional<uint32_t> bos() const override { return bos_; }
    std::optional<uint32_t> eos() const override { return eos_; }
    bool adds_bos() const override { return adds_bos_; }
    const ChatFiles& chat() const override { return chat_; }
    std::string description() const override;
    std::vector<std::string> notes() const override { return notes_; }

  private:
    struct Worker;
    class Lease;

    void split(std::string_view text, SpecialTokens special, std::vector<TextPart>& parts,
               std::vector<std::string>& normal_forms) const;
    void encode_plain(std::string_view text, Worker& worker, std::vector<uint32_t>& out) const;
    void encode_placed_part(const TextPart& part, std::span<const size_t> places, Worker& worker,
                            std::vector<uint32_t>& ids, std::vector<size_t>& token_at) const;

    std::string source_, eos_from_;
    BpeModel model_;
    PreTokenizer pre_tokenizer_;
    AddedTokenFinder added_, added_normalized_;
    std::map<std::string, uint32_t, std::less<>> added_by_text_;
    std::map<uint32_t, AddedToken> added_by_id_;
    std::vector<bool> special_;  // by id
    bool nfc_;
    size_t size_;
    std::optional<uint32_t> bos_, eos_;
    bool adds_bos_;
    ChatFiles chat_;
    std::vector<std::string> notes_;

    // Idle workers. Their cache of earlier words makes them fast and changes no id.
    mutable std::mutex mutex_;
    mutable std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace slab::data
