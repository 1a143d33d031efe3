// Records become documents on several threads; the order of lines decides the order of documents and of errors.
#include "data/prepare.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <exception>
#include <stdexcept>

#include "data/base/display.h"
#include "data/base/error.h"
#include "data/base/local_time.h"
#include "data/base/parallel.h"
#include "data/tokenizer/pre_tokenizer.h"

namespace slab::data {

namespace fs = std::filesystem;

namespace {

// Limits of a batch of lines that are parsed and encoded together. Even a short line costs memory, so there are two.
constexpr size_t kBatchBytes = size_t{4} << 20, kBatchLines = size_t{1} << 14;

uint8_t bits(bool target, bool start) {
    return static_cast<uint8_t>((target ? kMaskTarget : 0) | (start ? kMaskDocumentStart : 0));
}

// A place after piece_bytes where a cut changes no token: after a lone line feed. A cut after one of several would:
// white space before a word ends before its last character, but at a text's end it is one word. If the next piece_bytes
// have no lone line feed (one long line, or line ends of CR LF), any of PreTokenizer's places will do. Without those
// the text is not cut. No place divides characters that Unicode's normal form would join.
size_t piece_end(std::string_view text, size_t begin, size_t piece_bytes) {
    if (text.size() - begin <= piece_bytes) return text.size();
    const size_t from = begin + std::max<size_t>(piece_bytes, 1);
    const std::string_view searched = text.substr(0, from + std::min(piece_bytes, text.size() - from));
    for (size_t at = searched.find('\n', from - 1); at < searched.size() - 1; at = searched.find('\n', at + 1))
        if (PreTokenizer::follows_lone_line_feed(text, at + 1)) return at + 1;
    return PreTokenizer::safe_cut(text, from);
}

// Finds the first of many bins with room, in a tree of maxima: packing a million records takes seconds, not hours.
class Bins {
  public:
    Bins(size_t most, size_t capacity) {
        while (leaves_ < most) leaves_ *= 2;
        room_.assign(2 * leaves_, capacity);
    }
    size_t put(size_t size) {
        size_t node = 1;
        while (node < leaves_) node = 2 * node + (room_[2 * node] < size ? 1 : 0);
        const size_t bin = node - leaves_;
        room_[node] -= size;
        while (node /= 2) room_[node] = std::max(room_[2 * node], room_[2 * node + 1]);
        return bin;
    }

  private:
    size_t leaves_ = 1;
    std::vector<size_t> room_;  // [2 * leaves_]: [1] is the root, [leaves_ + i] bin i
};

}  // namespace

uint32_t end_of_text(const Tokenizer& tokenizer) {
    if (const auto id = tokenizer.eos()) return *id;
    throw UserError({.given = "the tokenizer names no end-of-text token (" + tokenizer.description() + ")",
                     .wanted = "one to put after each document",
                     .hint = R"("eos_token" in tokenizer_config.json, or "eos_token_id" in config.json, beside )"
                             "tokenizer.json"});
}

size_t append_text(std::string_view text, const Tokenizer& tokenizer, bool ends_here, TokenSink& sink, size_t threads,
                   const Progress& progress, size_t piece_bytes) {
    const uint32_t end = end_of_text(tokenizer);
    size_t targets = 0;
    bool first = true;
    const auto append = [&](uint32_t token, bool target) {
        sink.append(token, bits(target && !first, first));
        targets += target && !first;
        first = false;
    };
    if (tokenizer.adds_bos() && tokenizer.bos()) append(*tokenizer.bos(), true);
    for (size_t at = 0; at < text.size();) {
        const size_t cut = piece_end(text, at, piece_bytes);
        for (const uint32_t token :
             tokenizer.encode_parallel(text.substr(at, cut - at), SpecialTokens::as_text, threads))
            append(token, true);
        at = cut;
        if (progress) progress(at, text.size());
    }
    append(end, ends_here);
    return targets;
}

PreparedRecords::PreparedRecords(const Tokenizer& tokenizer, PrepareSettings settings)
    : tokenizer_(tokenizer), end_of_text_(end_of_text(tokenizer)), settings_(std::move(settings)) {
    if (settings_.T < 2) throw std::logic_error("a row has an input and a target at least");
    if (settings_.now.tm_mday == 0) settings_.now = local_time_now();
    try {
        chat_ = ChatTemplate::find(tokenizer, {.given = settings_.chat_template, .now = settings_.now});
    } catch (const UserError& error) {
        if (!settings_.chat_template.empty()) throw;
        chat_error_ = error.what();  // texts need no template
    }
}

size_t PreparedRecords::add_file(const fs::path& path, size_t threads, const Progress& progress) {
    struct Slot {
        std::optional<Record> record;
        std::optional<Encoded> encoded;
    };
    RecordReader reader(path);
    file_ = path.string();
    for (;;) {
        const std::vector<RecordLine> lines = reader.next_lines(kBatchBytes, kBatchLines);
        if (lines.empty()) break;
        std::vector<Slot> slots(lines.size());
        std::exception_ptr error;
        try {
            for_each_piece(lines.size(), threads, [&](size_t i) {
                slots[i].record = reader.parse(lines[i]);
                slots[i].encoded = encode(*slots[i].record, reader.where(lines[i].line));
            });
        } catch (...) {
            error = std::current_exception();  // of the first line that failed; all lines before it are done
        }
        for (const Slot& slot : slots) {
            if (slot.record) reader.check_kind(*slot.record);  // an earlier line may be of the wrong kind
            if (!slot.encoded) std::rethrow_exception(error);
            add(*slot.record, *slot.encoded);
        }
        if (progress) progress(reader.done_bytes(), reader.size_bytes());
    }
    if (progress) progress(reader.size_bytes(), reader.size_bytes());
    return reader.size_bytes();
}

void PreparedRecords::Encoded::append(std::span<const uint32_t> more, bool target) {
    tokens.insert(tokens.end(), more.begin(), more.end());
    is_target.resize(tokens.size(), target);
}

PreparedRecords::Encoded PreparedRecords::encode_chat(const Record& record, const std::string& where) const {
    const auto& train = record.conversation.train;
    if (settings_.train_on_inputs && std::find(train.begin(), train.end(), Train::no) != train.end())
        throw UserError({.subject = where,
                         .given = "a message is not to be trained on, and --train-on-inputs trains on everything",
                         .wanted = "one of the two"});
    ChatTokens chat = chat_->render(tokenizer_, record.conversation, where);
    if (settings_.train_on_inputs) std::fill(chat.is_reply.begin(), chat.is_reply.end(), 1);
    return {std::move(chat.tokens), std::move(chat.is_reply), std::move(chat.counts)};
}

PreparedRecords::Encoded PreparedRecords::encode(const Record& record, const std::string& where) const {
    if (record.train == Train::no) {
        Encoded nothing;
        nothing.left_out = true;
        return nothing;
    }
    if (record.kind == RecordKind::chat || record.kind == RecordKind::instruction) {
        if (chat_) return encode_chat(record, where);
        if (!chat_error_.empty())
            throw UserError({.subject = where,
                             .given = "the record needs the chat template, which cannot be used: " + chat_error_,
                             .hint = "give another with --chat-template"});
        const std::string needs = record.kind == RecordKind::chat ? "messages" : record.asks_for_template;
        if (!needs.empty())
            throw UserError({.subject = where,
                             .given = "the record has " + (record.kind == RecordKind::chat ? needs : quote(needs)) +
                                      ", and the model has no chat template (" + tokenizer_.description() + ")",
                             .hint = "give one with --chat-template: a file, chatml or llama3"});
    }
    std::string prompt = record.prompt;
    if (record.kind == RecordKind::instruction)
        prompt = "### Instruction:\n" + record.prompt + "\n\n" +
                 (record.input.empty() ? "" : "### Input:\n" + record.input + "\n\n") + "### Response:\n";
    const auto special = record.kind == RecordKind::instruction ? SpecialTokens::as_text : SpecialTokens::parse;
    const auto input = tokenizer_.encode(prompt, special), reply = tokenizer_.encode(record.text, special);
    const auto& opening = input.empty() ? reply : input;
    const auto bos = tokenizer_.bos();
    Encoded out;
    if (tokenizer_.adds_bos() && bos && (opening.empty() || opening[0] != *bos))
        out.append({{*bos}}, settings_.train_on_inputs);
    out.append(input, settings_.train_on_inputs);
    out.append(reply, true);
    if (out.tokens.empty() || out.tokens.back() != end_of_text_)  // data rendered elsewhere may end in it already
        out.append({{end_of_text_}}, true);
    return out;
}

// Closes the record that begins at the last piece's end: cuts it to T tokens, or into pieces of at most T. A record
// without a target is removed.
void PreparedRecords::cut_record(bool continues) {
    const size_t T = settings_.T, begin = piece_begin_.back(), length = tokens_.size() - begin;
    const size_t kept = continues ? length : std::min(length, T);
    tokens_.resize(begin + kept);
    is_target_.resize(begin + kept);
    for (size_t at = begin; at < begin + kept; at += T) is_target_[at] = 0;  // nothing precedes it
    const bool has_targets = std::find(is_target_.begin() + begin, is_target_.end(), 1) != is_target_.end();
    if (!has_targets) {
        (kept < length ? too_long_ : empty_)++;
        cut_tokens_ += kept < length ? length : 0;
        tokens_.resize(begin);
        is_target_.resize(begin);
        return;
    }
    if (continues && kept % T == 1 && kept > 1) {  // a last piece of one token trains nothing
        tokens_.pop_back();
        is_target_.pop_back();
    }
    cut_ += kept < length;
    cut_tokens_ += length - kept;
    continued_ += kept > T;
    for (size_t at = begin + T; at < tokens_.size(); at += T) piece_begin_.push_back(at);
    piece_begin_.push_back(tokens_.size());
    record_begin_.push_back(piece_begin_.size() - 1);
}

void PreparedRecords::add(const Record& record, const std::string& where) {
    add(record, encode(record, where));
}

// Files may have keys without end, so that only some are kept by name.
void PreparedRecords::note_unused(const std::string& key) {
    constexpr size_t most = 1000;
    const auto found = unused_.find({file_, key});
    if (found == unused_.end() && unused_.size() == most) {
        ++more_unused_;
    } else {
        ++unused_[{file_, key}];
    }
}

void PreparedRecords::add(const Record& record, const Encoded& encoded) {
    ++read_;
    kinds_[static_cast<size_t>(record.kind)] = true;
    for (const std::string& key : record.unused) note_unused(quote(key));
    for (const std::string& key : encoded.counts.unused_keys) note_unused(quote(key) + " of messages");
    if (encoded.left_out) {
        ++left_out_;
        return;
    }
    counts_.add(encoded.counts);
    counts_.unused_keys.clear();
    tokens_.insert(tokens_.end(), encoded.tokens.begin(), encoded.tokens.end());
    is_target_.insert(is_target_.end(), encoded.is_target.begin(), encoded.is_target.end());
    cut_record(record.kind == RecordKind::text);
}

std::vector<bool> PreparedRecords::spread(size_t n) const {
    const size_t N = records();
    if (n > N) throw std::logic_error("more records held out than there are");
    std::vector<bool> held_out(N);
    for (uint64_t i = 0; i < N; ++i) held_out[i] = (i + 1) * n / N > i * n / N;
    return held_out;
}

// Pieces by row. First fit decreasing: the longest piece first, each into the first row with room.
std::vector<std::vector<uint32_t>> PreparedRecords::rows_of(const std::vector<bool>& held_out,
                                                            bool held_out_rows) const {
    std::vector<uint32_t> pieces;
    for (size_t record = 0; record < records(); ++record)
        if (held_out.empty() || held_out[record] == held_out_rows)
            for (size_t piece = record_begin_[record]; piece < record_begin_[record + 1]; ++piece)
                pieces.push_back(static_cast<uint32_t>(piece));
    std::vector<std::vector<uint32_t>> rows;
    if (!settings_.sample_packing) {
        for (const uint32_t piece : pieces) rows.push_back({piece});
        return rows;
    }
    const auto length = [&](uint32_t piece) { return piece_begin_[piece + 1] - piece_begin_[piece]; };
    std::stable_sort(pieces.begin(), pieces.end(), [&](uint32_t a, uint32_t b) { return length(a) > length(b); });
    Bins bins(pieces.size(), settings_.T);
    for (const uint32_t piece : pieces) {
        const size_t row = bins.put(length(piece));
        if (row == rows.size()) rows.emplace_back();
        rows[row].push_back(piece);
    }
    return rows;
}

PreparedRecords::RowCounts PreparedRecords::write(const std::vector<bool>& held_out, bool held_out_rows,
                                                  TokenSink& sink) const {
    RowCounts counts;
    for (size_t record = 0; record < records(); ++record)
        counts.records += held_out.empty() || held_out[record] == held_out_rows;
    for (const auto& row : rows_of(held_out, held_out_rows)) {
        size_t used = 0;
        for (const uint32_t piece : row) {
            const size_t begin = piece_begin_[piece], end = piece_begin_[piece + 1];
            for (size_t at = begin; at < end; ++at) {
                sink.append(tokens_[at], bits(is_target_[at], at == begin));
                counts.targets += is_target_[at];
            }
            used += end - begin;
        }
        counts.tokens += used;
        for (size_t at = used; at < settings_.T; ++at) sink.append(end_of_text_, bits(false, at == used));
        ++counts.rows;
    }
    if (counts.rows != 0) sink.append(end_of_text_, bits(false, true));
    return counts;
}

std::string PreparedRecords::RowCounts::text(const PrepareSettings& settings) const {
    const size_t places = rows * settings.T,
                 padding = places == 0 ? 0 : (100 * (places - tokens) + places / 2) / places;
    return counted(records, "record") + " in " + counted(rows, "row") + " of " + count_text(settings.T) + " tokens (" +
           std::to_string(padding) + "% padding" +
           (padding >= 50 && !settings.sample_packing ? "; --sample-packing puts several records into a row" : "") +
           "), " + counted(targets, "token") + " trained on";
}

std::string PreparedRecords::summary() const {
    std::string kinds;
    for (size_t kind = 0; kind < std::size(kinds_); ++kind)
        if (kinds_[kind]) kinds += (kinds.empty() ? "" : "; ") + std::string(name_of(static_cast<RecordKind>(kind)));
    const bool rendered = kinds_[static_cast<size_t>(RecordKind::chat)] ||
                          (kinds_[static_cast<size_t>(RecordKind::instruction)] && chat_);
    std::string text = counted(read_, "record");
    if (!kinds.empty()) text += " (" + kinds + (rendered ? ", " + chat_->description() : "") + ")";
    const auto add = [&](size_t n, const std::string& what) {
        if (n != 0) text += "; " + count_text(n) + " " + what;
    };
    const std::string T = count_text(settings_.T);
    add(cut_, "cut to " + T + " tokens");
    add(continued_, "longer than " + T + " tokens, going on in further rows");
    add(left_out_, "left out: marked as not to be trained on");
    add(empty_, "left out: nothing to train on");
    add(too_long_, "left out: the first " + T + " tokens have nothing to train on");
    return text;
}

std::vector<std::string> PreparedRecords::notes() const {
    std::vector<std::string> notes;
    if (cut_tokens_ != 0)
        notes.push_back(counted(cut_ + too_long_, "record") + " of " + count_text(read_) +
                        " longer than --sequence-len " + std::to_string(settings_.T) +
                        (too_long_ != 0 ? ": cut or left out, " : ": cut, ") + counted(cut_tokens_, "token") +
                        " not used. Hint: a larger --sequence-len holds more of them");
    std::map<std::string, std::string> by_file;
    for (const auto& [where, count] : unused_) {
        std::string& keys = by_file[where.first];
        keys += (keys.empty() ? "" : ", ") + where.second + " (" + count_text(count) + ")";
    }
    for (const auto& [file, keys] : by_file)
        notes.push_back((file.empty() ? "" : file + ": ") + "keys that are not used: " + keys +
                        (more_unused_ == 0 ? "" : ", and " + count_text(more_unused_) + " more"));
    const auto add = [&](size_t n, const std::string& what, const std::string& rest) {
        if (n != 0) notes.push_back(counted(n, what) + rest);
    };
    add(counts_.context_turns, "assistant turn",
        " of " + counted(counts_.conversations, "conversation") +
            " are context only: the chat template shows them otherwise than when they are generated");
    add(counts_.other_openings, "assistant turn",
        " without all that the template's generation prompt has, such as thoughts that it opens");
    add(counts_.endless, "assistant turn", " without a special token at the end: the model does not learn to stop");
    add(counts_.special_replies, "assistant turn",
        " with the spelling of a special token (" + counts_.special +
            "), which became that token, as in the chat template's own tokenising");
    add(counts_.lost_contents, "message", " whose content the chat template leaves out");
    add(counts_.lost_thoughts, "message", " whose thoughts the chat template leaves out");
    add(counts_.lost_calls, "message", " whose tool calls the chat template leaves out");
    if (chat_ && chat_->shows_date() &&
        (kinds_[static_cast<size_t>(RecordKind::chat)] || kinds_[static_cast<size_t>(RecordKind::instruction)])) {
        std::array<char, 40> date{};
        std::strftime(date.data(), date.size(), "%Y-%m-%d", &settings_.now);
        notes.push_back(std::string("the chat template shows the date: ") + date.data());
    }
    return notes;
}

}  // namespace slab::data
