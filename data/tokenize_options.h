// The command line of build/tokenize.
#pragma once

#include <cstddef>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

namespace slab::data {

struct TokenizeOptions {
    std::string output_dir, name = "train", tokenizer = "bytes";
    double val_fraction = 0.1;
    bool val_fraction_given = false;  // the default may leave validation empty, a value given may not
    size_t sequence_len = 2048, preview = 0;
    bool preview_ids = false;
    bool sample_packing = false, train_on_inputs = false;
    std::string chat_template;
    std::vector<std::string> files;
};

// Returns nothing when the program goes on, else its exit code (command_line.h).
std::optional<int> parse_tokenize_options(int argc, const char* const* argv, TokenizeOptions& options,
                                          std::ostream& out, std::ostream& err);

// Throws UserError for values out of range and flags that contradict each other or the files.
void check_options(const TokenizeOptions& options);

}  // namespace slab::data
