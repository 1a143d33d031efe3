// Every length is checked against the file's size before use. Tokens and mask are read once on opening, in pieces.
#include "data/token_file.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "data/base/checksum.h"
#include "data/base/error.h"
#include "data/base/foreign_file.h"
#include "data/token_writer.h"

namespace slab::data {
namespace fs = std::filesystem;

namespace {

constexpr const char* kMakeHint = "make it with build/tokenize";
constexpr size_t kPieceElems = size_t{1} << 18;  // read at a time when a whole file is read

[[noreturn]] void fail(const fs::path& path, size_t offset_bytes, const std::string& found, const std::string& wanted,
                       const std::string& hint) {
    throw UserError({.subject = path.string(),
                     .given = "at offset " + std::to_string(offset_bytes) + ": found " + found,
                     .wanted = wanted,
                     .hint = hint});
}

std::string bytes_text(size_t bytes) {
    return std::to_string(bytes) + (bytes == 1 ? " byte" : " bytes");
}

// The likely meaning of a wrong first word, so that the user sees which file was mixed up.
std::string describe_magic(int32_t magic) {
    const int32_t swapped = static_cast<int32_t>(__builtin_bswap32(static_cast<uint32_t>(magic)));
    for (const int32_t known : {kTokenMagicUint16, kTokenMagicUint32, kMaskMagic})
        if (swapped == known) return "magic " + std::to_string(known) + " in big-endian byte order";
    if (magic == kMaskMagic) return "the magic of a mask file";
    if (magic == kTokenMagicUint16 || magic == kTokenMagicUint32) return "the magic of a token file";
    return "magic " + std::to_string(magic);
}

struct Kind {
    int32_t magic, version;
    size_t element_bytes;
};

// Checks header and length of a file of one of `kinds`, and returns its kind. Afterwards `count` elements are there.
template <size_t N>
Kind check_file(const fs::path& path, const TokenHeader& header, size_t file_bytes, const std::array<Kind, N>& kinds,
                const std::string& wanted_magic, const std::string& hint, size_t& count) {
    const int32_t magic = header[0], version = header[1], claimed = header[2];
    const auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const Kind& k) { return k.magic == magic; });
    const std::string_view head(reinterpret_cast<const char*>(header.data()), kForeignHeadBytes);
    if (kind == kinds.end()) refuse_foreign_content(head, path.string(), "a token file, made by build/tokenize");
    if (kind == kinds.end()) fail(path, 0, describe_magic(magic), wanted_magic, hint);
    if (version != kind->version)
        fail(path, 4, "version " + std::to_string(version),
             "version " + std::to_string(kind->version) + " for magic " + std::to_string(magic), hint);
    if (claimed < 0) fail(path, 8, "a count of " + std::to_string(claimed), "a count of tokens, 0 or more", hint);
    count = static_cast<size_t>(claimed);
    const size_t wanted_bytes = kTokenHeaderBytes + count * kind->element_bytes;  // below 2^34: no overflow
    const std::string by_header = bytes_text(wanted_bytes) + " in all, since the header counts " +
                                  std::to_string(count) + " tokens of " + bytes_text(kind->element_bytes);
    if (file_bytes < wanted_bytes)
        fail(path, file_bytes, "the end of the file", by_header, "the file was cut short; copy it again or " + hint);
    if (file_bytes > wanted_bytes)
        fail(path, wanted_bytes, bytes_text(file_bytes - wanted_bytes) + " more", by_header,
             "something was added to the file or its header is wrong; copy it again or " + hint);
    return *kind;
}

// Opens the file and reads its header. A file shorter than a header is refused.
std::shared_ptr<const InputFile> open_with_header(const fs::path& path, TokenHeader& header) {
    std::shared_ptr<const InputFile> file;
    try {
        file = std::make_shared<const InputFile>(path);
    } catch (const IoError& error) {
        throw IoError({.subject = error.what(), .hint = std::string(kMakeHint) + ", or check the path"});
    }
    if (file->size_bytes() < kTokenHeaderBytes)
        fail(path, file->size_bytes(), "the end of the file", "a header of " + bytes_text(kTokenHeaderBytes),
             kMakeHint);
    file->read(0, header.data(), kTokenHeaderBytes, "header");
    return file;
}

}  // namespace

TokenFile::TokenFile(const fs::path& path) : path_(path) {
    TokenHeader header;
    token_file_ = open_with_header(path, header);
    const std::array kinds = {Kind{kTokenMagicUint16, kTokenVersionUint16, sizeof(uint16_t)},
                              Kind{kTokenMagicUint32, kTokenVersionUint32, sizeof(uint32_t)}};
    const Kind kind = check_file(path, header, token_file_->size_bytes(), kinds,
                                 "magic 20240520 (uint16 tokens) or 20240801 (uint32 tokens)", kMakeHint, size_);
    token_bytes_ = kind.element_bytes;
    scan_tokens();
    // Anything with the mask's name counts, also a dangling link: ignoring a mask that the user sees would silently
    // train on other targets.
    std::error_code error;
    const fs::path mask_path = mask_path_for(path);
    if (fs::symlink_status(mask_path, error).type() != fs::file_type::not_found) {
        open_mask(mask_path);
    } else {
        target_count_ = size_;
    }
}

TokenFile::TokenFile(fs::path name, TokenMemory memory)
    : path_(std::move(name)), memory_(std::make_shared<const TokenMemory>(std::move(memory))) {
    has_mask_ = true;
    size_ = memory_->size();
    token_bytes_ = memory_->token_bytes();
    row_tokens_ = memory_->row_tokens();
    scan_tokens();
    scan_mask(path_, "this is a fault of the program");
}

void TokenFile::read_tokens(size_t begin, size_t count, uint32_t* tokens) const {
    assert(begin <= size_ && count <= size_ - begin);
    // uint16 tokens are read into the destination's upper half; widening from the front never overtakes them.
    const size_t bytes = count * token_bytes_;
    std::byte* const stored = reinterpret_cast<std::byte*>(tokens) + (count * sizeof(uint32_t) - bytes);
    if (memory_)
        std::copy_n(memory_->tokens().data() + begin * token_bytes_, bytes, stored);
    else
        token_file_->read(kTokenHeaderBytes + begin * token_bytes_, stored, bytes, "tokens");
    if (token_bytes_ == sizeof(uint32_t)) return;
    for (size_t i = 0; i < count; ++i) {
        uint16_t token;
        std::memcpy(&token, stored + i * sizeof token, sizeof token);
        tokens[i] = token;
    }
}

void TokenFile::read_mask(size_t begin, size_t count, uint8_t* bits) const {
    assert(begin <= size_ && count <= size_ - begin);
    if (memory_) {
        std::copy_n(memory_->mask().data() + begin, count, bits);
    } else if (has_mask_) {
        mask_file_->read(kTokenHeaderBytes + begin, bits, count, "mask");
    } else {
        std::fill_n(bits, count, kMaskTarget);
        if (begin == 0 && count > 0) bits[0] |= kMaskDocumentStart;
    }
}

void TokenFile::read(size_t begin, size_t count, uint32_t* tokens, uint8_t* bits) const {
    read_tokens(begin, count, tokens);
    read_mask(begin, count, bits);
}

template <class F>
void TokenFile::for_each_token(F&& f) const {
    std::vector<uint32_t> tokens(std::min(size_, kPieceElems));
    for (size_t begin = 0; begin < size_; begin += tokens.size()) {
        const size_t count = std::min(tokens.size(), size_ - begin);
        read_tokens(begin, count, tokens.data());
        for (size_t i = 0; i < count; ++i) f(begin + i, tokens[i]);
    }
}

void TokenFile::scan_tokens() {
    for_each_token([this](size_t i, uint32_t token) {
        if (token <= max_token_) return;
        max_token_ = token;
        max_token_index_ = i;
    });
}

void TokenFile::open_mask(const fs::path& mask_path) {
    TokenHeader header;
    mask_file_ = open_with_header(mask_path, header);
    has_mask_ = true;
    const std::string hint = "make it anew with build/tokenize, or remove it if every token is a target";
    size_t count = 0;
    check_file(mask_path, header, mask_file_->size_bytes(), std::array{Kind{kMaskMagic, kMaskVersion, 1}},
               "magic " + std::to_string(kMaskMagic) + " (a mask file)", hint, count);
    if (count != size_)
        fail(mask_path, 8, "a count of " + std::to_string(count),
             "the " + std::to_string(size_) + " tokens of " + path_.string(), hint);
    const int32_t row_tokens = header[3];
    if (row_tokens < 0)
        fail(mask_path, 12, "a row length of " + std::to_string(row_tokens), "0 (a stream) or more", hint);
    row_tokens_ = static_cast<size_t>(row_tokens);
    origin_ = origin_in(header);
    scan_mask(mask_path, hint);
}

void TokenFile::scan_mask(const fs::path& mask_path, const std::string& hint) {
    std::vector<uint8_t> bits(std::min(size_, kPieceElems));
    std::optional<std::pair<size_t, uint8_t>> no_row_start;  // of the first row that starts no document: index, byte
    for (size_t begin = 0; begin < size_; begin += bits.size()) {
        const size_t count = std::min(bits.size(), size_ - begin);
        read_mask(begin, count, bits.data());
        for (size_t i = 0; i < count; ++i) {
            if (bits[i] & ~(kMaskTarget | kMaskDocumentStart))
                fail(mask_path, kTokenHeaderBytes + begin + i, "mask byte " + std::to_string(bits[i]),
                     "0 to 3 (bit 0: a target, bit 1: a document starts)", hint);
            target_count_ += (bits[i] & kMaskTarget) != 0;
            if (row_tokens_ != 0 && (begin + i) % row_tokens_ == 0 && !(bits[i] & kMaskDocumentStart) && !no_row_start)
                no_row_start = {begin + i, bits[i]};
        }
    }
    if (row_tokens_ == 0) return;
    const std::string row_length = "a row length of " + std::to_string(row_tokens_);
    if (size_ <= row_tokens_ || (size_ - 1) % row_tokens_ != 0)
        fail(mask_path, 12, row_length, "one that divides the " + std::to_string(size_) + " tokens less one", hint);
    if (no_row_start)
        fail(mask_path, kTokenHeaderBytes + no_row_start->first, "mask byte " + std::to_string(no_row_start->second),
             "2 or 3: the header has " + row_length + ", and a row starts a document", hint);
}

std::vector<bool> TokenFile::ids() const {
    std::vector<bool> ids(size_ > 0 ? size_t{max_token_} + 1 : 0);
    for_each_token([&ids](size_t, uint32_t token) {
        if (token < ids.size()) ids[token] = true;  // a larger one was written after the file was opened
    });
    return ids;
}

uint64_t TokenFile::content_hash() const {
    uint64_t hash = row_tokens_ + 0x9e3779b97f4a7c15u;
    std::vector<uint32_t> tokens(std::min(size_, kPieceElems));
    std::vector<uint8_t> bits(tokens.size());
    for (size_t begin = 0; begin < size_; begin += tokens.size()) {
        const size_t count = std::min(tokens.size(), size_ - begin);
        read(begin, count, tokens.data(), bits.data());
        for (size_t i = 0; i < count; ++i) hash = checksum_step(hash, tokens[i] | uint64_t{bits[i]} << 32);
    }
    return hash ^ size_;
}

size_t padding_begin(std::span<const uint32_t> tokens, std::span<const uint8_t> bits) {
    size_t last = tokens.size();  // where the last document begins
    while (last > 0 && (last == tokens.size() || (bits[last] & kMaskDocumentStart) == 0)) --last;
    if (last == 0) return tokens.size();
    for (size_t i = last; i < tokens.size(); ++i) {
        const bool target = i > last && (bits[i] & kMaskTarget) != 0;  // a document's first token is never a target
        if (target || tokens[i] != tokens[last]) return tokens.size();
    }
    return last;
}

}  // namespace slab::data
