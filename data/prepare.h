// Text and records to rows of tokens with their masks (layout: token_format.h).
//
// Text is one stream: each text is a document, its tokens and an end of text. Records are documents in rows of T
// tokens: one a row, or several with sample packing. A row is padded with end of text that is no target. A record
// longer than T is cut there; a `text` one goes on in the next row instead, as a document of its own. What is trained
// on, unless train_on_inputs says everything:
//
//     text         TEXT end                                    everything, as there is no input
//     completion   PROMPT | COMPLETION end                     after the |
//     instruction  as chat where there is a template, user: INSTRUCTION, blank line, INPUT; assistant: OUTPUT; else
//                  "### Instruction:\nINSTRUCTION\n\n### Input:\nINPUT\n\n### Response:\n" | OUTPUT end
//     chat         by chat_template.h                          assistants' turns, as chat_turns.h has them
//
// The two sides of the | are tokenised apart. So a prompt has the same tokens as when the model is asked to continue
// it, and no token is half prompt, half reply. A blank belongs to the side that it is written on. bos comes first where
// the model expects it. A document's first token is never a target: nothing precedes it.
//
// Spellings of special tokens in a record's text, prompt and completion become those tokens, so that data rendered
// elsewhere keeps its meaning. In instructions and messages, which are rendered here, and in text files they stay text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat_template.h"
#include "data/records.h"
#include "data/token_writer.h"
#include "data/tokenizer/tokenizer.h"

namespace slab::data {

struct PrepareSettings {
    size_t T = 2048;  // 2 or more
    bool sample_packing = false;
    bool train_on_inputs = false;
    std::string chat_template;  // as of ChatSettings::given
    std::tm now = {};           // what templates show as the date; a tm_mday of 0 stands for now
};

// The token after every document and in a row's padding. Throws UserError when the tokenizer names none: a model
// trained without it would never end its texts.
uint32_t end_of_text(const Tokenizer& tokenizer);

// Called from time to time with the bytes done so far. It may print, and may throw to end the work.
using Progress = std::function<void(size_t done_bytes, size_t total_bytes)>;

// Adds a text as a document of a stream and returns the number of targets. ends_here: the text's end is the document's,
// which makes the end of text a target. The text is encoded in pieces of about piece_bytes. That bounds the memory and
// changes no token.
size_t append_text(std::string_view text, const Tokenizer& tokenizer, bool ends_here, TokenSink& sink,
                   size_t threads = 1, const Progress& progress = {}, size_t piece_bytes = size_t{4} << 20);

// The records of one or more files as tokens, not yet in rows.
class PreparedRecords {
  public:
    PreparedRecords(const Tokenizer& tokenizer, PrepareSettings settings);

    // Adds a file's records in the file's order and returns its size in bytes. threads >= 1, the calling one included.
    // Throws UserError naming file, line and remedy for the first line that is wrong.
    size_t add_file(const std::filesystem::path& path, size_t threads = 1, const Progress& progress = {});
    void add(const Record& record, const std::string& where);

    size_t records() const { return record_begin_.size() - 1; }  // with at least one target
    // A choice of n records, evenly spread: true for record i if it is held out.
    std::vector<bool> spread(size_t n) const;

    struct RowCounts {
        size_t records = 0, rows = 0, tokens = 0, targets = 0;  // tokens: without padding
        // "950 records in 400 rows of 2,048 tokens (3% padding), 123,456 tokens trained on"
        std::string text(const PrepareSettings& settings) const;
    };
    // Writes the records with held_out[i] == held_out_rows as rows, and the closing token; nothing when there are none.
    // An empty held_out means all records. The sink must have been made with row_tokens = T.
    RowCounts write(const std::vector<bool>& held_out, bool held_out_rows, TokenSink& sink) const;

    // "1,000 records (messages, ChatML); 12 cut to 2048 tokens; 3 left out: nothing to train on"
    std::string summary() const;
    // What a user may not expect, each a sentence or two: tokens that cutting loses, keys that are not used, replies
    // that are context only.
    std::vector<std::string> notes() const;
    const PrepareSettings& settings() const { return settings_; }

  private:
    // A record's tokens, before it is cut.
    struct Encoded {
        std::vector<uint32_t> tokens;
        std::vector<uint8_t> is_target;  // as many
        ChatCounts counts = {};
        bool left_out = false;  // the record says so
        void append(std::span<const uint32_t> more, bool target);
    };
    Encoded encode(const Record& record, const std::string& where) const;  // any thread may
    Encoded encode_chat(const Record& record, const std::string& where) const;
    void add(const Record& record, const Encoded& encoded);
    void note_unused(const std::string& key);
    void cut_record(bool continues);
    std::vector<std::vector<uint32_t>> rows_of(const std::vector<bool>& held_out, bool held_out_rows) const;

    const Tokenizer& tokenizer_;
    uint32_t end_of_text_;
    PrepareSettings settings_;
    std::optional<ChatTemplate> chat_;
    std::string chat_error_;               // why there is no template, where one was found that cannot be used
    std::vector<uint32_t> tokens_;         // of all pieces
    std::vector<uint8_t> is_target_;       // as many
    std::vector<size_t> piece_begin_{0};   // [pieces + 1], pieces of at most T tokens
    std::vector<size_t> record_begin_{0};  // [records + 1], indices of pieces
    size_t read_ = 0, cut_ = 0, continued_ = 0, empty_ = 0, too_long_ = 0, cut_tokens_ = 0;
    size_t left_out_ = 0;  // records that say so
    bool kinds_[4] = {};   // kinds of records seen, by RecordKind
    std::string file_;     // being added
    // Keys without a use, with their file, and how many records or messages had them.
    std::map<std::pair<std::string, std::string>, size_t> unused_;
    size_t more_unused_ = 0;  // of further keys
    ChatCounts counts_;
};

}  // namespace slab::data
