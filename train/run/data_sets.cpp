// From --train-data, --val-data and --val-set-size to loaders.
#include "train/run/data_sets.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>

#include "data/base/error.h"
#include "data/base/foreign_file.h"
#include "data/base/input_file.h"
#include "data/base/parallel.h"
#include "data/preview.h"
#include "data/read_text.h"
#include "data/token_file.h"
#include "kernels/runtime/host_memory.h"
#include "train/files/base_tokenizer.h"
#include "train/spec/text.h"

namespace slab::train {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

namespace {

// Progress of tokenising: a line every two seconds while a large file is read. A stop throws Interrupted.
class ProgressLines {
  public:
    ProgressLines(std::string name, std::ostream& out, data::StopToken stop)
        : name_(std::move(name)), out_(out), stop_(stop) {}
    void operator()(size_t done_bytes, size_t total_bytes) {
        stop_.throw_if_requested();
        const Clock::time_point now = Clock::now();
        if (now - last_line_ < std::chrono::seconds(2) || total_bytes == 0) return;
        last_line_ = now;
        out_ << "tokenizing " << name_ << ": " << 100 * done_bytes / total_bytes << "% of " << memory_text(total_bytes)
             << "\n"
             << std::flush;
    }

  private:
    std::string name_;
    std::ostream& out_;
    data::StopToken stop_;
    Clock::time_point last_line_ = Clock::now();
};

// The system promises memory that it does not have, and then kills the run without a message.
void check_fits_memory(const fs::path& path) {
    const size_t text_bytes = data::InputFile(path).size_bytes(), available_bytes = available_host_bytes();
    if (text_bytes > available_bytes)
        throw data::UserError({.subject = path.string(),
                               .given = "has " + memory_text(text_bytes) + " of text, which is read whole, and " +
                                        memory_text(available_bytes) + " of host memory are available",
                               .hint = "cut it, and make a token file of the parts with build/tokenize"});
}

// Makes loaders for one run's flags.
class Opener {
  public:
    Opener(const TrainOptions& options, const fs::path& base, const ModelConfig& config, const std::tm& now,
           std::ostream& out, data::StopToken stop)
        : o_(options), base_(base), config_(config), now_(now), out_(out), stop_(stop) {}

    DataSets open();
    void preview(const data::TokenFile& file);

  private:
    const data::Tokenizer& tokenizer() {
        if (!tokenizer_) tokenizer_ = open_base_tokenizer(base_.string(), config_);
        return *tokenizer_;
    }
    // As tokenizer(), and prints once which it is: for text that becomes tokens or the other way round.
    const data::Tokenizer& named_tokenizer() {
        const std::string description = tokenizer().description();  // an error stands on a line of its own
        if (!named_) {
            out_ << "tokenizer: " << description << "\n";
            for (const std::string& note : tokenizer().notes()) out_ << "note: " << note << "\n";
        }
        named_ = true;
        return tokenizer();
    }
    uint32_t largest_token() {
        return static_cast<uint32_t>(std::max<size_t>(named_tokenizer().vocabulary_size(), 1) - 1);
    }
    std::unique_ptr<DataLoader> loader(data::TokenFile file, bool shuffle, uint64_t first_row = 0,
                                       uint64_t end_row = UINT64_MAX) const {
        return std::make_unique<DataLoader>(std::move(file), o_.sequence_len, config_.V, o_.seed, shuffle, first_row,
                                            end_row);
    }
    size_t threads() const { return o_.threads > 0 ? static_cast<size_t>(o_.threads) : data::usable_threads(); }
    void check_flags() const;
    uint64_t held_out_of(uint64_t there, const char* what) const;
    data::TokenFile checked(const std::string& path, data::TokenMemory memory);
    data::TokenFile text(const std::string& path);
    data::PreparedRecords records(const std::string& path);
    data::TokenFile rows(const std::string& path, const data::PreparedRecords& records, const char* purpose,
                         const std::vector<bool>& held_out = {}, bool held_out_rows = false);
    data::TokenFile tokens_or_text(const std::string& path) {
        return kind_of_data(path) == DataKind::text ? text(path) : tokens(path);
    }
    data::TokenFile tokens(const std::string& path);

    const TrainOptions& o_;
    const fs::path& base_;
    const ModelConfig& config_;
    const std::tm& now_;
    std::ostream& out_;
    data::StopToken stop_;
    std::unique_ptr<data::Tokenizer> tokenizer_;
    bool named_ = false;
};

// Refuses flags about records if there are none: the file was made without them.
void Opener::check_flags() const {
    if (o_.preview_ids && o_.preview == 0)
        throw data::UserError({.subject = "--preview-ids",
                               .given = "has nothing to show without --preview",
                               .wanted = "--preview N beside it"});
    const bool for_records = !o_.chat_template.empty() && !o_.sample_chat;  // a sample may be what it is for
    const bool given = o_.sample_packing || o_.train_on_inputs || for_records;
    const auto is_records = [](const std::string& path) {
        return !path.empty() && kind_of_data(path) == DataKind::records;
    };
    if (given && !is_records(o_.train_data) && !is_records(o_.val_data))
        throw data::UserError(
            "--sample-packing, --train-on-inputs and --chat-template are about records (*.jsonl), and " +
            o_.train_data +
            (kind_of_data(o_.train_data) == DataKind::tokens
                 ? " holds tokens. Hint: give build/tokenize the flag, or the records here"
                 : " is a text. Hint: leave the flag out, or give records"));
}

uint64_t Opener::held_out_of(uint64_t there, const char* what) const {
    if (o_.val_set_size == 0) return 0;
    const uint64_t held_out = o_.val_set_size < 1
                                  ? static_cast<uint64_t>(std::ceil(o_.val_set_size * static_cast<double>(there)))
                                  : static_cast<uint64_t>(o_.val_set_size);
    if (held_out >= there)
        throw data::UserError("--val-set-size holds out " + count_text(held_out) + " " + what + " and " +
                              o_.train_data + " has " + count_text(there) + "; nothing would be left to train on");
    return held_out;
}

data::TokenFile Opener::checked(const std::string& path, data::TokenMemory memory) {
    data::TokenFile file(path, std::move(memory));
    if (file.max_token() >= static_cast<uint32_t>(config_.V))
        throw data::UserError(
            {.subject = path,
             .given = "needs token " + std::to_string(file.max_token()) + " (" +
                      data::quote(printable_text(named_tokenizer().decode({{file.max_token()}}, true))) +
                      ") of the tokenizer, and the model's vocabulary ends at " + std::to_string(config_.V - 1),
             .wanted = "the tokenizer of this model"});
    return file;
}

// A token file, refused if it names another tokenizer than the base's: its ids would train, and mean other text.
data::TokenFile Opener::tokens(const std::string& path) {
    data::TokenFile file{fs::path(path)};
    const auto& origin = file.origin();
    if (!origin) return file;
    const std::string made_with = path + ": was made with the tokenizer " + data::quote(origin->name) + " (" +
                                  std::to_string(origin->vocabulary_size) + " tokens)";
    try {
        tokenizer();
    } catch (const std::runtime_error& error) {
        out_ << "note: " << made_with << ", which cannot be compared with the base's: " << error.what() << "\n";
        return file;
    }
    if (tokenizer().fingerprint(file.ids()) == origin->fingerprint) return file;
    // The tokenizer of bytes is always the same.
    if (origin->name == "bytes" && base_tokenizer_path(base_.string(), config_) == "bytes")
        throw data::UserError(made_with + ", as " + data::mask_path_for(path).string() +
                              " says, but holds ids that were not there then: one of the two files was changed or is "
                              "another's. Hint: make both again with build/tokenize");
    throw data::UserError(made_with + ", and the base's is another: " + tokenizer().description() +
                          ". Its ids mean other text. Hint: build/tokenize --tokenizer " +
                          base_tokenizer_path(base_.string(), config_).string() + " makes the file for this base");
}

data::TokenFile Opener::text(const std::string& path) {
    check_fits_memory(path);
    const std::string all = data::read_text(path, out_, stop_);
    if (all.empty()) throw data::UserError({.subject = path, .given = "is empty", .wanted = "text"});
    data::TokenMemory memory(largest_token());
    data::append_text(all, named_tokenizer(), true, memory, threads(), ProgressLines(path, out_, stop_));
    out_ << path << ": " << memory_text(all.size()) << " of text, " << data::counted(memory.size(), "token") << "\n";
    return checked(path, std::move(memory));
}

data::PreparedRecords Opener::records(const std::string& path) {
    if (o_.sequence_len < 2)
        throw data::UserError({.subject = "--sequence-len " + std::to_string(o_.sequence_len),
                               .given = path + " holds records, whose rows have a token to read and one to learn",
                               .wanted = "2 or more"});
    data::PreparedRecords records(named_tokenizer(), {.T = static_cast<size_t>(o_.sequence_len),
                                                      .sample_packing = o_.sample_packing,
                                                      .train_on_inputs = o_.train_on_inputs,
                                                      .chat_template = o_.chat_template,
                                                      .now = now_});
    records.add_file(path, threads(), ProgressLines(path, out_, stop_));
    out_ << path << ": " << records.summary() << "\n";
    for (const std::string& note : records.notes()) out_ << "note: " << note << "\n";
    if (records.records() == 0)
        throw data::UserError({.subject = path,
                               .given = "holds nothing to train on: " + records.summary(),
                               .hint = "--preview shows rows, a larger --sequence-len holds longer records"});
    return records;
}

data::TokenFile Opener::rows(const std::string& path, const data::PreparedRecords& records, const char* purpose,
                             const std::vector<bool>& held_out, bool held_out_rows) {
    data::TokenMemory memory(largest_token(), records.settings().T);
    const auto counts = records.write(held_out, held_out_rows, memory);
    out_ << "  " << purpose << ": " << counts.text(records.settings()) << "\n";
    return checked(path, std::move(memory));
}

DataSets Opener::open() {
    check_flags();
    DataSets sets;
    if (kind_of_data(o_.train_data) == DataKind::records) {
        const data::PreparedRecords prepared = records(o_.train_data);
        if (const uint64_t n = held_out_of(prepared.records(), "records")) {
            const std::vector<bool> held_out = prepared.spread(n);
            sets.train = loader(rows(o_.train_data, prepared, "training", held_out, false), true);
            sets.val = loader(rows(o_.train_data, prepared, "validation", held_out, true), false);
        } else {
            sets.train = loader(rows(o_.train_data, prepared, "training"), true);
        }
    } else {
        const data::TokenFile file = tokens_or_text(o_.train_data);
        if (o_.val_set_size > 0) {
            const uint64_t all = loader(file, false)->rows(), n = held_out_of(all, "rows");
            sets.val = loader(file, false, all - n, all);
            sets.train = loader(file, true, 0, all - n);
        } else {
            sets.train = loader(file, true);
        }
    }
    if (o_.val_data.empty()) return sets;
    sets.val =
        loader(kind_of_data(o_.val_data) == DataKind::records ? rows(o_.val_data, records(o_.val_data), "validation")
                                                              : tokens_or_text(o_.val_data),
               false);
    return sets;
}

// Validation rows without a target have no loss.
void check_has_targets(DataLoader& validation) {
    for (uint64_t row = 0; row < validation.rows(); ++row)
        if (validation.target_count(row, 1) != 0) return;
    throw data::UserError({.subject = validation.file().path().string(),
                           .given = "none of the " + count_text(validation.rows()) +
                                    " rows to evaluate on has a target, a token that counts for the loss",
                           .hint = "look at its mask file, or leave out --val-data or --val-set-size"});
}

void Opener::preview(const data::TokenFile& file) {
    if (o_.preview == 0) return;
    const bool colour = &out_ == &std::cout && isatty(STDOUT_FILENO);
    out_ << data::preview(file, static_cast<size_t>(o_.preview), static_cast<size_t>(o_.sequence_len),
                          named_tokenizer(), {.colour = colour, .ids = o_.preview_ids})
         << std::flush;
}

}  // namespace

DataKind kind_of_data(const fs::path& path) {
    if (data::is_records_file(path)) return DataKind::records;
    std::error_code error;
    if (data::kind_of_name(path) || fs::is_directory(path, error)) return DataKind::text;  // refused by name there
    if (path.extension() == ".bin" || !fs::is_regular_file(path, error)) return DataKind::tokens;
    const data::InputFile file(path);
    uint32_t word = 0;
    if (file.size_bytes() < sizeof word) return DataKind::text;
    file.read(0, &word, sizeof word, "first bytes");
    for (const int32_t magic : {data::kTokenMagicUint16, data::kTokenMagicUint32, data::kMaskMagic})
        for (const uint32_t known : {static_cast<uint32_t>(magic), __builtin_bswap32(static_cast<uint32_t>(magic))})
            if (word == known) return DataKind::tokens;
    return DataKind::text;
}

DataSets open_data(const TrainOptions& options, const fs::path& base, const ModelConfig& config, const std::tm& now,
                   std::ostream& out, data::StopToken stop) {
    Opener opener(options, base, config, now, out, stop);
    DataSets sets = opener.open();
    opener.preview(sets.train->file());
    if (sets.val) check_has_targets(*sets.val);
    return sets;
}

}  // namespace slab::train
