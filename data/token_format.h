// The format of token files, llm.c's, and of the masks beside them.
//
// F.bin:  256 little-endian int32 of header, then the tokens. header[0] magic, [1] version, [2] token count, rest 0:
//         20240520 with version 1: tokens are uint16;  20240801 with version 7: tokens are uint32.
//         (Source: karpathy/llm.c, dev/data/data_common.py, the "gpt-2" and the "llama-3" model descriptions.)
// F.mask: optional, our own. A header of the same form, with magic 0x6d626c73 (the bytes "slbm"), version 1 and the
// same
//         count. Then one byte a token: bit 0 = this token is a target, bit 1 = a document starts here, others 0.
//         Without a mask every token is a target and the whole file is one document.
//         header[3] is the row length T. 0 is a stream, which rows of any length may be cut from. Else the file is made
//         of rows of T tokens, each of which starts a document. One more token follows, the last row's last target.
//         header[4..] may name the tokenizer that made the file. Then word 7 is 0x6b6e6574 (the bytes
//         "tenk"), and word 4 is the vocabulary's size. Words 5 and 6 are the low and the high half of the tokenizer's
//         fingerprint. Words 8 to 135 are its name in UTF-8, padded with bytes of 0. The mask has this, as F.bin's
//         header is llm.c's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace slab::data {

constexpr size_t kTokenHeaderInt32s = 256;
constexpr size_t kTokenHeaderBytes = kTokenHeaderInt32s * sizeof(int32_t);
constexpr int32_t kTokenMagicUint16 = 20240520, kTokenVersionUint16 = 1;
constexpr int32_t kTokenMagicUint32 = 20240801, kTokenVersionUint32 = 7;
constexpr int32_t kMaskMagic = 0x6d626c73, kMaskVersion = 1;
constexpr uint8_t kMaskTarget = 1, kMaskDocumentStart = 2;
constexpr size_t kMaxTokensPerFile = INT32_MAX;  // the count is an int32

using TokenHeader = std::array<int32_t, kTokenHeaderInt32s>;

// dir/F.bin -> dir/F.mask; any other name gets `.mask` appended.
std::filesystem::path mask_path_for(const std::filesystem::path& token_path);

// Whether the file begins with a magic number of token files, or of masks. Throws IoError when it cannot be read.
bool begins_as_token_file(const std::filesystem::path& path);
bool begins_as_mask_file(const std::filesystem::path& path);

// The tokenizer that made a token file.
struct TokenOrigin {
    std::string name;  // the name that its user gave; cut to 511 bytes in the file
    uint32_t vocabulary_size = 0;
    uint64_t fingerprint = 0;  // Tokenizer::fingerprint() of the ids that occur in the file
};
// Read and write the origin in a mask's header. Nothing when it has none.
std::optional<TokenOrigin> origin_in(const TokenHeader& header);
void put_origin(const TokenOrigin& origin, TokenHeader& header);

}  // namespace slab::data
