// Training records from JSONL files: one JSON object a line, of one of four kinds that a file does not mix.
//
//     {"text": "..."}                                             RecordKind::text
//     {"prompt": "...", "completion": "..."}                      RecordKind::completion
//     {"instruction": "...", "input": "...", "output": "..."}     RecordKind::instruction; may lack "input"
//     {"messages": [{"role": "user", "content": "..."}, ...]}     RecordKind::chat; messages are as conversation.h says
//
// Chats and instructions may have "system", "tools", "documents" and "chat_template_kwargs", instructions "history"
// too. A record with "train", "training", "loss", "loss_mask" or "weight" of 0 or false is left out. Keys that would
// change what is trained on, and have no meaning here, are refused by name. All others are noted as unused. Blank
// lines, line ends of CR LF and a byte order mark at the file's beginning are accepted.
//
// Files are taken as hostile: lines have a largest size, json_file.h bounds their nesting, broken UTF-8 is refused.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/base/input_file.h"
#include "data/conversation.h"

namespace slab::data {

enum class RecordKind { text, completion, instruction, chat };
std::string_view name_of(RecordKind kind);  // "text", "prompt and completion", ... as users see it

struct Record {
    RecordKind kind = RecordKind::text;
    size_t line = 0;                  // 1-based
    std::string prompt, input;        // completion: prompt; instruction: both
    std::string text;                 // text, completion, output
    Conversation conversation;        // chat; and the instruction as one
    Train train = Train::unsaid;      // no: the record is left out
    std::string asks_for_template;    // a key that only a chat template can show; "" for none
    std::vector<std::string> unused;  // keys without a meaning
};

// Whether a file of this name holds records: *.jsonl, *.ndjson, *.json, in upper or lower case.
bool is_records_file(const std::filesystem::path& path);
// Throws UserError when the first line of the text `name` is a record: training on its braces and quotes would look
// well, and be wrong.
void refuse_records_as_text(std::string_view text, const std::string& name);

// A line of a file, not yet parsed.
struct RecordLine {
    std::string text;
    size_t line = 0;  // 1-based
};

// Reads a file line by line. Errors are UserError naming file and line.
class RecordReader {
  public:
    explicit RecordReader(const std::filesystem::path& path);

    // Step 1: the next lines that are not blank, at least one, up to about most_bytes and to most_lines (>= 1). None at
    // the file's end.
    std::vector<RecordLine> next_lines(size_t most_bytes, size_t most_lines);
    // Step 2, on any thread: a line's record.
    Record parse(const RecordLine& line) const;
    // Step 3, in the lines' order: throws unless the record's kind is the file's.
    void check_kind(const Record& record);

    std::string where(size_t line) const;  // "FILE, line 7"
    size_t done_bytes() const { return line_begin_; }
    size_t size_bytes() const { return file_.size_bytes(); }

  private:
    std::optional<std::string_view> next_line();
    void refuse_list(std::string_view line) const;

    InputFile file_;
    std::string buffer_;  // file bytes [buffer_begin_, buffer_begin_ + size)
    size_t buffer_begin_ = 0, line_begin_ = 0,
           line_end_ = 0;  // offsets in the file; line_end_ is after the line's '\n'
    size_t line_ = 0;
    bool begun_ = false;              // a line that is not blank was seen
    std::optional<RecordKind> kind_;  // of the file
    size_t kind_line_ = 0;            // its first line
};

}  // namespace slab::data
