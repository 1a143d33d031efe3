// Nearly all text is in normal form C already, which a look at each character shows. Only a stretch that may change is
// decomposed, ordered and composed. It lies between two boundaries: characters before which nothing can change.
#include "data/tokenizer/nfc.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "data/base/utf8.h"
#include "data/tokenizer/nfc_tables.h"

namespace slab::data {
namespace {

// Hangul: a syllable is first consonant, vowel, optional last consonant, by arithmetic (Unicode Standard, 3.12).
constexpr uint32_t kSyllables = 0xac00, kConsonants = 0x1100, kVowels = 0x1161,
                   kFinals = 0x11a7;  // finals: index 0 is none
constexpr uint32_t kConsonantCount = 19, kVowelCount = 21, kFinalCount = 28;
constexpr uint32_t kSyllableCount = kConsonantCount * kVowelCount * kFinalCount;

// The entry of a sorted table of ranges that holds c, or nullptr.
template <typename Table>
auto range_of(const Table& table, uint32_t c) -> decltype(&table[0]) {
    const auto* found = std::upper_bound(std::begin(table), std::end(table), c,
                                         [](uint32_t wanted, const auto& range) { return wanted < range.first; });
    return found != std::begin(table) && c <= found[-1].last ? found - 1 : nullptr;
}

bool may_change(uint32_t c) {
    return c >= 0x300 && range_of(nfc_tables::kUncertain, c) != nullptr;
}

uint8_t combining_class(uint32_t c) {
    const auto* range = range_of(nfc_tables::kClasses, c);
    return range == nullptr ? 0 : range->combining_class;
}

struct Mark {
    uint32_t c;
    uint8_t combining_class;
};

void decompose(uint32_t c, std::vector<Mark>& out) {
    if (c - kSyllables < kSyllableCount) {
        const uint32_t index = c - kSyllables;
        out.push_back({kConsonants + index / (kVowelCount * kFinalCount), 0});
        out.push_back({kVowels + index / kFinalCount % kVowelCount, 0});
        if (index % kFinalCount != 0) out.push_back({kFinals + index % kFinalCount, 0});
        return;
    }
    const auto* found = std::lower_bound(std::begin(nfc_tables::kDecompositions), std::end(nfc_tables::kDecompositions),
                                         c, [](const auto& entry, uint32_t wanted) { return entry.composed < wanted; });
    if (found == std::end(nfc_tables::kDecompositions) || found->composed != c) {
        out.push_back({c, combining_class(c)});
        return;
    }
    decompose(found->first, out);
    if (found->second != 0) decompose(found->second, out);
}

// Pairs that compose, sorted by (first, second).
const std::vector<nfc_tables::Decomposition>& compositions() {
    static const auto table = [] {
        std::vector<nfc_tables::Decomposition> sorted;
        for (const auto& entry : nfc_tables::kDecompositions)
            if (entry.composes) sorted.push_back(entry);
        std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
            return std::pair(a.first, a.second) < std::pair(b.first, b.second);
        });
        return sorted;
    }();
    return table;
}

// 0 when the two do not compose.
uint32_t compose(uint32_t first, uint32_t second) {
    if (first - kConsonants < kConsonantCount && second - kVowels < kVowelCount)
        return kSyllables + ((first - kConsonants) * kVowelCount + (second - kVowels)) * kFinalCount;
    if (first - kSyllables < kSyllableCount && (first - kSyllables) % kFinalCount == 0 && second > kFinals &&
        second < kFinals + kFinalCount)
        return first + (second - kFinals);
    const auto wanted = std::pair(first, second);
    const auto& table = compositions();
    const auto found = std::lower_bound(table.begin(), table.end(), wanted, [](const auto& entry, const auto& pair) {
        return std::pair(entry.first, entry.second) < pair;
    });
    return found != table.end() && std::pair(found->first, found->second) == wanted ? found->composed : 0;
}

// Appends the normal form of `stretch`, valid UTF-8.
void append_normal(std::string_view stretch, std::vector<Mark>& marks, std::string& out) {
    marks.clear();
    for (size_t at = 0; at < stretch.size();) {
        const Utf8Char c = utf8_char_at(stretch, at);
        decompose(c.code_point, marks);
        at += c.bytes;
    }
    const auto is_start = [](const Mark& mark) { return mark.combining_class == 0; };
    for (auto at = marks.begin(); at != marks.end();) {
        const auto begin = std::find_if_not(at, marks.end(), is_start);
        at = std::find_if(begin, marks.end(), is_start);
        std::stable_sort(begin, at, [](const Mark& a, const Mark& b) { return a.combining_class < b.combining_class; });
    }
    // Each character composes with the last one of class 0, unless a remaining one between has the same or a higher
    // class.
    size_t kept = 0, start = 0;
    bool has_start = false;
    for (const Mark mark : marks) {
        if (has_start) {
            const bool adjacent = kept == start + 1;
            if (adjacent || (mark.combining_class != 0 && marks[kept - 1].combining_class < mark.combining_class)) {
                if (const uint32_t composed = compose(marks[start].c, mark.c)) {
                    marks[start].c = composed;
                    continue;
                }
            }
        }
        if (mark.combining_class == 0) {
            start = kept;
            has_start = true;
        }
        marks[kept++] = mark;
    }
    for (size_t i = 0; i < kept; ++i) append_utf8(out, marks[i].c);
}

}  // namespace

bool to_nfc(std::string_view text, std::string& normal_form) {
    std::string normal;
    std::vector<Mark> marks;
    size_t copied = 0;    // text before it is in `normal_form` already
    size_t boundary = 0;  // the last place before which nothing can change any more
    bool same = true;
    for (size_t at = 0; at < text.size();) {
        if (static_cast<unsigned char>(text[at]) < 0x80) {
            at += ascii_bytes(text.substr(at));
            boundary = at - 1;
            continue;
        }
        const Utf8Char c = utf8_char_at(text, at);
        if (c.bytes == 0) {
            boundary = ++at;
            continue;
        }
        if (!may_change(c.code_point)) {
            boundary = at;
            at += c.bytes;
            continue;
        }
        size_t end = at;
        for (Utf8Char next = c; next.bytes > 0 && may_change(next.code_point);) {
            end += next.bytes;
            next = end < text.size() ? utf8_char_at(text, end) : Utf8Char{};
        }
        normal.clear();
        append_normal(text.substr(boundary, end - boundary), marks, normal);
        if (normal != text.substr(boundary, end - boundary)) {
            if (same) normal_form.clear();
            same = false;
            normal_form.append(text, copied, boundary - copied).append(normal);
            copied = end;
        }
        at = boundary = end;
    }
    if (!same) normal_form.append(text, copied, text.size() - copied);
    return same;
}

}  // namespace slab::data
