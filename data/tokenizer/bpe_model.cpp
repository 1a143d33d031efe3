// Merging. Nearly all words are short; these are merged by a search for the best pair each time. Long ones use a heap
// over a linked list, so that a megabyte of one letter takes no longer per byte than a page of it.
#include "data/tokenizer/bpe_model.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "data/base/display.h"
#include "data/base/error.h"
#include "data/base/utf8.h"

namespace slab::data {
namespace {

// GPT-2's table: printable Latin-1 bytes are their own characters; the other 68 become U+0100 and up, in order.
constexpr size_t kCharacters = 0x144;
std::array<int, kCharacters> byte_of_character() {
    std::array<int, kCharacters> table;
    table.fill(-1);
    int next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
        const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
        table[static_cast<size_t>(printable ? byte : next++)] = byte;
    }
    return table;
}

uint64_t hash_of(uint64_t pair) {
    return (pair ^ pair >> 32) * 0x9e3779b97f4a7c15u;
}

constexpr size_t kShortWordTokens = 48;  // beyond it the heap is faster

}  // namespace

std::optional<std::string> bytes_of_spelling(std::string_view spelling) {
    static const std::array<int, kCharacters> table = byte_of_character();
    std::string bytes;
    for (size_t at = 0; at < spelling.size();) {
        const Utf8Char c = utf8_char_at(spelling, at);
        if (c.bytes == 0 || c.code_point >= kCharacters || table[c.code_point] < 0) return {};
        bytes.push_back(static_cast<char>(table[c.code_point]));
        at += c.bytes;
    }
    return bytes;
}

std::optional<std::pair<std::string_view, std::string_view>> split_merge(std::string_view merge) {
    const size_t space = merge.find(' ');
    if (space == std::string_view::npos || merge.find(' ', space + 1) != std::string_view::npos) return {};
    return std::pair{merge.substr(0, space), merge.substr(space + 1)};
}

BpeModel::BpeModel(const BpeVocabulary& vocabulary, const std::string& where)
    : ignore_merges_(vocabulary.ignore_merges), fuse_unknown_(vocabulary.fuse_unknown), unknown_(vocabulary.unknown) {
    const size_t size = vocabulary.spellings.size();
    std::unordered_map<std::string_view, uint32_t> by_spelling;
    by_spelling.reserve(size);
    by_bytes_.reserve(size);
    bytes_.resize(size);
    id_of_byte_.fill(kNone);
    for (uint32_t id = 0; id < size; ++id) {
        const std::string& spelling = vocabulary.spellings[id];
        if (spelling.empty()) continue;
        if (!by_spelling.emplace(spelling, id).second)
            throw UserError(
                {.subject = where, .given = "the token " + quote(spelling) + " has two ids", .wanted = "one"});
        auto bytes = bytes_of_spelling(spelling);
        bytes_[id] = bytes ? std::move(*bytes) : spelling;
        if (!bytes) continue;  // no word is spelled like that
        by_bytes_.emplace(bytes_[id], id);
        if (bytes_[id].size() == 1) id_of_byte_[static_cast<unsigned char>(bytes_[id][0])] = id;
    }

    merges_.resize(std::bit_ceil(2 * vocabulary.merges.size() + 2));
    shift_ = 64 - std::countr_zero(merges_.size());
    std::string joined;
    for (size_t rank = 0; rank < vocabulary.merges.size(); ++rank) {
        const auto& [left, right] = vocabulary.merges[rank];
        const auto id_of = [&](std::string_view spelling) {
            const auto found = by_spelling.find(spelling);
            if (found == by_spelling.end())
                throw UserError({.subject = where,
                                 .given = "merge " + std::to_string(rank) + " (" + quote(left) + ", " + quote(right) +
                                          ") needs the token " + quote(spelling) + ", which the vocabulary lacks"});
            return found->second;
        };
        const uint32_t left_id = id_of(left), right_id = id_of(right);
        joined.assign(left).append(right);
        add_merge(left_id, right_id, static_cast<uint32_t>(rank), id_of(joined));
    }
}

// Of a pair given twice the later merge counts, as in `tokenizers`.
void BpeModel::add_merge(uint32_t left, uint32_t right, uint32_t rank, uint32_t result) {
    const uint64_t pair = static_cast<uint64_t>(left) << 32 | right;
    size_t at = hash_of(pair) >> shift_;
    while (merges_[at].pair != UINT64_MAX && merges_[at].pair != pair) at = (at + 1) & (merges_.size() - 1);
    merges_[at] = {pair, rank, result};
}

const BpeModel::Merge* BpeModel::find(uint32_t left, uint32_t right) const {
    const uint64_t pair = static_cast<uint64_t>(left) << 32 | right;
    for (size_t at = hash_of(pair) >> shift_;; at = (at + 1) & (merges_.size() - 1)) {
        if (merges_[at].pair == pair) return &merges_[at];
        if (merges_[at].pair == UINT64_MAX) return nullptr;
    }
}

std::optional<uint32_t> BpeModel::id_of_bytes(std::string_view bytes) const {
    const auto found = by_bytes_.find(bytes);
    if (found == by_bytes_.end()) return {};
    return found->second;
}

size_t BpeModel::missing_bytes() const {
    size_t missing = 0;
    for (size_t byte = 0; byte < id_of_byte_.size(); ++byte) {
        const bool in_text = byte < 0xc0 || (byte > 0xc1 && byte < 0xf5);  // no UTF-8 has the others
        missing += in_text && id_of_byte_[byte] == kNone;
    }
    return missing;
}

void BpeModel::encode_word(std::string_view word, Scratch& scratch, std::vector<uint32_t>& out) const {
    if (word.size() >= kNone) throw UserError("a word of 4 GiB or more cannot be tokenized");
    if (ignore_merges_) {
        if (const auto id = id_of_bytes(word)) {
            out.push_back(*id);
            return;
        }
    }
    std::vector<uint32_t>& ids = scratch.ids;
    ids.clear();
    bool after_unknown = false;
    for (const char c : word) {
        const uint32_t id = id_of_byte_[static_cast<unsigned char>(c)];
        if (id != kNone) {
            ids.push_back(id);
        } else if (unknown_ && !(fuse_unknown_ && after_unknown)) {
            ids.push_back(*unknown_);
        }
        after_unknown = id == kNone;
    }
    if (ids.size() <= kShortWordTokens) {
        merge_short(scratch, out);
    } else {
        merge_long(scratch, out);
    }
}

void BpeModel::merge_short(Scratch& scratch, std::vector<uint32_t>& out) const {
    uint32_t* const ids = scratch.ids.data();  // [n]
    size_t n = scratch.ids.size();
    std::array<const Merge*, kShortWordTokens> merges;  // [n-1] of ids[i] with ids[i+1], or nullptr
    for (size_t i = 0; i + 1 < n; ++i) merges[i] = find(ids[i], ids[i + 1]);
    for (;;) {
        size_t best = n;
        uint32_t best_rank = kNone;
        for (size_t i = 0; i + 1 < n; ++i) {
            if (merges[i] != nullptr && merges[i]->rank < best_rank) {
                best = i;
                best_rank = merges[i]->rank;
            }
        }
        if (best == n) break;
        ids[best] = merges[best]->result;
        std::copy(ids + best + 2, ids + n, ids + best + 1);
        if (best + 2 < n) std::copy(merges.data() + best + 2, merges.data() + n - 1, merges.data() + best + 1);
        --n;
        if (best > 0) merges[best - 1] = find(ids[best - 1], ids[best]);
        if (best + 1 < n) merges[best] = find(ids[best], ids[best + 1]);
    }
    out.insert(out.end(), ids, ids + n);
}

// A heap entry is (rank << 32 | place of the pair's left token, the pair's ids when it was entered). So the smallest
// has the lowest rank, and of equals it is the leftmost. Entries whose tokens have changed meanwhile are skipped.
void BpeModel::merge_long(Scratch& scratch, std::vector<uint32_t>& out) const {
    std::vector<uint32_t>&ids = scratch.ids, &previous = scratch.previous, &next = scratch.next;  // [n]
    const auto n = static_cast<uint32_t>(ids.size());
    previous.resize(n);
    next.resize(n);
    auto& heap = scratch.heap;
    heap.clear();
    const auto later = std::greater<>();
    const auto entry = [&](uint32_t left) -> std::optional<std::pair<uint64_t, uint64_t>> {
        const uint32_t right = next[left];
        if (right == n) return {};
        const Merge* merge = find(ids[left], ids[right]);
        if (merge == nullptr) return {};
        return std::pair{static_cast<uint64_t>(merge->rank) << 32 | left, merge->pair};
    };
    for (uint32_t i = 0; i < n; ++i) {
        previous[i] = i - 1;  // of the first: none
        next[i] = i + 1;      // of the last: n
    }
    for (uint32_t i = 0; i < n; ++i)
        if (const auto pair = entry(i)) heap.push_back(*pair);
    std::make_heap(heap.begin(), heap.end(), later);

    const auto push = [&](uint32_t left) {
        if (const auto pair = entry(left)) {
            heap.push_back(*pair);
            std::push_heap(heap.begin(), heap.end(), later);
        }
    };
    while (!heap.empty()) {
        std::pop_heap(heap.begin(), heap.end(), later);
        const auto [place, pair] = heap.back();
        heap.pop_back();
        const auto left = static_cast<uint32_t>(place);
        const uint32_t right = next[left];
        if (ids[left] == kNone || right == n || (static_cast<uint64_t>(ids[left]) << 32 | ids[right]) != pair) continue;
        ids[left] = find(ids[left], ids[right])->result;
        ids[right] = kNone;
        next[left] = next[right];
        if (next[left] != n) previous[next[left]] = left;
        if (previous[left] != kNone) push(previous[left]);
        push(left);
    }
    for (uint32_t i = 0; i < n; i = next[i]) out.push_back(ids[i]);
}

}  // namespace slab::data
