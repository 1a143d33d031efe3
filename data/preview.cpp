// A row is printed as runs of tokens that are all targets or all none, within one document.
#include "data/preview.h"

#include <algorithm>
#include <vector>

#include "data/base/display.h"

namespace slab::data {

std::string preview_row(const TokenFile& file, size_t row, size_t T, const Tokenizer& tokenizer, bool colour) {
    const size_t first = row * T, full_end = std::min(T, file.size() - first);
    std::vector<uint32_t> tokens(full_end);
    std::vector<uint8_t> bits(full_end);
    file.read(first, full_end, tokens.data(), bits.data());
    const auto starts_document = [&](size_t i) { return (bits[i] & kMaskDocumentStart) != 0; };
    const auto target = [&](size_t i) { return (bits[i] & kMaskTarget) != 0 && !starts_document(i); };
    const size_t end = file.row_tokens() != 0 ? padding_begin(tokens, bits) : full_end;
    size_t targets = 0;
    for (size_t i = 0; i < end; ++i) targets += target(i);
    std::string text = "row " + count_text(row + 1) + ": " + counted(end, "token") + ", " + count_text(targets) +
                       " trained on" + (end < full_end ? ", filled up with " + count_text(full_end - end) : "") + "\n";
    std::vector<uint32_t> run;
    for (size_t i = 0; i < end;) {
        if (i > 0 && starts_document(i)) text += "\n--- next document ---\n";
        const bool marked = target(i);
        run.clear();
        do run.push_back(tokens[i++]);
        while (i < end && target(i) == marked && !starts_document(i));
        const std::string shown = printable_text(tokenizer.decode(run, true));
        text += !marked ? shown : colour ? "\x1b[32m" + shown + "\x1b[0m" : "[[" + shown + "]]";
    }
    return text + "\n";
}

std::string preview(const TokenFile& file, size_t rows, size_t T, const Tokenizer& tokenizer, bool colour) {
    const size_t there = file.row_tokens() != 0 ? file.size() / T : (file.size() + T - 1) / T;
    rows = std::min(rows, there);
    std::string text;
    if (rows > 0) text = colour ? "what is trained on is green:\n" : "what is trained on stands in [[ ]]:\n";
    for (size_t row = 0; row < rows; ++row) text += preview_row(file, row, T, tokenizer, colour);
    return text;
}

}  // namespace slab::data
