// Text and records to token files, by any tokenizer. prepare.h decides tokens and targets. Each text's last part goes
// to validation, so that every kind of text given occurs in both files. Where a document goes on in validation, the
// separator after its training part is no target: the text does not end there.
//
// On an error no file of a run appears: all are on the disk before the first is renamed. A run killed between the
// renames leaves the new training pair beside the old validation pair. A pair has all of its tokens or none.
#include "data/tokenize.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "data/base/atomic_file.h"
#include "data/base/clock.h"
#include "data/base/display.h"
#include "data/base/error.h"
#include "data/base/output_directory.h"
#include "data/base/parallel.h"
#include "data/base/stop_signals.h"
#include "data/hub_cache.h"
#include "data/prepare.h"
#include "data/preview.h"
#include "data/read_text.h"
#include "data/token_file.h"
#include "data/token_writer.h"
#include "data/tokenize_options.h"
#include "data/tokenizer/tokenizer.h"

namespace slab::data {
namespace fs = std::filesystem;
namespace {

// Bytes of `text` that go to training; the rest is validation.
size_t training_bytes(std::string_view text, double val_fraction) {
    const auto val_bytes = static_cast<size_t>(std::floor(static_cast<double>(text.size()) * val_fraction));
    size_t cut = text.size() - std::min(val_bytes, text.size());
    const auto continues = [&](size_t i) { return (static_cast<unsigned char>(text[i]) & 0xc0) == 0x80; };
    // A UTF-8 character has at most three continuation bytes; a longer run of them is no UTF-8 and cut anywhere.
    for (int steps = 0; steps < 3 && cut < text.size() && continues(cut); ++steps) ++cut;
    return cut;
}

using Clock = std::chrono::steady_clock;

// One of the two outputs, with the counts that are reported at the end.
struct Split {
    const Tokenizer& tokenizer;
    fs::path path;
    TokenFileWriter writer;
    size_t documents = 0, text_bytes = 0, targets = 0;
    double seconds = 0;  // of encoding

    Split(const Tokenizer& tokenizer, const fs::path& path)
        : tokenizer(tokenizer),
          path(path),
          writer(path, static_cast<uint32_t>(tokenizer.vocabulary_size() - 1), true) {}

    void add_document(std::string_view text, bool ends_here, size_t threads, StopToken stop) {
        const auto began = Clock::now();
        targets += append_text(text, tokenizer, ends_here, writer, threads,
                               [&](size_t, size_t) { stop.throw_if_requested(); });
        seconds += seconds_since(began);
        ++documents;
        text_bytes += text.size();
    }
};

std::string format_of(const TokenFileWriter& writer, const fs::path& path) {
    return std::string(writer.token_bytes() == 2 ? "uint16" : "uint32") + ", mask in " +
           mask_path_for(path).filename().string() + "\n";
}

void report(const Split& split, std::ostream& out) {
    out << split.path.string() << ": " << counted(split.writer.size(), "token") << " ("
        << counted(split.targets, "target") << ") from " << counted(split.text_bytes, "byte") << " of text in "
        << counted(split.documents, "document") << ", " << format_of(split.writer, split.path);
}

void report_rate(size_t bytes, double seconds, size_t threads, std::ostream& out) {
    std::array<char, 100> line{};
    std::snprintf(line.data(), line.size(), "encoded %.1f MB in %.2f s: %.1f MB/s on %zu thread%s\n",
                  static_cast<double>(bytes) * 1e-6, seconds,
                  static_cast<double>(bytes) * 1e-6 / std::max(seconds, 1e-9), threads, threads == 1 ? "" : "s");
    out << line.data();
}

struct Outputs {
    fs::path train, val;
};

Outputs outputs_of(const TokenizeOptions& options) {
    const fs::path directory = options.output_dir;
    const std::string val_name = options.name == "train" ? "val" : options.name + "-val";
    return {directory / (options.name + ".bin"), directory / (val_name + ".bin")};
}

// A file of the user's own that has an output's name is not replaced, unless it is empty.
void check_outputs(const TokenizeOptions& options) {
    const Outputs outputs = outputs_of(options);
    std::error_code error;
    for (const std::string& file : options.files)
        for (const fs::path& output :
             {outputs.train, mask_path_for(outputs.train), outputs.val, mask_path_for(outputs.val)})
            if (file != "-" && fs::equivalent(file, output, error))
                throw UserError({.subject = file,
                                 .given = "would be replaced by the output of that name",
                                 .hint = "another --output-dir or --name"});
    const auto check = [&](const fs::path& path, bool (*is_own)(const fs::path&), const char* what) {
        if (!fs::is_regular_file(path, error) || fs::file_size(path, error) == 0 || is_own(path)) return;
        throw UserError({.subject = path.string(),
                         .given = std::string("exists and is no ") + what + ", and would be replaced by one",
                         .hint = "another --output-dir or --name"});
    };
    for (const fs::path& path : {outputs.train, outputs.val}) {
        if (path == outputs.val && options.val_fraction == 0) continue;
        check(path, begins_as_token_file, "token file");
        check(mask_path_for(path), begins_as_mask_file, "mask of a token file");
    }
}

// The tokenizer as its user knows it: the name of its directory or file.
std::string short_name(const std::string& tokenizer) {
    fs::path path = fs::absolute(tokenizer).lexically_normal();
    if (!path.has_filename() || path.filename() == "tokenizer.json") path = path.parent_path();
    return path.filename().string();
}

// Both pairs reach the disk before the first is renamed. After that nothing stops the run.
void commit(const TokenizeOptions& options, const Tokenizer& tokenizer, const Outputs& outputs, TokenFileWriter& train,
            TokenFileWriter* val, std::ostream& out, StopToken stop) {
    for (TokenFileWriter* writer : {&train, val}) {
        if (writer == nullptr) continue;
        writer->set_origin({.name = short_name(options.tokenizer),
                            .vocabulary_size = static_cast<uint32_t>(tokenizer.vocabulary_size()),
                            .fingerprint = tokenizer.fingerprint(writer->ids())});
        writer->prepare();
    }
    stop.throw_if_requested();
    std::string replaced;
    std::error_code error;
    for (const fs::path& path : {outputs.train, outputs.val})
        if ((path == outputs.train || val != nullptr) && fs::exists(path, error))
            replaced += (replaced.empty() ? "replaces " : " and ") + path.string();
    train.commit();
    if (val) val->commit();
    if (!replaced.empty()) out << replaced << " of an earlier run\n";
}

void say_no_validation(const TokenizeOptions& options, const Outputs& outputs, std::ostream& out, std::ostream& err) {
    if (options.val_fraction == 0)
        out << "no validation file, since --val-fraction is 0\n";
    else
        out << "no validation file: there is too little for --val-fraction's default of "
            << number_text(options.val_fraction) << "; give a larger one, or another file as --val-data of train_gpt\n";
    std::error_code error;
    if (fs::exists(outputs.val, error))
        err << "tokenize: warning: " << outputs.val.string() << " is of an earlier run and was left as it is\n";
}

void tokenize_text(const TokenizeOptions& options, const Tokenizer& tokenizer, int stdin_fd, std::ostream& out,
                   std::ostream& err, StopToken stop) {
    const size_t threads = usable_threads();
    const OutputDirectory directory("--output-dir", options.output_dir);
    remove_stale_temporaries(options.output_dir);
    const Outputs outputs = outputs_of(options);
    Split train(tokenizer, outputs.train);
    std::optional<Split> val;
    if (options.val_fraction > 0) val.emplace(tokenizer, outputs.val);
    for (const std::string& file : options.files) {
        const std::string name = file == "-" ? "standard input" : file;
        const std::string text = file == "-" ? read_text(stdin_fd, name, out, stop) : read_text(file, out, stop);
        if (text.empty()) {
            err << "tokenize: warning: " << name << " is empty, left out\n";
            continue;
        }
        const size_t cut = training_bytes(text, options.val_fraction);
        train.add_document(std::string_view(text).substr(0, cut), cut == text.size(), threads, stop);
        if (cut < text.size()) val->add_document(std::string_view(text).substr(cut), true, threads, stop);
    }
    if (train.documents == 0)
        throw UserError({.given = "every file given is empty, nothing was written", .wanted = "some text"});
    if (val && val->documents == 0) {
        if (options.val_fraction_given)
            throw UserError({.subject = "--val-fraction " + number_text(options.val_fraction),
                             .given = "every document is too short for a validation part, nothing was written",
                             .hint = "give longer files, a larger fraction, or --val-fraction 0 for none"});
        val.reset();
    }
    commit(options, tokenizer, outputs, train.writer, val ? &val->writer : nullptr, out, stop);
    report(train, out);
    if (val) {
        report(*val, out);
    } else {
        say_no_validation(options, outputs, out, err);
    }
    report_rate(train.text_bytes + (val ? val->text_bytes : 0), train.seconds + (val ? val->seconds : 0), threads, out);
}

// A short decimal, at least 1 / `records`: 0.34 for 3. records >= 2.
double fraction_of_one(size_t records) {
    double scale = 10;
    while (scale < 10 * static_cast<double>(records)) scale *= 10;
    return std::ceil(scale / static_cast<double>(records)) / scale;
}

void tokenize_records(const TokenizeOptions& options, const Tokenizer& tokenizer, std::ostream& out, std::ostream& err,
                      StopToken stop) {
    PreparedRecords prepared(tokenizer, {.T = options.sequence_len,
                                         .sample_packing = options.sample_packing,
                                         .train_on_inputs = options.train_on_inputs,
                                         .chat_template = options.chat_template,
                                         .now = {}});
    const size_t threads = usable_threads();
    const auto began = Clock::now();
    size_t bytes = 0;
    for (const std::string& file : options.files)
        bytes += prepared.add_file(file, threads, [&](size_t, size_t) { stop.throw_if_requested(); });
    const double seconds = seconds_since(began);
    if (prepared.records() == 0)
        throw UserError("nothing to train on: " + prepared.summary() + "; nothing was written");
    const auto held_out = static_cast<size_t>(static_cast<double>(prepared.records()) * options.val_fraction);
    if (options.val_fraction > 0 && held_out == 0 && options.val_fraction_given)
        throw UserError({.subject = "--val-fraction " + number_text(options.val_fraction),
                         .given = counted(prepared.records(), "record") + (prepared.records() == 1 ? " is" : " are") +
                                  " too few for a validation part, nothing was written",
                         .wanted = prepared.records() == 1
                                       ? "two records at least"
                                       : number_text(fraction_of_one(prepared.records())) + " or more",
                         .hint = "--val-fraction 0 holds out none"});
    const OutputDirectory directory("--output-dir", options.output_dir);
    remove_stale_temporaries(options.output_dir);
    const Outputs outputs = outputs_of(options);
    const std::vector<bool> split = prepared.spread(held_out);
    const auto largest = static_cast<uint32_t>(tokenizer.vocabulary_size() - 1);
    TokenFileWriter train(outputs.train, largest, true, options.sequence_len);
    const auto in_training = prepared.write(split, false, train);
    std::optional<TokenFileWriter> val;
    PreparedRecords::RowCounts in_validation;
    if (held_out > 0) {
        val.emplace(outputs.val, largest, true, options.sequence_len);
        in_validation = prepared.write(split, true, *val);
    }
    commit(options, tokenizer, outputs, train, val ? &*val : nullptr, out, stop);
    out << prepared.summary() << "\n";
    for (const std::string& note : prepared.notes()) out << "note: " << note << "\n";
    out << outputs.train.string() << ": " << in_training.text(prepared.settings()) << ", "
        << format_of(train, outputs.train);
    if (val) {
        out << outputs.val.string() << ": " << in_validation.text(prepared.settings()) << ", "
            << format_of(*val, outputs.val);
    } else {
        say_no_validation(options, outputs, out, err);
    }
    report_rate(bytes, seconds, threads, out);
}

void tokenize(const TokenizeOptions& options, int stdin_fd, std::ostream& out, std::ostream& err, StopToken stop) {
    check_options(options);
    check_outputs(options);
    fs::path from = options.tokenizer;
    if (from != "bytes") from = find_model("--tokenizer", options.tokenizer);
    const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(from);
    for (const std::string& note : tokenizer->notes()) out << "note: " << note << "\n";
    end_of_text(*tokenizer);  // before anything is read
    if (is_records_file(options.files.front())) {
        tokenize_records(options, *tokenizer, out, err, stop);
    } else {
        tokenize_text(options, *tokenizer, stdin_fd, out, err, stop);
    }
    out << "vocabulary " << tokenizer->vocabulary_size() << ": " << tokenizer->description() << "\n";
    if (options.preview == 0) return;
    const bool colour = &out == &std::cout && isatty(STDOUT_FILENO);
    out << preview(TokenFile(fs::path(options.output_dir) / (options.name + ".bin")), options.preview,
                   options.sequence_len, *tokenizer, {.colour = colour, .ids = options.preview_ids});
}

}  // namespace

int run_tokenize(int argc, const char* const* argv, int stdin_fd, std::ostream& out, std::ostream& err,
                 StopToken stop) {
    TokenizeOptions options;
    if (const auto exit_code = parse_tokenize_options(argc, argv, options, out, err)) return *exit_code;
    try {
        tokenize(options, stdin_fd, out, err, stop);
        if (!out.flush())
            throw IoError("the files are written, but this report could not be printed (is the disk full?)");
    } catch (const Interrupted&) {
        err << "tokenize: interrupted; nothing was written\n";
        return kExitInterrupted;
    } catch (const std::exception& error) {
        err << "tokenize: " << error.what() << "\n";
        return 1;
    }
    return 0;
}

}  // namespace slab::data
