// The vocabulary and merges of a byte-level BPE: turns one word's bytes into ids.
//
// Meaning (Hugging Face's `tokenizers`, model "BPE"): a word begins as one token per byte. Then the adjacent pair whose
// merge is the first in the list of merges becomes one token, the leftmost of equals, until no pair has a merge.
// Immutable after construction, so threads may share one.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace slab::data {

// The bytes of a token spelled as in a vocabulary file, where each byte is a printable character (GPT-2's table: 'Ġ' is
// a space). Nothing for a spelling with any other character: such a token means its spelling.
std::optional<std::string> bytes_of_spelling(std::string_view spelling);

// The two tokens of a merge spelled "a b"; nothing when it is not of that form.
std::optional<std::pair<std::string_view, std::string_view>> split_merge(std::string_view merge);

// A vocabulary as a file gives it.
struct BpeVocabulary {
    std::vector<std::string> spellings;                                 // [ids], "" where the model has no such token
    std::vector<std::pair<std::string_view, std::string_view>> merges;  // spellings, first merge first
    bool ignore_merges = false;       // a word that is a token is that token, whatever the merges
    std::optional<uint32_t> unknown;  // replaces bytes without a token; without it they are dropped
    bool fuse_unknown = false;        // `unknown` once for a run of such bytes
};

class BpeModel {
  public:
    // Throws UserError about `where`, a path, when a merge's parts or result are no tokens.
    BpeModel(const BpeVocabulary& vocabulary, const std::string& where);

    // Working memory of one thread: grows to the longest word seen.
    struct Scratch {
        std::vector<uint32_t> ids, previous, next;
        std::vector<std::pair<uint64_t, uint64_t>> heap;
    };

    // Appends the ids of `word`, any bytes. Time: O(n log n) of its length.
    void encode_word(std::string_view word, Scratch& scratch, std::vector<uint32_t>& out) const;

    const std::string& bytes_of(uint32_t id) const { return bytes_[id]; }  // id < size()
    size_t size() const { return bytes_.size(); }                          // largest id + 1
    std::optional<uint32_t> id_of_bytes(std::string_view bytes) const;
    size_t missing_bytes() const;  // number of byte values that occur in UTF-8 and have no token

  private:
    static constexpr uint32_t kNone = UINT32_MAX;
    struct Merge {
        uint64_t pair = UINT64_MAX;  // left id << 32 | right id
        uint32_t rank = kNone, result = kNone;
    };
    const Merge* find(uint32_t left, uint32_t right) const;
    void add_merge(uint32_t left, uint32_t right, uint32_t rank, uint32_t result);
    void merge_short(Scratch& scratch, std::vector<uint32_t>& out) const;
    void merge_long(Scratch& scratch, std::vector<uint32_t>& out) const;

    std::vector<std::string> bytes_;                           // [ids]
    std::unordered_map<std::string_view, uint32_t> by_bytes_;  // views into bytes_
    std::array<uint32_t, 256> id_of_byte_;                     // kNone where the vocabulary lacks it
    std::vector<Merge> merges_;                                // open addressing, a power of two, at most half full
    int shift_ = 0;                                            // of the hash, so that it indexes merges_
    bool ignore_merges_, fuse_unknown_;
    std::optional<uint32_t> unknown_;
};

}  // namespace slab::data
