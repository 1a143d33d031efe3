// A token file and its mask, read (format: token_format.h).
//
// Files are taken as hostile. Every length is checked against the file's size before use, and every token and mask byte
// is read once on opening. So an opened file needs no further checks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/base/input_file.h"
#include "data/token_format.h"

namespace slab::data {

class TokenMemory;

// A token file and its mask, open for reading. They stay on disk, so gigabytes cost no memory. Immutable after
// construction, so threads may share it. A copy shares the open files.
//
// What if a file changes while it is open? Our own writers replace files by renaming, which leaves the open one as it
// is. If one is written to or cut short in place, the next read throws IoError naming it: the checks made at opening
// may no longer hold.
class TokenFile {
  public:
    // Throws UserError naming file, offset, what was found and what is wanted.
    explicit TokenFile(const std::filesystem::path& path);
    // Tokens from memory, after the same checks. `name` is for errors; no such file need exist.
    TokenFile(std::filesystem::path name, TokenMemory memory);

    size_t size() const { return size_; }
    // Tokens [begin, begin + count) and one mask byte for each: bits kMaskTarget and kMaskDocumentStart. Without a mask
    // every token is a target, and token 0 starts the only document. begin + count <= size().
    void read(size_t begin, size_t count, uint32_t* tokens, uint8_t* bits) const;
    void read_mask(size_t begin, size_t count, uint8_t* bits) const;  // the mask alone
    bool has_mask() const { return has_mask_; }
    const std::filesystem::path& path() const { return path_; }
    size_t token_bytes() const { return token_bytes_; }          // 2 or 4
    uint32_t max_token() const { return max_token_; }            // 0 for an empty file
    size_t max_token_index() const { return max_token_index_; }  // where it first occurs, for errors about vocabularies
    size_t target_count() const { return target_count_; }
    size_t row_tokens() const { return row_tokens_; }                     // T of a file made of rows; 0: a stream
    const std::optional<TokenOrigin>& origin() const { return origin_; }  // nothing when the file does not say
    // ids()[i]: whether id i occurs; up to max_token(). Reads every token.
    std::vector<bool> ids() const;
    // A checksum of all tokens and mask bits. Reads everything.
    uint64_t content_hash() const;

  private:
    void read_tokens(size_t begin, size_t count, uint32_t* tokens) const;
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

// Index at which a row's padding begins: a final run of one repeated token, none of it a target. Returns tokens.size()
// if there is no padding. The row is of a file that is made of rows; bits are as TokenFile::read gives them.
size_t padding_begin(std::span<const uint32_t> tokens, std::span<const uint8_t> bits);

}  // namespace slab::data
