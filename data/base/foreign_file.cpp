// Signatures in one table. Longer ones stand before those that begin them.
#include "data/base/foreign_file.h"

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <utility>

#include "data/base/error.h"

namespace slab::data {
namespace {

struct Signature {
    size_t at;
    std::string_view bytes;
    const char* name;
    const char* hint;
};

constexpr const char* kUnpack = "unpack it and give what is inside";
constexpr const char* kTable =
    "export its rows as JSON lines, one record a line (*.jsonl); in Python, pandas' "
    "to_json(orient=\"records\", lines=True) does";
constexpr const char* kDocument = "save it as plain text in UTF-8";
constexpr const char* kPickle =
    "a pickle runs code when it is opened: let Python write weights as safetensors, data as "
    "text or JSON lines";
constexpr const char* kPicture = "training reads text";

using namespace std::string_view_literals;

constexpr Signature kSignatures[] = {
    {0, "\x1f\x8b"sv, "a gzip archive", kUnpack},
    {0, "PK\x03\x04"sv, "a ZIP archive (PyTorch's .bin and .pt, NumPy's .npz and Office documents are such)", kUnpack},
    {0, "PK\x05\x06"sv, "an empty ZIP archive", kUnpack},
    {0, "\xfd\x37zXZ\x00"sv, "an xz archive", kUnpack},
    {0, "\x28\xb5\x2f\xfd"sv, "a Zstandard archive", kUnpack},
    {0, "\x04\x22\x4d\x18"sv, "an LZ4 archive", kUnpack},
    {0, "7z\xbc\xaf\x27\x1c"sv, "a 7-Zip archive", kUnpack},
    {0, "Rar!\x1a\x07"sv, "a RAR archive", kUnpack},
    {4, "1AY&SY"sv, "a bzip2 archive", kUnpack},
    {257, "ustar"sv, "a tar archive", kUnpack},
    {0, "ARROW1\x00"sv, "an Arrow table", kTable},
    {0, "FEA1"sv, "a Feather table", kTable},
    {0, "Obj\x01"sv, "an Avro table", kTable},
    {0, "SQLite format 3\x00"sv, "an SQLite database", kTable},
    {0, "\x89HDF\r\n\x1a\n"sv, "an HDF5 file", kTable},
    {0, "\x93NUMPY"sv, "a NumPy array", kTable},
    {0, "%PDF-"sv, "a PDF document", kDocument},
    {0, "{\\rtf"sv, "an RTF document", kDocument},
    {0, "\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"sv, "an old Office document", kDocument},
    {0, "\x89PNG\r\n\x1a\n"sv, "a PNG picture", kPicture},
    {0, "\xff\xd8\xff"sv, "a JPEG picture", kPicture},
    {0, "GIF87a"sv, "a GIF picture", kPicture},
    {0, "GIF89a"sv, "a GIF picture", kPicture},
    {0,
     "\x7f"
     "ELF"sv,
     "a program", kPicture},
    {0, "version https://git-lfs.github.com/spec/"sv, "a Git LFS pointer", kGitLfsHint},
};

// For signatures that a text may begin with: whether the bytes after it are none of a text's.
bool begins_binary(std::string_view head, std::string_view signature) {
    if (!head.starts_with(signature)) return false;
    const std::string_view next = head.substr(signature.size(), 12);
    return std::any_of(next.begin(), next.end(), [](char c) {
        const auto byte = static_cast<unsigned char>(c);
        return byte < 9 || (byte > 13 && byte < 32) || byte >= 0xf8;
    });
}

// Protocols 2 to 5 begin with their number, the older ones with what they hold.
bool is_pickle(std::string_view head) {
    if (head.size() > 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5)
        return std::string_view("}](\x95\x8a\x8c\x58\x63\x4e\x89\x4b\x55\x54\x4a\x4d\x47\x42\x43\x29\x88")
                   .find(head[2]) != std::string_view::npos;
    for (const std::string_view begin : {"(lp0\n"sv, "(dp0\n"sv, "(lp1\n"sv, "(dp1\n"sv, "ccopy_reg\n"sv})
        if (head.starts_with(begin)) return true;
    return false;
}

// Four bytes of 0xff, then the length of the schema: a multiple of 8, here below 16 MiB.
bool is_arrow_stream(std::string_view head) {
    if (head.size() < 8 || !head.starts_with("\xff\xff\xff\xff") || head[7] != 0) return false;
    return static_cast<unsigned char>(head[4]) % 8 == 0 && (head[4] != 0 || head[5] != 0 || head[6] != 0);
}

// A protobuf whose first field is the piece "<unk>" or "<pad>".
bool is_sentence_piece(std::string_view head) {
    if (head.size() < 16 || head[0] != '\n' || head[2] != '\n') return false;
    return head.substr(0, 16).find("<unk>") != std::string_view::npos ||
           head.substr(0, 16).find("<pad>") != std::string_view::npos;
}

// A safetensors file: the header's length in 8 bytes, then its JSON.
bool is_safetensors(std::string_view head) {
    return head.size() > 9 && head[8] == '{' && head[9] == '"' && head.substr(4, 4) == "\0\0\0\0"sv;
}

std::string lower(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return text;
}

}  // namespace

std::optional<ForeignKind> kind_of_content(std::string_view head) {
    for (const Signature& s : kSignatures)
        if (head.size() >= s.at && head.substr(s.at).starts_with(s.bytes)) return ForeignKind{s.name, s.hint};
    if (is_arrow_stream(head)) return ForeignKind{"an Arrow stream", kTable};
    if (is_pickle(head)) return ForeignKind{"a Python pickle", kPickle};
    if (is_sentence_piece(head))
        return ForeignKind{"a SentencePiece model",
                           "make token files with the model's own tokenizer, in llm.c's format"};
    if (is_safetensors(head)) return ForeignKind{"a safetensors file", "weights go to --base-model"};
    for (const auto& [signature, name] : {std::pair{"PAR1"sv, "a Parquet table"}, {"ORC"sv, "an ORC table"}})
        if (begins_binary(head, signature)) return ForeignKind{name, kTable};
    if (begins_binary(head, "GGUF")) return ForeignKind{"a GGUF model", "models go to --base-model"};
    return {};
}

std::optional<ForeignKind> kind_of_name(const std::filesystem::path& path) {
    const std::string ending = lower(path.extension().string());
    for (const auto& [of_kind, name] : {std::pair{".csv"sv, "a CSV table"},
                                        {".tsv"sv, "a table with tabs"},
                                        {".tab"sv, "a table with tabs"},
                                        {".parquet"sv, "a Parquet table"},
                                        {".arrow"sv, "an Arrow table"},
                                        {".feather"sv, "a Feather table"},
                                        {".orc"sv, "an ORC table"},
                                        {".avro"sv, "an Avro table"}})
        if (ending == of_kind) return ForeignKind{name, kTable};
    return {};
}

void refuse_foreign_content(std::string_view head, const std::string& name, const std::string& wanted) {
    if (const auto kind = kind_of_content(head.substr(0, kForeignHeadBytes)))
        throw UserError({.subject = name, .given = "is " + kind->name, .wanted = wanted, .hint = kind->hint});
}

void refuse_foreign_content(const InputFile& file, const std::string& wanted) {
    std::string head(std::min(file.size_bytes(), kForeignHeadBytes), '\0');
    file.read(0, head.data(), head.size(), "first bytes");
    refuse_foreign_content(head, file.path().string(), wanted);
}

}  // namespace slab::data
