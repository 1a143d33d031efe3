// Where tokens go: to a token file and its mask, or to memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "data/base/atomic_file.h"
#include "data/token_format.h"

namespace slab::data {

class TokenSink {
  public:
    virtual ~TokenSink() = default;
    virtual void append(uint32_t token, uint8_t mask_bits) = 0;
    virtual size_t size() const = 0;  // tokens so far
};

// A token file and its mask in memory only: train_gpt makes them of text and records at its start.
class TokenMemory final : public TokenSink {
  public:
    // As TokenFileWriter's.
    explicit TokenMemory(uint32_t largest_token, size_t row_tokens = 0)
        : token_bytes_(largest_token <= UINT16_MAX ? sizeof(uint16_t) : sizeof(uint32_t)), row_tokens_(row_tokens) {}

    void append(uint32_t token, uint8_t mask_bits) override;
    size_t size() const override { return mask_.size(); }
    size_t token_bytes() const { return token_bytes_; }  // 2 or 4
    size_t row_tokens() const { return row_tokens_; }
    const std::vector<std::byte>& tokens() const { return tokens_; }  // [size()] uint16 or uint32
    const std::vector<uint8_t>& mask() const { return mask_; }        // [size()]

  private:
    size_t token_bytes_, row_tokens_;
    std::vector<std::byte> tokens_;
    std::vector<uint8_t> mask_;
};

// Writes F.bin and, if wanted, F.mask, in one pass over any number of tokens. Nothing is visible before commit().
class TokenFileWriter final : public TokenSink {
  public:
    // `largest_token` is the largest id that will come. Below 65536 the file is uint16, else uint32.
    // A commit() without a mask removes an earlier mask of the same name, which belongs to other tokens.
    // row_tokens goes into the mask's header; the caller keeps its promise (token_format.h). Without a mask it is 0.
    TokenFileWriter(const std::filesystem::path& token_path, uint32_t largest_token, bool with_mask,
                    size_t row_tokens = 0);

    void append(uint32_t token, uint8_t mask_bits = kMaskTarget) override;
    size_t size() const override { return size_; }
    size_t token_bytes() const { return token_bytes_; }
    const std::vector<bool>& ids() const { return ids_; }  // ids()[i]: whether id i was appended
    // Goes into the mask's header, so there must be a mask. To be called before prepare() and commit().
    void set_origin(TokenOrigin origin);
    // Brings both files to the disk, so that commit() only renames. commit() prepares files that were not.
    void prepare();
    // Killed in the middle, it leaves no token file: tokens never appear beside a mask of other tokens.
    void commit();

  private:
    void flush();

    std::filesystem::path token_path_;
    AtomicFile token_file_;
    std::unique_ptr<AtomicFile> mask_file_;
    size_t token_bytes_, row_tokens_;
    size_t size_ = 0;
    std::vector<bool> ids_;
    std::optional<TokenOrigin> origin_;
    bool prepared_ = false;
    std::vector<std::byte> token_buffer_;  // whole tokens not yet written
    std::vector<uint8_t> mask_buffer_;
};

}  // namespace slab::data
