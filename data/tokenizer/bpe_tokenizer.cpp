// Words repeat: a small cache gives most ids without merging. It belongs to a worker, and each thread has a worker of
// its own, so threads share nothing that changes.
#include "data/tokenizer/bpe_tokenizer.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>

#include "data/base/parallel.h"
#include "data/base/utf8.h"
#include "data/tokenizer/nfc.h"

namespace slab::data {
namespace {

// The last word seen for each of 2^15 hashes, with its ids. A line holds a word of up to 30 bytes and 7 ids, which
// covers nearly all. Other words are merged each time.
class WordCache {
  public:
    static constexpr size_t kLongestWordBytes = 30, kMostIds = 7;
    struct alignas(64) Line {
        std::array<uint64_t, 4> key{};  // the word's length, its bytes, zeros; all 0: empty
        uint32_t count = 0;
        std::array<uint32_t, kMostIds> ids{};
    };

    // 1 <= word.size() <= kLongestWordBytes.
    static std::array<uint64_t, 4> key_of(std::string_view word) {
        std::array<uint64_t, 4> key{};
        auto* bytes = reinterpret_cast<char*>(key.data());
        bytes[0] = static_cast<char>(word.size());
        std::memcpy(bytes + 1, word.data(), word.size());
        return key;
    }
    static bool same(const std::array<uint64_t, 4>& a, const std::array<uint64_t, 4>& b) {
        return ((a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) | (a[3] ^ b[3])) == 0;
    }
    // The line that may hold the word of `key`.
    Line& line_of(const std::array<uint64_t, 4>& key) {
        uint64_t hash = 0;
        for (const uint64_t part : key) hash = (std::rotl(hash, 23) ^ part) * 0x9e3779b97f4a7c15u;
        return lines_[hash >> (64 - kLog2Lines)];
    }

  private:
    static constexpr int kLog2Lines = 15;
    std::vector<Line> lines_ = std::vector<Line>(size_t{1} << kLog2Lines);
};

constexpr size_t kParallelPieceBytes = size_t{1} << 18;

// Of spellings with the same normal form the first counts. In `tokenizers` the choice varies.
std::vector<AddedToken> chosen(const std::vector<AddedToken>& tokens, bool normalized, bool nfc) {
    std::vector<AddedToken> out;
    std::map<std::string, std::string_view> spelling_of;  // the one that counts, by normal form
    for (const AddedToken& token : tokens) {
        // Without a normalizer both kinds search the same text, still one after the other.
        if (token.normalized != normalized) continue;
        std::string normal_form;
        if (!nfc || !normalized || to_nfc(token.text, normal_form)) normal_form = token.text;
        if (spelling_of.emplace(normal_form, token.text).first->second != token.text) continue;
        out.push_back(token);
        out.back().text = std::move(normal_form);
    }
    return out;
}

// Moves ranges and places of a text to its normal form, which has normal_bytes. No character joins with an ASCII one
// after it, so the text is normalised up to such a character, and a place keeps its distance from there.
void move_to_normal_form(std::string_view text, size_t normal_bytes, std::vector<TextRange>& ranges,
                         std::vector<size_t>& places) {
    std::vector<size_t*> all;
    for (TextRange& range : ranges) {
        all.push_back(&range.begin);
        all.push_back(&range.end);
    }
    for (size_t& place : places) all.push_back(&place);
    std::stable_sort(all.begin(), all.end(), [](const size_t* a, const size_t* b) { return *a < *b; });
    std::string normal_form;
    const auto normal_size = [&](std::string_view piece) {
        return to_nfc(piece, normal_form) ? piece.size() : normal_form.size();
    };
    const auto continues = [&](size_t at) { return (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80; };
    size_t done = 0, moved = 0;
    for (size_t* const at : all) {
        if (*at >= text.size()) {
            *at = normal_bytes;
            continue;
        }
        size_t cut = *at, begin = *at;  // the ASCII character, and the place's own
        while (begin > done && continues(begin)) --begin;
        while (cut > done && static_cast<unsigned char>(text[cut]) >= 0x80) --cut;
        moved += normal_size(text.substr(done, cut - done));
        done = cut;
        *at = std::min(moved + normal_size(text.substr(done, begin - done)), normal_bytes);
    }
    for (size_t& place : places) place = std::min(place, normal_bytes == 0 ? 0 : normal_bytes - 1);
}

}  // namespace

struct BpeTokenizer::Worker {
    explicit Worker(const PreTokenizer& pre_tokenizer) : scanner(pre_tokenizer) {}
    WordScanner scanner;
    WordCache cache;
    BpeModel::Scratch scratch;
};

// An idle worker, or a new one. It becomes idle again at the end.
class BpeTokenizer::Lease {
  public:
    explicit Lease(const BpeTokenizer& tokenizer) : tokenizer_(tokenizer) {
        {
            const std::lock_guard lock(tokenizer.mutex_);
            if (!tokenizer.workers_.empty()) {
                worker_ = std::move(tokenizer.workers_.back());
                tokenizer.workers_.pop_back();
            }
        }
        if (!worker_) worker_ = std::make_unique<Worker>(tokenizer.pre_tokenizer_);
    }
    ~Lease() {
        const std::lock_guard lock(tokenizer_.mutex_);
        tokenizer_.workers_.push_back(std::move(worker_));
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Worker& operator*() const { return *worker_; }

  private:
    const BpeTokenizer& tokenizer_;
    std::unique_ptr<Worker> worker_;
};

BpeTokenizer::BpeTokenizer(BpeTokenizerParts parts)
    : source_(std::move(parts.source)),
      eos_from_(std::move(parts.eos_from)),
      model_(parts.vocabulary, source_),
      pre_tokenizer_(parts.pre_tokenizer),
      added_(chosen(parts.added, false, parts.nfc)),
      added_normalized_(chosen(parts.added, true, parts.nfc)),
      nfc_(parts.nfc),
      size_(model_.size()),
      bos_(parts.bos),
      eos_(parts.eos),
      adds_bos_(parts.adds_bos),
      chat_(std::move(parts.chat)),
      notes_(std::move(parts.notes)) {
    for (const AddedToken& token : parts.added) {
        size_ = std::max(size_, size_t{token.id} + 1);
        added_by_text_[token.text] = token.id;
        added_by_id_[token.id] = token;
    }
    special_.resize(size_);
    for (const auto& [id, token] : added_by_id_) special_[id] = token.special;
    if (adds_bos_ && !bos_) throw std::logic_error("a tokenizer that adds a first token has one");
}

BpeTokenizer::~BpeTokenizer() = default;

void BpeTokenizer::split(std::string_view text, SpecialTokens special, std::vector<TextPart>& parts,
                         std::vector<std::string>& normal_forms) const {
    const bool as_text = special == SpecialTokens::as_text;
    std::vector<TextPart> raw;
    added_.split(text, as_text, raw);
    // Views into `normal_forms` follow, so it must not grow beyond what is reserved.
    normal_forms.reserve(raw.size());
    for (const TextPart& part : raw) {
        if (part.token != TextPart::kNoToken) {
            parts.push_back(part);
            continue;
        }
        std::string_view plain = part.text;
        if (nfc_) {
            std::string normal_form;
            if (!to_nfc(plain, normal_form)) plain = normal_forms.emplace_back(std::move(normal_form));
        }
        added_normalized_.split(plain, as_text, parts);
    }
}

void BpeTokenizer::encode_plain(std::string_view text, Worker& worker, std::vector<uint32_t>& out) const {
    while (!text.empty()) {
        const std::string_view valid = text.substr(0, valid_utf8_bytes(text));
        for (size_t at = 0; at < valid.size();) {
            const size_t end = worker.scanner.word_end(valid, at);
            const std::string_view word = valid.substr(at, end - at);
            at = end;
            if (word.size() > WordCache::kLongestWordBytes) {
                model_.encode_word(word, worker.scratch, out);
                continue;
            }
            const auto key = WordCache::key_of(word);
            WordCache::Line& line = worker.cache.line_of(key);
            if (WordCache::same(line.key, key)) {
                out.insert(out.end(), line.ids.begin(), line.ids.begin() + line.count);
                continue;
            }
            const size_t before = out.size();
            model_.encode_word(word, worker.scratch, out);
            if (const size_t count = out.size() - before; count <= WordCache::kMostIds) {
                line.key = key;
                line.count = static_cast<uint32_t>(count);
                std::copy(out.begin() + static_cast<std::ptrdiff_t>(before), out.end(), line.ids.begin());
            }
        }
        text.remove_prefix(valid.size());
        if (text.empty()) break;
        model_.encode_word(text.substr(0, 1), worker.scratch, out);
        text.remove_prefix(1);
    }
}

std::vector<uint32_t> BpeTokenizer::encode(std::string_view text, SpecialTokens special) const {
    return encode_parallel(text, special, 1);
}

std::vector<uint32_t> BpeTokenizer::encode_parallel(std::string_view text, SpecialTokens special,
                                                    size_t threads) const {
    std::vector<TextPart> parts;
    std::vector<std::string> normal_forms;
    split(text, special, parts, normal_forms);
    std::vector<uint32_t> ids;
    if (threads <= 1 || text.size() < 2 * kParallelPieceBytes) {
        const Lease worker(*this);
        ids.reserve(text.size() / 4);
        for (const TextPart& part : parts) {
            if (part.token == TextPart::kNoToken) {
                encode_plain(part.text, *worker, ids);
            } else {
                ids.push_back(part.token);
            }
        }
        return ids;
    }

    // Each piece is a run of parts. Long plain parts are cut at places that change no word.
    std::vector<TextPart> cut;
    std::vector<size_t> piece_begins = {0};
    size_t piece_bytes = 0;
    for (TextPart part : parts) {
        while (part.token == TextPart::kNoToken && piece_bytes + part.text.size() > kParallelPieceBytes) {
            const size_t here = PreTokenizer::safe_cut(part.text, kParallelPieceBytes - piece_bytes);
            cut.push_back({part.text.substr(0, here)});
            piece_begins.push_back(cut.size());
            piece_bytes = 0;
            part.text.remove_prefix(here);
            if (part.text.empty()) break;
        }
        if (part.text.empty()) continue;
        cut.push_back(part);
        piece_bytes += part.text.size();
        if (piece_bytes >= kParallelPieceBytes) {
            piece_begins.push_back(cut.size());
            piece_bytes = 0;
        }
    }
    piece_begins.push_back(cut.size());

    const size_t pieces = piece_begins.size() - 1;
    std::vector<std::vector<uint32_t>> ids_of(pieces);
    for_each_piece(pieces, threads, [&](size_t i) {
        const Lease worker(*this);
        for (size_t p = piece_begins[i]; p < piece_begins[i + 1]; ++p) {
            if (cut[p].token == TextPart::kNoToken) {
                encode_plain(cut[p].text, *worker, ids_of[i]);
            } else {
                ids_of[i].push_back(cut[p].token);
            }
        }
    });
    size_t total = 0;
    for (const auto& some : ids_of) total += some.size();
    ids.reserve(total);
    for (auto& some : ids_of) {
        ids.insert(ids.end(), some.begin(), some.end());
        some = {};
    }
    return ids;
}

// Appends the ids of a part, and the id's index for each of `places`, which lie in it.
void BpeTokenizer::encode_placed_part(const TextPart& part, std::span<const size_t> places, Worker& worker,
                                      std::vector<uint32_t>& ids, std::vector<size_t>& token_at) const {
    const size_t first = ids.size();
    if (part.token == TextPart::kNoToken) {
        encode_plain(part.text, worker, ids);
    } else {
        ids.push_back(part.token);
    }
    size_t at = 0, end = first;  // bytes of the part before token `end`
    for (const size_t place : places) {
        while (end < ids.size() && at <= place) {
            if (part.token == TextPart::kNoToken) {
                // Bytes that have no token are passed over.
                const std::string_view bytes = model_.bytes_of(ids[end]);
                while (at + bytes.size() < part.text.size() && !part.text.substr(at).starts_with(bytes)) ++at;
                at += bytes.size();
            } else {
                at = part.text.size();
            }
            ++end;
        }
        token_at.push_back(at > place ? end - 1 : ids.size());
    }
}

std::vector<uint32_t> BpeTokenizer::encode_placed(std::string_view text, std::span<const TextRange> plain,
                                                  std::span<const size_t> places, std::vector<size_t>& token_at) const {
    std::vector<TextPart> raw, parts;
    added_.split(text, plain, raw);
    std::vector<uint32_t> ids;
    ids.reserve(text.size() / 4);
    token_at.clear();
    token_at.reserve(places.size());
    const Lease worker(*this);
    std::string normal_form;
    std::vector<TextRange> ranges;
    std::vector<size_t> here;
    size_t range = 0, place = 0;
    for (const TextPart& part : raw) {
        const auto begin = static_cast<size_t>(part.text.data() - text.data()), end = begin + part.text.size();
        here.clear();
        for (; place < places.size() && places[place] < end; ++place)
            here.push_back(places[place] < begin ? 0 : places[place] - begin);
        if (part.token != TextPart::kNoToken || (!nfc_ && added_normalized_.empty())) {
            encode_placed_part(part, here, *worker, ids, token_at);
            continue;
        }
        ranges.clear();
        while (range < plain.size() && plain[range].end <= begin) ++range;
        for (size_t i = range; i < plain.size() && plain[i].begin < end; ++i)
            ranges.push_back({std::max(plain[i].begin, begin) - begin, std::min(plain[i].end, end) - begin});
        TextPart whole{part.text};
        if (nfc_ && !to_nfc(part.text, normal_form)) {
            whole.text = normal_form;
            move_to_normal_form(part.text, normal_form.size(), ranges, here);
        }
        parts.clear();
        added_normalized_.split(whole.text, ranges, parts);
        size_t at = 0;
        for (const TextPart& sub : parts) {
            const auto offset = static_cast<size_t>(sub.text.data() - whole.text.data());
            const size_t from = at;
            while (at < here.size() && here[at] < offset + sub.text.size()) ++at;
            std::vector<size_t> inside;
            for (size_t i = from; i < at; ++i) inside.push_back(here[i] < offset ? 0 : here[i] - offset);
            encode_placed_part(sub, inside, *worker, ids, token_at);
        }
        for (; at < here.size(); ++at) token_at.push_back(ids.size());
    }
    return ids;
}

std::string BpeTokenizer::decode(std::span<const uint32_t> tokens, bool show_special) const {
    std::string text;
    for (const uint32_t id : tokens) {
        const auto added = added_by_id_.find(id);
        if (added != added_by_id_.end()) {
            if (show_special || !added->second.special) text += added->second.text;
        } else if (id < model_.size()) {
            text += model_.bytes_of(id);
        }
    }
    return text;
}

std::optional<uint32_t> BpeTokenizer::id_of(std::string_view special_token) const {
    const auto found = added_by_text_.find(special_token);
    if (found == added_by_text_.end()) return {};
    return found->second;
}

std::string BpeTokenizer::description() const {
    std::string text = "byte-level BPE, " + std::to_string(size_) + " tokens (" + name_of(pre_tokenizer_.kind()) +
                       " pre-tokenizer" + (nfc_ ? ", NFC" : "") + "), from " + source_;
    if (!eos_from_.empty())
        text += "; its end of text, " + decode({{*eos_}}, true) + ", is eos_token_id of " + eos_from_;
    if (const size_t missing = model_.missing_bytes(); missing > 0)
        text +=
            "; " + std::to_string(missing) + " byte values have no token; characters with them are left out of texts";
    return text;
}

}  // namespace slab::data
