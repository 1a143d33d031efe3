// A row is printed as runs of tokens that are all targets or all none, within one document.
#include "data/preview.h"

#include <algorithm>
#include <set>
#include <span>
#include <vector>

#include "data/base/display.h"

namespace slab::data {

namespace {

// Puts a backslash before each spelling of a special token.
std::string with_marked_spellings(std::string text, const Tokenizer& tokenizer, bool& found) {
    std::set<std::string> spellings;
    for (const uint32_t id : tokenizer.encode(text, SpecialTokens::parse))
        if (tokenizer.is_special(id)) spellings.insert(tokenizer.decode({&id, 1}, true));
    found = found || !spellings.empty();
    for (const std::string& spelling : spellings)
        for (size_t at = text.find(spelling); at != std::string::npos;
             at = text.find(spelling, at + spelling.size() + 1))
            text.insert(at, 1, '\\');
    return text;
}

std::string text_of_run(std::span<const uint32_t> tokens, const Tokenizer& tokenizer, bool& has_spelled_out) {
    std::string text;
    for (size_t i = 0; i < tokens.size();) {
        const size_t begin = i;
        while (i < tokens.size() && !tokenizer.is_special(tokens[i])) ++i;
        if (i > begin) {
            text += with_marked_spellings(printable_text(tokenizer.decode(tokens.subspan(begin, i - begin), true)),
                                          tokenizer, has_spelled_out);
            // A backslash of the text's own before a token would make it look like text.
            if (i < tokens.size() && text.back() == '\\') text += '\\';
        }
        for (; i < tokens.size() && tokenizer.is_special(tokens[i]); ++i)
            text += printable_text(tokenizer.decode(tokens.subspan(i, 1), true));
    }
    return text;
}

}  // namespace

std::string preview_row(const TokenFile& file, size_t row, size_t T, const Tokenizer& tokenizer,
                        const PreviewStyle& style, bool& has_spelled_out) {
    const size_t first = row * T, full_end = std::min(T, file.size() - first);
    std::vector<uint32_t> tokens(full_end);
    std::vector<uint8_t> bits(full_end);
    file.read(first, full_end, tokens.data(), bits.data());
    const auto starts_document = [&](size_t i) { return (bits[i] & kMaskDocumentStart) != 0; };
    const auto target = [&](size_t i) { return (bits[i] & kMaskTarget) != 0 && !starts_document(i); };
    const auto marked = [&](const std::string& text, bool is_target) {
        return !is_target ? text : style.colour ? "\x1b[32m" + text + "\x1b[0m" : "[[" + text + "]]";
    };
    const size_t end = file.row_tokens() != 0 ? padding_begin(tokens, bits) : full_end;
    size_t targets = 0;
    for (size_t i = 0; i < end; ++i) targets += target(i);
    std::string text = "row " + count_text(row + 1) + ": " + counted(end, "token") + ", " + count_text(targets) +
                       " trained on" + (end < full_end ? ", filled up with " + count_text(full_end - end) : "") + "\n";
    std::string ids = "ids:";
    for (size_t i = 0; i < end;) {
        if (i > 0 && starts_document(i)) {
            text += "\n--- next document ---\n";
            ids += " |";
        }
        const size_t begin = i;
        do ++i;
        while (i < end && target(i) == target(begin) && !starts_document(i));
        const std::span<const uint32_t> run(tokens.data() + begin, i - begin);
        text += marked(text_of_run(run, tokenizer, has_spelled_out), target(begin));
        std::string numbers;
        for (const uint32_t id : run) numbers += (numbers.empty() ? "" : " ") + std::to_string(id);
        ids += " " + marked(numbers, target(begin));
    }
    return text + "\n" + (style.ids ? ids + "\n" : "");
}

std::string preview(const TokenFile& file, size_t rows, size_t T, const Tokenizer& tokenizer,
                    const PreviewStyle& style) {
    const size_t there = file.row_tokens() != 0 ? file.size() / T : (file.size() + T - 1) / T;
    rows = std::min(rows, there);
    if (rows == 0) return "";
    std::string text;
    bool has_spelled_out = false;
    for (size_t row = 0; row < rows; ++row) text += preview_row(file, row, T, tokenizer, style, has_spelled_out);
    return std::string(style.colour ? "what is trained on is green:\n" : "what is trained on stands in [[ ]]:\n") +
           (has_spelled_out ? "what has a \\ before it is text, and no special token:\n" : "") + text;
}

}  // namespace slab::data
