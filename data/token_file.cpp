// Reading (in pieces, checked once) and writing (streamed, whole or not at all) of token files: format in token_file.h.
#include "data/token_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>

#include "data/base/checksum.h"

namespace slab::data {
namespace fs = std::filesystem;
static_assert(std::endian::native == std::endian::little, "tokens are read as they are, little-endian");

namespace {

constexpr const char* kMakeHint = "make it with build/tokenize";
constexpr size_t kBufferBytes = size_t{1} << 20;
constexpr size_t kPieceElems = size_t{1} << 18;  // of a file that is gone through from end to end

[[noreturn]] void fail(const fs::path& path, size_t offset_bytes, const std::string& found, const std::string& wanted,
                       const std::string& hint) {
    throw std::runtime_error(path.string() + ": at offset " + std::to_string(offset_bytes) + ": found " + found +
                             ", wanted " + wanted + ". Hint: " + hint + ".");
}

std::string bytes_text(size_t bytes) {
    return std::to_string(bytes) + (bytes == 1 ? " byte" : " bytes");
}

int32_t header_word(const std::byte* file, size_t index) {
    int32_t word;
    std::memcpy(&word, file + index * sizeof word, sizeof word);
    return word;
}

// What a stranger's first word most likely is, said in the error so that the user sees which file was mixed up.
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

// Checks header and length of a file of one of `kinds`; returns which it is. After this, `count` elements are there.
template <size_t N>
Kind check_file(const fs::path& path, const std::byte* file, size_t file_bytes, const std::array<Kind, N>& kinds,
                const std::string& wanted_magic, const std::string& hint, size_t& count) {
    const int32_t magic = header_word(file, 0), version = header_word(file, 1), claimed = header_word(file, 2);
    const auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const Kind& k) { return k.magic == magic; });
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

// Where the mask's header says what made the file, in words of 4 bytes.
constexpr size_t kOriginVocabulary = 4, kOriginFingerprint = 5, kOriginMark = 7, kOriginName = 8;
constexpr int32_t kOriginMagic = 0x6b6e6574;
constexpr size_t kLongestNameBytes = 511;

std::optional<TokenOrigin> origin_in(const std::byte* header) {
    if (header_word(header, kOriginMark) != kOriginMagic) return {};
    TokenOrigin origin;
    std::memcpy(&origin.fingerprint, header + kOriginFingerprint * sizeof(int32_t), sizeof origin.fingerprint);
    origin.vocabulary_size = static_cast<uint32_t>(header_word(header, kOriginVocabulary));
    const char* const name = reinterpret_cast<const char*>(header + kOriginName * sizeof(int32_t));
    origin.name.assign(name, std::find(name, name + kLongestNameBytes, '\0'));
    return origin;
}

// Opens the file and reads its header, which it must be long enough for.
std::shared_ptr<const InputFile> open_with_header(const fs::path& path,
                                                  std::array<std::byte, kTokenHeaderBytes>& header) {
    std::shared_ptr<const InputFile> file;
    try {
        file = std::make_shared<const InputFile>(path);
    } catch (const std::runtime_error& error) {
        throw std::runtime_error(std::string(error.what()) + ". Hint: " + kMakeHint + ", or check the path.");
    }
    if (file->size_bytes() < kTokenHeaderBytes)
        fail(path, file->size_bytes(), "the end of the file", "a header of " + bytes_text(kTokenHeaderBytes),
             kMakeHint);
    file->read(0, header.data(), header.size(), "header");
    return file;
}

bool begins_with(const fs::path& path, std::initializer_list<int32_t> magics) {
    int32_t word = 0;
    const InputFile file(path);
    if (file.size_bytes() < sizeof word) return false;
    file.read(0, &word, sizeof word, "first bytes");
    return std::find(magics.begin(), magics.end(), word) != magics.end();
}

}  // namespace

bool begins_as_token_file(const fs::path& path) {
    return begins_with(path, {kTokenMagicUint16, kTokenMagicUint32});
}
bool begins_as_mask_file(const fs::path& path) {
    return begins_with(path, {kMaskMagic});
}

fs::path mask_path_for(const fs::path& token_path) {
    fs::path mask = token_path;
    if (mask.extension() == ".bin") return mask.replace_extension(".mask");
    return mask += ".mask";
}

TokenFile::TokenFile(const fs::path& path) : path_(path) {
    std::array<std::byte, kTokenHeaderBytes> header;
    token_file_ = open_with_header(path, header);
    const std::array kinds = {Kind{kTokenMagicUint16, kTokenVersionUint16, sizeof(uint16_t)},
                              Kind{kTokenMagicUint32, kTokenVersionUint32, sizeof(uint32_t)}};
    const Kind kind = check_file(path, header.data(), token_file_->size_bytes(), kinds,
                                 "magic 20240520 (uint16 tokens) or 20240801 (uint32 tokens)", kMakeHint, size_);
    token_bytes_ = kind.element_bytes;
    scan_tokens();
    // Whatever stands under the mask's name counts, a dangling link too: leaving out a mask that the user sees would
    // silently train on other targets.
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
    size_ = memory_->mask_.size();
    token_bytes_ = memory_->token_bytes_;
    row_tokens_ = memory_->row_tokens_;
    scan_tokens();
    scan_mask(path_, "this is a fault of the program");
}

void TokenFile::read_tokens(size_t begin, size_t count, uint32_t* tokens) const {
    assert(begin <= size_ && count <= size_ - begin);
    // Narrow ones are read into the upper half of the destination, which widening from the front never overtakes.
    const size_t bytes = count * token_bytes_;
    std::byte* const stored = reinterpret_cast<std::byte*>(tokens) + (count * sizeof(uint32_t) - bytes);
    if (memory_)
        std::copy_n(memory_->tokens_.data() + begin * token_bytes_, bytes, stored);
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
        std::copy_n(memory_->mask_.data() + begin, count, bits);
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
    std::array<std::byte, kTokenHeaderBytes> header;
    mask_file_ = open_with_header(mask_path, header);
    has_mask_ = true;
    const std::string hint = "make it anew with build/tokenize, or remove it if every token is a target";
    size_t count = 0;
    check_file(mask_path, header.data(), mask_file_->size_bytes(), std::array{Kind{kMaskMagic, kMaskVersion, 1}},
               "magic " + std::to_string(kMaskMagic) + " (a mask file)", hint, count);
    if (count != size_)
        fail(mask_path, 8, "a count of " + std::to_string(count),
             "the " + std::to_string(size_) + " tokens of " + path_.string(), hint);
    const int32_t row_tokens = header_word(header.data(), 3);
    if (row_tokens < 0)
        fail(mask_path, 12, "a row length of " + std::to_string(row_tokens), "0 (a stream) or more", hint);
    row_tokens_ = static_cast<size_t>(row_tokens);
    origin_ = origin_in(header.data());
    scan_mask(mask_path, hint);
}

void TokenFile::scan_mask(const fs::path& mask_path, const std::string& hint) {
    std::vector<uint8_t> bits(std::min(size_, kPieceElems));
    std::optional<std::pair<size_t, uint8_t>> no_row_start;  // the first row that starts no document, and its byte
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
        if (token < ids.size()) ids[token] = true;  // a larger one came after the file was opened
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

namespace {

// Goes in first, with a count of 0, and again at the end with the true one.
void write_header(AtomicFile& file, int32_t magic, int32_t version, size_t count, size_t row_tokens = 0,
                  const std::optional<TokenOrigin>& origin = {}) {
    std::array<int32_t, kTokenHeaderInt32s> header{};
    header[0] = magic;
    header[1] = version;
    header[2] = static_cast<int32_t>(count);
    header[3] = static_cast<int32_t>(row_tokens);
    if (origin) {
        header[kOriginMark] = kOriginMagic;
        header[kOriginVocabulary] = static_cast<int32_t>(origin->vocabulary_size);
        std::memcpy(&header[kOriginFingerprint], &origin->fingerprint, sizeof origin->fingerprint);
        std::memcpy(&header[kOriginName], origin->name.data(), std::min(origin->name.size(), kLongestNameBytes));
    }
    if (file.size_bytes() == 0) {
        file.write(header.data(), kTokenHeaderBytes);
    } else {
        file.overwrite(0, header.data(), kTokenHeaderBytes);
    }
}

void check_token(const fs::path& path, size_t size, size_t token_bytes, uint32_t token, uint8_t mask_bits) {
    if (token_bytes == sizeof(uint16_t) && token > UINT16_MAX)
        throw std::logic_error("token " + std::to_string(token) + " is larger than was announced");
    if (mask_bits & ~(kMaskTarget | kMaskDocumentStart)) throw std::logic_error("a mask byte has two bits");
    if (size == kMaxTokensPerFile)
        throw std::runtime_error(path.string() + ": more than " + std::to_string(kMaxTokensPerFile) +
                                 " tokens, wanted at most that many in a file. Hint: split the text over several, or " +
                                 "pack short records with --sample-packing.");
}

void append_token(std::vector<std::byte>& to, uint32_t token, size_t token_bytes) {
    const size_t at = to.size();
    to.resize(at + token_bytes);
    std::memcpy(to.data() + at, &token, token_bytes);  // little-endian: the low bytes come first
}

}  // namespace

void TokenMemory::append(uint32_t token, uint8_t mask_bits) {
    static const fs::path name = "the prepared data";
    check_token(name, size(), token_bytes_, token, mask_bits);
    append_token(tokens_, token, token_bytes_);
    mask_.push_back(mask_bits);
}

size_t filling_begin(std::span<const uint32_t> tokens, std::span<const uint8_t> bits) {
    size_t last = tokens.size();  // where the last document begins
    while (last > 0 && (last == tokens.size() || (bits[last] & kMaskDocumentStart) == 0)) --last;
    if (last == 0) return tokens.size();
    for (size_t i = last; i < tokens.size(); ++i) {
        const bool target = i > last && (bits[i] & kMaskTarget) != 0;  // a document's first token is none
        if (target || tokens[i] != tokens[last]) return tokens.size();
    }
    return last;
}

TokenFileWriter::TokenFileWriter(const fs::path& token_path, uint32_t largest_token, bool with_mask, size_t row_tokens)
    : token_path_(token_path),
      token_file_(token_path),
      mask_file_(with_mask ? std::make_unique<AtomicFile>(mask_path_for(token_path)) : nullptr),
      token_bytes_(largest_token <= UINT16_MAX ? sizeof(uint16_t) : sizeof(uint32_t)),
      row_tokens_(row_tokens) {
    if (row_tokens != 0 && !with_mask) throw std::logic_error("the row length stands in the mask");
    write_header(token_file_, 0, 0, 0);
    if (mask_file_) write_header(*mask_file_, 0, 0, 0);
}

void TokenFileWriter::append(uint32_t token, uint8_t mask_bits) {
    check_token(token_path_, size_, token_bytes_, token, mask_bits);
    append_token(token_buffer_, token, token_bytes_);
    if (mask_file_) mask_buffer_.push_back(mask_bits);
    if (token >= ids_.size()) ids_.resize(size_t{token} + 1);
    ids_[token] = true;
    ++size_;
    if (token_buffer_.size() >= kBufferBytes) flush();
}

void TokenFileWriter::set_origin(TokenOrigin origin) {
    if (!mask_file_ || prepared_) throw std::logic_error("the origin stands in the mask, and goes in before prepare()");
    origin_ = std::move(origin);
}

void TokenFileWriter::flush() {
    token_file_.write(token_buffer_.data(), token_buffer_.size());
    token_buffer_.clear();
    if (mask_file_) mask_file_->write(mask_buffer_.data(), mask_buffer_.size());
    mask_buffer_.clear();
}

void TokenFileWriter::prepare() {
    flush();
    const bool narrow = token_bytes_ == sizeof(uint16_t);
    write_header(token_file_, narrow ? kTokenMagicUint16 : kTokenMagicUint32,
                 narrow ? kTokenVersionUint16 : kTokenVersionUint32, size_);
    token_file_.prepare();
    if (mask_file_) {
        write_header(*mask_file_, kMaskMagic, kMaskVersion, size_, row_tokens_, origin_);
        mask_file_->prepare();
    }
    prepared_ = true;
}

void TokenFileWriter::commit() {
    if (!prepared_) prepare();
    // The tokens go first and come last: a run killed in between leaves no token file, never one beside a mask that
    // belongs to other tokens. A link is followed, as AtomicFile does.
    std::error_code missing;
    const fs::path earlier = fs::canonical(token_path_, missing);
    if (!missing) fs::remove(earlier);
    if (mask_file_) {
        mask_file_->commit();
    } else {
        fs::remove(mask_path_for(token_path_));
    }
    token_file_.commit();
}

}  // namespace slab::data
