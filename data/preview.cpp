// Rows as text. See preview.h.
#include "data/preview.h"

#include <algorithm>
#include <vector>

#include "data/display.h"

namespace slab::data {

std::string preview_row(const TokenFile& file, size_t row, size_t T, const Tokenizer& tokenizer, bool colour) {
    const auto target = [&](size_t i) { return file.is_target(i) && !file.starts_document(i); };
    const size_t begin = row * T;
    const size_t full_end = std::min(begin + T, file.size());
    size_t end = full_end, targets = 0;
    for (size_t i = begin; i < end; ++i) targets += target(i);
    if (file.row_tokens() != 0) {  // the filling: a last document of one token repeated, none a target
        size_t last = end;
        do --last;
        while (last > begin && !file.starts_document(last));
        bool filling = last > begin;
        for (size_t i = last; i < end; ++i) filling = filling && !target(i) && file.token(i) == file.token(last);
        if (filling) end = last;
    }
    std::string text = "row " + count_text(row + 1) + ": " + counted(end - begin, "token") + ", " +
                       count_text(targets) + " trained on" +
                       (end < full_end ? ", filled up with " + count_text(full_end - end) : "") + "\n";
    std::vector<uint32_t> run;
    for (size_t i = begin; i < end;) {
        if (i > begin && file.starts_document(i)) text += "\n--- next document ---\n";
        const bool marked = target(i);
        run.clear();
        do run.push_back(file.token(i++));
        while (i < end && target(i) == marked && !file.starts_document(i));
        const std::string shown = printable_text(tokenizer.decode(run, true));
        text += !marked ? shown : colour ? "\x1b[32m" + shown + "\x1b[0m" : "[[" + shown + "]]";
    }
    return text + "\n";
}

std::string preview(const TokenFile& file, size_t rows, size_t T, const Tokenizer& tokenizer, bool colour) {
    const size_t there = file.row_tokens() != 0 ? file.size() / T : (file.size() + T - 1) / T;
    std::string text;
    for (size_t row = 0; row < std::min(rows, there); ++row) text += preview_row(file, row, T, tokenizer, colour);
    return text;
}

}  // namespace slab::data
