// Flags and help of build/tokenize, and which of them go together.
#include "data/tokenize_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "data/base/command_line.h"
#include "data/base/display.h"
#include "data/base/error.h"
#include "data/records.h"

namespace slab::data {
namespace {

constexpr const char* kAbout =
    R"(Makes token files for train_gpt from text files or from records (*.jsonl).

--tokenizer is the model's: its Hugging Face directory, tokenizer.json or .gguf file. Without it, ids 0 to 255 are the
bytes, 256 ends a text, and the vocabulary is 260. It writes, whole or not at all,
  D/NAME.bin   tokens in llm.c's format
  D/NAME.mask  one byte a token: bit 0 = is a target, bit 1 = a document starts here
  D/val.bin, D/val.mask   the same for validation (D/NAME-val.* when NAME is not 'train')

Text: every FILE is one document of a stream, followed by the model's end-of-text token. Special tokens spelled out in
it stay text. The last --val-fraction of each document, by bytes, goes to validation, as a document of its own; the cut
never lies within a UTF-8 character. So validation has some of every text given, none of it seen in training. A document
too short for a validation byte goes to training whole. The first token of a document is no target, nor is the end of a
training part whose document goes on in validation. A file with a 0 byte among its first 64 KiB is refused as no text.

Records: every line of a FILE is a JSON object with "text", "prompt" and "completion", "instruction" ("input") and
"output", or "messages". Each is a document in a padded row of --sequence-len tokens; with --sample-packing a row holds
several. Only replies are trained on, unless --train-on-inputs is given. An evenly spread --val-fraction of the records
goes to validation. train_gpt then wants the same --sequence-len.

In the names of flags '_' is taken for '-'.
)";

}  // namespace

std::optional<int> parse_tokenize_options(int argc, const char* const* argv, TokenizeOptions& options,
                                          std::ostream& out, std::ostream& err) {
    CLI::App app(kAbout, "tokenize");
    app.add_option("--output-dir", options.output_dir, "Directory D to write into; made if it is missing")
        ->required()
        ->type_name("D");
    app.add_option(
           "--tokenizer", options.tokenizer,
           "The model's tokenizer: a Hugging Face directory, org/name as `hf download` left it, a tokenizer.json, "
           "a .gguf, or the word bytes")
        ->capture_default_str()
        ->type_name("X");
    const CLI::Option* const val_fraction =
        app.add_option("--val-fraction", options.val_fraction,
                       "Share of each document, or of the records, kept for validation: 0 (none) to below 1")
            ->capture_default_str()
            ->type_name("X");
    app.add_option("--name", options.name, "Name of the training file")->capture_default_str()->type_name("NAME");
    app.add_option("--sequence-len", options.sequence_len, "Records: tokens a row; text: only of --preview")
        ->capture_default_str()
        ->type_name("T");
    app.add_flag("--sample-packing", options.sample_packing,
                 "Records: several in a row, none of which sees another; first fit decreasing");
    app.add_flag("--train-on-inputs", options.train_on_inputs, "Records: train on prompts too, not only on replies");
    app.add_option(
           "--chat-template", options.chat_template,
           "Records with messages: a file with a template in Jinja's language, or a fixed form, chatml or llama3; "
           "default: the model's own template")
        ->type_name("X");
    app.add_option("--preview", options.preview, "Print the first N rows as text, what is trained on marked")
        ->type_name("N");
    app.add_flag("--preview-ids", options.preview_ids, "With --preview: the token ids of each row, too");
    app.add_option("FILES", options.files,
                   "Text files, one document each (- is standard input), or files of records (*.jsonl)")
        ->required();
    if (const auto exit_code = parse_command_line(app, argc, argv, out, err)) return exit_code;
    options.val_fraction_given = val_fraction->count() > 0;
    return std::nullopt;
}

void check_options(const TokenizeOptions& options) {
    if (!(options.val_fraction >= 0 && options.val_fraction < 1))
        throw UserError({.subject = "--val-fraction " + number_text(options.val_fraction),
                         .given = "is out of range",
                         .wanted = "a number from 0 to below 1",
                         .hint = "0.1 keeps a tenth for validation, 0 nothing"});
    if (options.name.empty() || options.name[0] == '.' || options.name.find('/') != std::string::npos)
        throw UserError({.subject = "--name '" + options.name + "'",
                         .given = "cannot name a file there",
                         .wanted = "a plain file name without directory",
                         .hint = "the directory goes into --output-dir"});
    if (std::count(options.files.begin(), options.files.end(), "-") > 1)
        throw UserError(
            {.given = "- (standard input) is given twice", .wanted = "once", .hint = "it can be read only once"});
    if (options.sequence_len < 2 || options.sequence_len > size_t{1} << 24)
        throw UserError({.subject = "--sequence-len " + std::to_string(options.sequence_len),
                         .given = "is out of range",
                         .wanted = "2 to 16777216"});
    if (options.preview_ids && options.preview == 0)
        throw UserError({.subject = "--preview-ids",
                         .given = "has nothing to show without --preview",
                         .wanted = "--preview N beside it"});
    const auto records = std::count_if(options.files.begin(), options.files.end(), is_records_file);
    if (records != 0 && static_cast<size_t>(records) != options.files.size())
        throw UserError({.given = "both text and records (*.jsonl) are given",
                         .wanted = "one of them: text is a stream and records are rows",
                         .hint = "tokenize them in two runs"});
    if (records == 0 && (options.sample_packing || options.train_on_inputs || !options.chat_template.empty()))
        throw UserError({.subject = options.files.front(),
                         .given = "is text; --sample-packing, --train-on-inputs and --chat-template are about records "
                                  "(*.jsonl)"});
}

}  // namespace slab::data
