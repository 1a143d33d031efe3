// Text to token files, by any tokenizer. Each file is a document. Its last part goes to validation, so that every kind
// of text given occurs in both files. A document's first token is no target, since nothing of the document stands
// before it; nor is the separator after a training part whose document goes on in validation, since the text does not
// end there.
//
// Either all files of a run appear or, on an error, none: both pairs are on the disk before the first is renamed.
#include "data/tokenize.h"

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <ostream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "data/atomic_file.h"
#include "data/command_line.h"
#include "data/token_file.h"
#include "data/tokenizer.h"

namespace slab::data {
namespace fs = std::filesystem;
namespace {

constexpr const char* about =
    "Makes token files for train_gpt from text files.\n"
    "\n"
    "Every FILE is one document. --tokenizer is the model's: its Hugging Face directory or tokenizer.json. Without "
    "it,\n"
    "ids 0 to 255 are the bytes, 256 stands after each document, and the vocabulary is 260. With it, the model's\n"
    "end-of-text token stands there, and the token that the model wants first, if it wants one, before each document.\n"
    "Special tokens spelled out in a text stay text. Written are, whole or not at all,\n"
    "  D/NAME.bin   tokens in llm.c's format\n"
    "  D/NAME.mask  one byte a token: bit 0 = is a target, bit 1 = a document starts here\n"
    "  D/val.bin, D/val.mask   the same for validation (D/NAME-val.* when NAME is not 'train')\n"
    "\n"
    "The split: the last --val-fraction of each document, by bytes, goes to validation, as a document of its own;\n"
    "the cut never lies within a UTF-8 character. So validation has some of every text given, none of it seen in\n"
    "training. A document too short for a validation byte goes to training whole. The first token of a document\n"
    "is no target, nor is the 256 after a training part whose document goes on in validation.\n"
    "\n"
    "In the names of flags '_' is taken for '-'.\n";

struct Options {
    std::string output_dir, name = "train", tokenizer = "bytes";
    double val_fraction = 0.1;
    std::vector<std::string> files;
};

[[noreturn]] void refuse(const std::string& message) {
    throw std::runtime_error(message);
}

std::string read_document(const std::string& name, int stdin_fd) {
    const bool standard_input = name == "-";
    const auto refuse_reading = [&](int error) {
        refuse((standard_input ? "standard input" : name) + ": cannot be read: " +
               std::generic_category().message(error) + ". Hint: give text files, or - for standard input.");
    };
    const int fd = standard_input ? stdin_fd : open(name.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) refuse_reading(errno);
    std::string text;
    std::vector<char> buffer(size_t{1} << 20);
    int error = 0;
    for (;;) {
        const ssize_t got = read(fd, buffer.data(), buffer.size());
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) error = errno;
        if (got <= 0) break;
        text.append(buffer.data(), static_cast<size_t>(got));
        if (text.size() > max_tokens_per_file) break;  // the writer refuses it; no need to read on
    }
    if (!standard_input) close(fd);
    if (error != 0) refuse_reading(error);
    return text;
}

// Bytes of `text` that go to training; the rest is validation.
size_t training_bytes(std::string_view text, double val_fraction) {
    const auto val_bytes = static_cast<size_t>(std::floor(static_cast<double>(text.size()) * val_fraction));
    size_t cut = text.size() - std::min(val_bytes, text.size());
    const auto continues = [&](size_t i) { return (static_cast<unsigned char>(text[i]) & 0xc0) == 0x80; };
    // A UTF-8 character has at most three continuation bytes; a longer run of them is no UTF-8 and cut anywhere.
    for (int steps = 0; steps < 3 && cut < text.size() && continues(cut); ++steps) ++cut;
    return cut;
}

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

    void append(uint32_t token, bool target, bool start) {
        writer.append(token, static_cast<uint8_t>((target ? mask_target : 0) | (start ? mask_document_start : 0)));
        targets += target;
    }
    void add_document(std::string_view text, bool ends_here, size_t threads) {
        bool first = true;
        const auto add = [&](uint32_t token) {
            append(token, !first, first);
            first = false;
        };
        if (tokenizer.adds_bos()) add(*tokenizer.bos());
        const auto began = std::chrono::steady_clock::now();
        const std::vector<uint32_t> tokens = tokenizer.encode_parallel(text, SpecialTokens::as_text, threads);
        seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
        for (const uint32_t token : tokens) add(token);
        append(*tokenizer.eos(), ends_here && !first, first);
        ++documents;
        text_bytes += text.size();
    }
};

std::string with_commas(size_t number) {
    std::string digits = std::to_string(number);
    for (size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, ",");
    return digits;
}

void report(const Split& split, std::ostream& out) {
    const auto counted = [](size_t n, const char* what) { return with_commas(n) + " " + what + (n == 1 ? "" : "s"); };
    out << split.path.string() << ": " << counted(split.writer.size(), "token") << " ("
        << counted(split.targets, "target") << ") from " << counted(split.text_bytes, "byte") << " of text in "
        << counted(split.documents, "document") << ", " << (split.writer.token_bytes() == 2 ? "uint16" : "uint32")
        << ", mask in " << mask_path_for(split.path).filename().string() << "\n";
}

void report_rate(const Split& train, const Split* val, size_t threads, std::ostream& out) {
    const size_t bytes = train.text_bytes + (val ? val->text_bytes : 0);
    const double seconds = train.seconds + (val ? val->seconds : 0);
    std::array<char, 100> line{};
    std::snprintf(line.data(), line.size(), "encoded %.1f MB in %.2f s: %.1f MB/s on %zu thread%s\n",
                  static_cast<double>(bytes) * 1e-6, seconds,
                  static_cast<double>(bytes) * 1e-6 / std::max(seconds, 1e-9), threads, threads == 1 ? "" : "s");
    out << line.data();
}

void check(const Options& options) {
    if (!(options.val_fraction >= 0 && options.val_fraction < 1))
        refuse("--val-fraction " + std::to_string(options.val_fraction) +
               " given, wanted a number from 0 to below 1. Hint: 0.1 keeps a tenth for validation, 0 nothing.");
    if (options.name.empty() || options.name[0] == '.' || options.name.find('/') != std::string::npos)
        refuse("--name '" + options.name + "' given, wanted a plain file name without directory. " +
               "Hint: the directory goes into --output-dir.");
    if (std::count(options.files.begin(), options.files.end(), "-") > 1)
        refuse("- (standard input) given twice, wanted once. Hint: it can be read only once.");
}

void tokenize(const Options& options, int stdin_fd, std::ostream& out, std::ostream& err) {
    check(options);
    const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(options.tokenizer);
    if (!tokenizer->eos())
        refuse(options.tokenizer + ": names no end-of-text token, wanted one to stand after each document. Hint: " +
               "\"eos_token\" in tokenizer_config.json, beside tokenizer.json.");
    const size_t threads = std::max(1u, std::thread::hardware_concurrency());
    const fs::path directory = options.output_dir;
    std::error_code error;
    fs::create_directories(directory, error);
    if (error)
        refuse("--output-dir " + directory.string() + ": cannot be made: " + error.message() +
               ". Hint: choose a directory that you may write to.");
    remove_stale_temporaries(directory);

    const std::string val_name = options.name == "train" ? "val" : options.name + "-val";
    Split train(*tokenizer, directory / (options.name + ".bin"));
    std::optional<Split> val;
    if (options.val_fraction > 0) val.emplace(*tokenizer, directory / (val_name + ".bin"));
    for (const std::string& file : options.files) {
        const std::string text = read_document(file, stdin_fd);
        if (text.empty()) {
            err << "tokenize: warning: " << (file == "-" ? "standard input" : file) << " is empty, left out\n";
            continue;
        }
        const size_t cut = training_bytes(text, options.val_fraction);
        train.add_document(std::string_view(text).substr(0, cut), cut == text.size(), threads);
        if (cut < text.size()) val->add_document(std::string_view(text).substr(cut), true, threads);
    }
    if (train.documents == 0) refuse("every file given is empty, wanted some text. Nothing was written.");
    if (val && val->documents == 0)
        refuse("every document is too short for a validation part of --val-fraction " +
               std::to_string(options.val_fraction) + ". Nothing was written. Hint: give longer files, a larger " +
               "fraction, or --val-fraction 0 for none.");

    train.writer.prepare();
    if (val) val->writer.prepare();
    train.writer.commit();
    if (val) val->writer.commit();
    report(train, out);
    if (val) {
        report(*val, out);
    } else {
        out << "no validation file, since --val-fraction is 0\n";
        const fs::path stale = directory / (val_name + ".bin");
        if (fs::exists(stale, error))
            err << "tokenize: warning: " << stale.string() << " is of an earlier run and was left as it is\n";
    }
    report_rate(train, val ? &*val : nullptr, threads, out);
    out << "vocabulary " << tokenizer->vocabulary_size() << ": " << tokenizer->description() << "\n";
}

}  // namespace

int run_tokenize(int argc, const char* const* argv, int stdin_fd, std::ostream& out, std::ostream& err) {
    Options options;
    CLI::App app(about, "tokenize");
    app.add_option("--output-dir", options.output_dir, "Directory D to write into; made if it is missing")
        ->required()
        ->type_name("D");
    app.add_option("--tokenizer", options.tokenizer,
                   "The model's tokenizer: a Hugging Face directory, a tokenizer.json, a .gguf, or the word bytes")
        ->capture_default_str()
        ->type_name("X");
    app.add_option("--val-fraction", options.val_fraction,
                   "Share of each document kept for validation, from 0 (none) to below 1")
        ->capture_default_str()
        ->type_name("X");
    app.add_option("--name", options.name, "Name of the training file")->capture_default_str()->type_name("NAME");
    app.add_option("FILES", options.files, "Text files, one document each; - is standard input")->required();
    if (const auto exit_code = parse_command_line(app, argc, argv, out, err)) return *exit_code;
    try {
        tokenize(options, stdin_fd, out, err);
        if (!out.flush()) refuse("the files are written, but this report could not be printed (is the disk full?)");
    } catch (const std::exception& error) {
        err << "tokenize: " << error.what() << "\n";
        return 1;
    }
    return 0;
}

}  // namespace slab::data
