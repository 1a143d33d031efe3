// Text and records to rows of tokens with their masks (layout: token_file.h).
//
// Text is one stream: each text is a document, its tokens and an end of text. Records are documents in rows of T
// tokens: one a row, or several with sample packing, a row's rest filled with end of text that is no target. A record
// longer than T is cut there, a `text` one goes on in a further row instead, as a document of its own. Trained on (with
// train_on_inputs all, else only the replies):
//
//     text         TEXT end                                    everything, as there is no input
//     completion   PROMPT | COMPLETION end                     behind the |
//     instruction  as chat where there is a template, user: INSTRUCTION, blank line, INPUT; assistant: OUTPUT; else
//                  "### Instruction:\nINSTRUCTION\n\n### Input:\nINPUT\n\n### Response:\n" | OUTPUT end
//     chat         by chat_template.h                          assistants' words and the token that ends their turns
//
// What stands before the | is tokenised apart from what stands behind it. So a prompt is the same tokens as when the
// model is asked to go on from it, and no token is half prompt, half reply; a blank belongs where it is written. bos
// comes first where the model expects it. A document's first token is never a target: nothing stands before it.
//
// Spellings of special tokens in the records' text, prompt and completion become those tokens, so that data rendered
// elsewhere keeps its meaning; in instructions and messages, which are rendered here, and in text files they stay text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat_template.h"
#include "data/records.h"
#include "data/token_file.h"
#include "data/tokenizer/tokenizer.h"

namespace slab::data {

struct PrepareSettings {
    size_t T = 2048;  // 2 or more
    bool sample_packing = false;
    bool train_on_inputs = false;
    std::string chat_template;  // "": by the tokenizer
};

// The token behind every document and in what fills a row up. Throws std::runtime_error when the tokenizer names none:
// what is trained without it would never end.
uint32_t end_of_text(const Tokenizer& tokenizer);

// Called now and then with the share done; may print.
using Progress = std::function<void(size_t done_bytes, size_t total_bytes)>;

// Adds a text as a document of a stream. ends_here: whether the text's end is the document's, so that the end of text
// is a target. Returns the number of targets. The text is encoded in pieces of about piece_bytes, which bounds the
// memory and changes no token.
size_t append_text(std::string_view text, const Tokenizer& tokenizer, bool ends_here, TokenSink& sink,
                   size_t threads = 1, const Progress& progress = {}, size_t piece_bytes = size_t{4} << 20);

// The records of one or more files as tokens, not yet in rows.
class PreparedRecords {
  public:
    PreparedRecords(const Tokenizer& tokenizer, PrepareSettings settings);

    // Adds a file's records in its order, whatever the number of threads (>= 1, the calling one included); returns the
    // file's size in bytes. Throws std::runtime_error naming file, line and remedy, for the first line that is wrong.
    size_t add_file(const std::filesystem::path& path, size_t threads = 1, const Progress& progress = {});
    void add(const Record& record, const std::string& where);

    size_t records() const { return record_begin_.size() - 1; }  // those that have something to train on
    // n of the records, evenly spread: held_out[i] for each record.
    std::vector<bool> spread(size_t n) const;

    struct RowCounts {
        size_t records = 0, rows = 0, tokens = 0, targets = 0;  // tokens: without filling
        // "950 records in 400 rows of 2,048 tokens (3% padding), 123,456 tokens trained on"
        std::string text(const PrepareSettings& settings) const;
    };
    // Writes the records with held_out[i] == held_out_rows (held_out empty: all) as rows and the closing token. Writes
    // nothing when there are none of them. The sink must have been made with row_tokens = T.
    RowCounts write(const std::vector<bool>& held_out, bool held_out_rows, TokenSink& sink) const;

    // "1,000 records (messages, ChatML); 12 cut to 2048 tokens; 3 left out: nothing to train on"
    std::string summary() const;
    // What is lost by cutting, with what helps; "" when nothing is.
    std::string cut_note() const;
    const PrepareSettings& settings() const { return settings_; }

  private:
    // A record's tokens, before it is cut.
    struct Encoded {
        std::vector<uint32_t> tokens;
        std::vector<uint8_t> is_target;  // as many
        void append(std::span<const uint32_t> more, bool target);
    };
    Encoded encode(const Record& record, const std::string& where) const;  // any thread may
    Encoded encode_chat(std::span<const ChatMessage> messages) const;
    void add(RecordKind kind, const Encoded& encoded);
    void cut_record(bool continues);
    std::vector<std::vector<uint32_t>> rows_of(const std::vector<bool>& held_out, bool held_out_rows) const;

    const Tokenizer& tokenizer_;
    uint32_t end_of_text_;
    PrepareSettings settings_;
    std::optional<ChatTemplate> chat_;
    std::vector<uint32_t> tokens_;         // of all pieces
    std::vector<uint8_t> is_target_;       // as many
    std::vector<size_t> piece_begin_{0};   // [pieces + 1], pieces of at most T tokens
    std::vector<size_t> record_begin_{0};  // [records + 1], indices of pieces
    size_t read_ = 0, cut_ = 0, continued_ = 0, empty_ = 0, too_long_ = 0, cut_tokens_ = 0;
    bool kinds_[4] = {};  // that were seen
};

}  // namespace slab::data
