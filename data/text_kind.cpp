// The whole text is looked at once, at the speed of memory.
#include "data/text_kind.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "data/base/display.h"
#include "data/base/error.h"
#include "data/base/foreign_file.h"
#include "data/base/utf8.h"

namespace slab::data {
namespace {

constexpr size_t kLookedAtBytes = size_t{1} << 16;  // of what shows in a beginning

struct BrokenBytes {
    size_t count = 0, first = 0, line = 1;  // line and offset of the first
    size_t alone = 0;                       // between bytes of ASCII
    bool pairs = true;  // all lie in pairs of a lead and a trail byte, as the encodings of East Asia have
};

bool is_high(char c) {
    return static_cast<unsigned char>(c) >= 0x80;
}

// How the run of bytes from `begin`, up to the next ASCII byte, would read in GBK, Big5 or EUC.
bool is_run_of_pairs(std::string_view text, size_t begin) {
    size_t at = begin;
    while (at < text.size() && is_high(text[at])) {
        if (at + 1 == text.size()) return false;
        const auto lead = static_cast<unsigned char>(text[at]), trail = static_cast<unsigned char>(text[at + 1]);
        if (lead < 0x81 || lead == 0xff || trail < 0x40 || trail == 0x7f || trail == 0xff) return false;
        at += 2;
    }
    return at - begin >= 4;
}

BrokenBytes broken_bytes(std::string_view text) {
    BrokenBytes broken;
    size_t at = 0;
    while ((at += valid_utf8_bytes(text.substr(at))) < text.size()) {
        if (broken.count++ == 0) {
            broken.first = at;
            const std::string_view before = text.substr(0, at);
            broken.line += static_cast<size_t>(std::count(before.begin(), before.end(), '\n'));
        }
        const bool begins = at == 0 || !is_high(text[at - 1]), ends = at + 1 == text.size() || !is_high(text[at + 1]);
        broken.alone += begins && ends;
        if (begins && broken.pairs) broken.pairs = is_run_of_pairs(text, at);
        ++at;
    }
    return broken;
}

std::string encoding_of(const BrokenBytes& broken) {
    if (broken.pairs) return "GBK, BIG5 or SHIFT_JIS";
    if (2 * broken.alone >= broken.count) return "LATIN1 or WINDOWS-1252";
    return "WINDOWS-1251, KOI8-R or another";
}

std::string check_utf8(std::string_view text, const std::string& name) {
    const BrokenBytes broken = broken_bytes(text);
    if (broken.count == 0) return "";
    const std::string place = "byte " + std::to_string(broken.first) + ", in line " + std::to_string(broken.line);
    if (broken.count > text.size() / 1000)
        throw UserError({.subject = name,
                         .given = "is not UTF-8 (first at " + place + "; " + counted(broken.count, "byte") + " of " +
                                  std::to_string(text.size()) + ")",
                         .wanted = "UTF-8 text",
                         .hint = "`iconv -f ENCODING -t UTF-8 FILE > NEW` converts it; ENCODING looks like " +
                                 encoding_of(broken)});
    return name + ": " + counted(broken.count, "byte") + (broken.count == 1 ? " is" : " are") +
           " not UTF-8 (first at " + place + ") and learned as they are; `iconv -c -f UTF-8 -t UTF-8` drops them";
}

void refuse_wide(std::string_view text, const std::string& name) {
    const auto refuse = [&](const char* encoding) {
        throw UserError({.subject = name,
                         .given = std::string("is ") + encoding,
                         .wanted = "UTF-8 text",
                         .hint = std::string("`iconv -f ") + encoding + " -t UTF-8 FILE > NEW` converts it"});
    };
    using namespace std::string_view_literals;
    if (text.starts_with("\xff\xfe\0\0"sv) || text.starts_with("\0\0\xfe\xff"sv)) refuse("UTF-32");
    if (text.starts_with("\xff\xfe"sv) || text.starts_with("\xfe\xff"sv)) refuse("UTF-16");
    const std::string_view begin = text.substr(0, kLookedAtBytes);
    std::array<size_t, 2> zeros{};  // at even and odd places
    for (size_t i = 0; i < begin.size(); ++i) zeros[i % 2] += begin[i] == '\0';
    const size_t half = begin.size() / 2;
    if (half >= 4 && zeros[1] > half - half / 4 && zeros[0] < half / 4) refuse("UTF-16LE");
    if (half >= 4 && zeros[0] > half - half / 4 && zeros[1] < half / 4) refuse("UTF-16BE");
    if (const size_t at = begin.find('\0'); at != std::string_view::npos)
        throw UserError({.subject = name,
                         .given = "is no text: byte " + std::to_string(at) + " is 0",
                         .hint = "give UTF-8 text, records (*.jsonl), or, to train_gpt, token files made by "
                                 "build/tokenize (*.bin)"});
}

std::string lower(std::string_view text) {
    std::string result(text);
    std::transform(result.begin(), result.end(), result.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return result;
}

// Names of columns that tables of training data have.
bool is_column(std::string_view name) {
    for (const char* known : {"text", "prompt", "completion", "instruction", "input", "output", "response", "question",
                              "answer", "messages", "context", "chosen", "rejected", "label", "query", "target"})
        if (name == known) return true;
    return false;
}

// Refuses a text whose first line names columns, and whose second has as many separators at least.
void refuse_table(std::string_view text, const std::string& name) {
    const std::string_view begin = text.substr(0, kLookedAtBytes), line = begin.substr(0, begin.find('\n'));
    for (const char separator : {',', '\t', ';'}) {
        size_t fields = 0, columns = 0;
        for (size_t at = 0; at <= line.size();) {
            const size_t end = std::min(line.find(separator, at), line.size());
            std::string field = lower(line.substr(at, end - at));
            std::erase_if(field, [](char c) { return c == '"' || c == '\'' || c == ' ' || c == '\r'; });
            columns += is_column(field);
            ++fields;
            at = end + 1;
        }
        if (fields < 2 || columns < 2) continue;
        const ForeignKind kind = *kind_of_name("table.csv");
        throw UserError({.subject = name,
                         .given = "looks like " + kind.name + ": its first line is " + quote(line.substr(0, 60)),
                         .wanted = "text, or records (*.jsonl)",
                         .hint = kind.hint});
    }
}

// Refuses a JSON list of records under a text's name.
void refuse_json_list(std::string_view text, const std::string& name) {
    std::string begin;  // without white space
    for (const char c : text.substr(0, 4096))
        if (!std::isspace(static_cast<unsigned char>(c))) begin += c;
    if (!begin.starts_with("[{\"")) return;
    const std::string key = begin.substr(3, begin.find('"', 3) - 3);
    if (!is_column(lower(key)) && key != "conversations" && key != "id") return;
    throw UserError({.subject = name,
                     .given = "is a JSON list of objects, each with " + quote(key),
                     .wanted = "a JSON object, {...}, on each line of a file *.jsonl",
                     .hint = "`jq -c '.[]' FILE > records.jsonl` writes it"});
}

}  // namespace

std::string check_text(std::string_view text, const std::string& name) {
    refuse_foreign_content(text, name, "UTF-8 text");
    refuse_wide(text, name);
    const std::string note = check_utf8(text, name);
    if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
    refuse_table(text, name);
    refuse_json_list(text, name);
    const size_t first = std::min(text.find_first_not_of(" \t\r\n"), text.size());
    const std::string tag = lower(text.substr(first, 14));
    if (note.empty() && (tag.starts_with("<!doctype html") || tag.starts_with("<html")))
        return name + " is an HTML page, whose tags are learned as text";
    return note;
}

}  // namespace slab::data
