// Token files in the format of llm.c, and the masks that lie beside them.
//
// F.bin:  256 little-endian int32 of header, then the tokens. header[0] magic, [1] version, [2] token count, rest 0:
//         20240520 with version 1: tokens are uint16;  20240801 with version 7: tokens are uint32.
//         (Source: karpathy/llm.c, dev/data/data_common.py, the "gpt-2" and the "llama-3" model descriptions.)
// F.mask: optional, our own. The same header form with magic 0x6d626c73 (the bytes "slbm") and version 1, the same
//         count, then one byte a token: bit 0 = this token is a target, bit 1 = a document starts here, others 0.
//         Without it every token is a target and the whole file is one document.
//         header[3] is the row length T: 0 = a stream, which rows of any length may be cut from. Else the file is made
//         of rows of T tokens and one token more, the last row's last target; every multiple of T starts a document.
//         header[4..] may say which tokenizer made the file: [7] 0x6b6e6574 (the bytes "tenk") that it does, [4] its
//         vocabulary's size, [5] and [6] the low and the high half of its fingerprint, [8] to [135] its name in UTF-8,
//         filled up with bytes of 0.
//         It stands here since F.bin's header is llm.c's, and a third file could be left behind by the two.
//
// Files are taken as hostile: every length is checked against the file's size before use, and every token and mask
// byte is looked at once on opening, so that what an opened file answers later needs no further checks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/base/atomic_file.h"
#include "data/base/input_file.h"

namespace slab::data {

constexpr size_t kTokenHeaderInt32s = 256;
constexpr size_t kTokenHeaderBytes = kTokenHeaderInt32s * sizeof(int32_t);
constexpr int32_t kTokenMagicUint16 = 20240520, kTokenVersionUint16 = 1;
constexpr int32_t kTokenMagicUint32 = 20240801, kTokenVersionUint32 = 7;
constexpr int32_t kMaskMagic = 0x6d626c73, kMaskVersion = 1;
constexpr uint8_t kMaskTarget = 1, kMaskDocumentStart = 2;
constexpr size_t kMaxTokensPerFile = INT32_MAX;  // the count is an int32

// dir/F.bin -> dir/F.mask; any other name gets `.mask` appended.
std::filesystem::path mask_path_for(const std::filesystem::path& token_path);

// Whether the file begins as one of the two does. Throws std::runtime_error when it cannot be read.
bool begins_as_token_file(const std::filesystem::path& path);
bool begins_as_mask_file(const std::filesystem::path& path);

// The tokenizer that made a token file.
struct TokenOrigin {
    std::string name;  // as its user knows it; cut to 511 bytes
    uint32_t vocabulary_size = 0;
    uint64_t fingerprint = 0;  // Tokenizer::fingerprint() of the ids that occur in the file
};

// Where tokens go: to a file or to memory.
class TokenSink {
  public:
    virtual ~TokenSink() = default;
    virtual void append(uint32_t token, uint8_t mask_bits) = 0;
    virtual size_t size() const = 0;  // tokens so far
};

// A token file and its mask that are in memory only: what train_gpt makes of text and records at its start.
class TokenMemory final : public TokenSink {
  public:
    // As TokenFileWriter's.
    explicit TokenMemory(uint32_t largest_token, size_t row_tokens = 0)
        : token_bytes_(largest_token <= UINT16_MAX ? sizeof(uint16_t) : sizeof(uint32_t)), row_tokens_(row_tokens) {}

    void append(uint32_t token, uint8_t mask_bits) override;
    size_t size() const override { return mask_.size(); }

  private:
    friend class TokenFile;
    size_t token_bytes_, row_tokens_;
    std::vector<std::byte> tokens_;  // [size()] uint16 or uint32
    std::vector<uint8_t> mask_;      // [size()]
};

// A token file and its mask, open for reading: they stay on disk, gigabytes cost no memory. Immutable after
// construction, so threads may share it; a copy shares the open files.
//
// What if a file changes while it is open? Our own writers replace files by renaming, which leaves the open one as it
// is. One that is written to or cut short in place makes the next read throw std::runtime_error naming it: what was
// checked at opening may not hold any more.
class TokenFile {
  public:
    // std::runtime_error naming file, offset, what was found and what is wanted.
    explicit TokenFile(const std::filesystem::path& path);
    // Of memory, under a name for errors, after the same checks. The name need not exist.
    TokenFile(std::filesystem::path name, TokenMemory memory);

    size_t size() const { return size_; }
    // Tokens [begin, begin + count) and, a byte each, their mask: the bits kMaskTarget (all have it without a mask) and
    // kMaskDocumentStart (without a mask: only token 0). begin + count <= size().
    void read(size_t begin, size_t count, uint32_t* tokens, uint8_t* bits) const;
    bool has_mask() const { return has_mask_; }
    const std::filesystem::path& path() const { return path_; }
    size_t token_bytes() const { return token_bytes_; }          // 2 or 4
    uint32_t max_token() const { return max_token_; }            // 0 for an empty file
    size_t max_token_index() const { return max_token_index_; }  // where it first occurs, for errors about vocabularies
    size_t target_count() const { return target_count_; }
    size_t row_tokens() const { return row_tokens_; }                     // T of a file made of rows; 0: a stream
    const std::optional<TokenOrigin>& origin() const { return origin_; }  // nothing when the file does not say
    // Which ids occur, up to max_token(). Reads every token.
    std::vector<bool> ids() const;
    // A number that another sequence of tokens, targets or documents almost surely does not have. Reads everything.
    uint64_t content_hash() const;

  private:
    void read_tokens(size_t begin, size_t count, uint32_t* tokens) const;
    void read_mask(size_t begin, size_t count, uint8_t* bits) const;
    template <class F>
    void for_each_token(F&& f) const;  // f(index, token)
    void scan_tokens();
    void open_mask(const std::filesystem::path& mask_path);
    void scan_mask(const std::filesystem::path& mask_path, const std::string& hint);

    std::filesystem::path path_;
    std::shared_ptr<const InputFile> token_file_, mask_file_;
    std::shared_ptr<const TokenMemory> memory_;  // instead of the files
    bool has_mask_ = false;
    size_t size_ = 0, token_bytes_ = 0;
    uint32_t max_token_ = 0;
    size_t max_token_index_ = 0, target_count_ = 0, row_tokens_ = 0;
    std::optional<TokenOrigin> origin_;
};

// Of a row of a file that is made of rows: where its filling begins, a last document (not the only one) of one token
// repeated, none of them a target. tokens.size() when there is none. bits: as TokenFile::read gives them.
size_t filling_begin(std::span<const uint32_t> tokens, std::span<const uint8_t> bits);

// Writes F.bin and, if wanted, F.mask, in one pass over tokens of any number. Nothing is visible before commit().
class TokenFileWriter final : public TokenSink {
  public:
    // `largest_token` is the largest id that will come: below 65536 the file is uint16, else uint32.
    // Without a mask, commit() removes a mask of an earlier file of the same name: it would belong to other tokens.
    // row_tokens goes into the mask's header, whose promise is the caller's to keep; without a mask it is 0.
    TokenFileWriter(const std::filesystem::path& token_path, uint32_t largest_token, bool with_mask,
                    size_t row_tokens = 0);

    void append(uint32_t token, uint8_t mask_bits = kMaskTarget) override;
    size_t size() const override { return size_; }
    size_t token_bytes() const { return token_bytes_; }
    const std::vector<bool>& ids() const { return ids_; }  // that have come so far, up to the largest
    // Goes into the mask's header, so there must be a mask; to be called before prepare() and commit().
    void set_origin(TokenOrigin origin);
    // Brings both files to the disk, so that commit() is only renaming. commit() does it when it was not called.
    void prepare();
    // Killed in the middle, it leaves no token file: a pair that does not belong together is never seen.
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
