// Ends are counted by id; what the frequent ones spell is asked afterwards.
#include "train/run/reply_ends.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "data/token_format.h"

namespace slab::train {
namespace {

constexpr size_t kMostTokens = size_t{4} << 20, kPieceTokens = size_t{1} << 16;
constexpr uint32_t kNone = UINT32_MAX;

// The last two tokens of runs, with their number.
struct Ends {
    std::map<std::pair<uint32_t, uint32_t>, size_t> count;  // (last but one, last)
    size_t runs = 0;
};

Ends ends_of(const data::TokenFile& rows) {
    Ends ends;
    std::vector<uint32_t> tokens(kPieceTokens);
    std::vector<uint8_t> bits(kPieceTokens);
    uint32_t before = kNone, last = kNone;
    const auto close = [&] {
        if (last == kNone) return;
        ++ends.count[{before, last}];
        ++ends.runs;
        before = last = kNone;
    };
    const size_t size = std::min(rows.size(), kMostTokens);
    for (size_t begin = 0; begin < size; begin += kPieceTokens) {
        const size_t count = std::min(kPieceTokens, size - begin);
        rows.read(begin, count, tokens.data(), bits.data());
        for (size_t i = 0; i < count; ++i) {
            const bool target = (bits[i] & data::kMaskTarget) != 0, starts = (bits[i] & data::kMaskDocumentStart) != 0;
            if (!target || starts) close();
            if (target && !starts) before = std::exchange(last, tokens[i]);
        }
    }
    close();
    return ends;
}

bool is_special(const data::Tokenizer& tokenizer, uint32_t id) {
    return tokenizer.decode({{id}}).empty() && !tokenizer.decode({{id}}, true).empty();
}

bool is_blank(const data::Tokenizer& tokenizer, uint32_t id) {
    const std::string text = tokenizer.decode({{id}}, true);
    return text.find_first_not_of(" \t\r\n") == std::string::npos && !text.empty();
}

}  // namespace

std::vector<ReplyEnd> reply_ends(const data::TokenFile& rows, const std::vector<int64_t>& known,
                                 const std::function<const data::Tokenizer*()>& tokenizer) {
    if (!rows.has_mask()) return {};
    const Ends ends = ends_of(rows);
    const auto is_known = [&](uint32_t id) { return std::find(known.begin(), known.end(), id) != known.end(); };
    std::map<uint32_t, size_t> by_last;
    for (const auto& [end, count] : ends.count) by_last[end.second] += count;
    const auto frequent = [&](size_t count) { return 10 * count >= ends.runs; };
    const bool any = std::any_of(by_last.begin(), by_last.end(),
                                 [&](const auto& end) { return frequent(end.second) && !is_known(end.first); });
    const data::Tokenizer* const t = any ? tokenizer() : nullptr;
    if (t == nullptr) return {};
    std::map<uint32_t, size_t> special;
    for (const auto& [id, count] : by_last)
        if (frequent(count) && is_special(*t, id)) special[id] += count;
    for (const auto& [end, count] : ends.count)
        if (frequent(by_last[end.second]) && end.first != kNone && is_blank(*t, end.second) &&
            is_special(*t, end.first))
            special[end.first] += count;
    std::vector<ReplyEnd> found;
    for (const auto& [id, count] : special)
        if (frequent(count) && !is_known(id)) found.push_back({id, t->decode({{id}}, true)});
    return found;
}

}  // namespace slab::train
