// Tokens pass through a buffer. Headers are written twice, as counts are known only at the end.
#include "data/token_writer.h"

#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "data/base/error.h"

namespace slab::data {
namespace fs = std::filesystem;
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;

// Written first with a count of 0, and again at the end with the true one.
void write_header(AtomicFile& file, int32_t magic, int32_t version, size_t count, size_t row_tokens = 0,
                  const std::optional<TokenOrigin>& origin = {}) {
    TokenHeader header{};
    header[0] = magic;
    header[1] = version;
    header[2] = static_cast<int32_t>(count);
    header[3] = static_cast<int32_t>(row_tokens);
    if (origin) put_origin(*origin, header);
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
        throw UserError({.subject = path.string(),
                         .given = "more than " + std::to_string(kMaxTokensPerFile) + " tokens",
                         .wanted = "at most that many in a file",
                         .hint = "split the text over several, or pack short records with --sample-packing"});
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
    // An earlier token file is removed first and the new one appears last. A run killed in between leaves no token
    // file, so tokens are never beside another file's mask. A link is followed, as in AtomicFile.
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
