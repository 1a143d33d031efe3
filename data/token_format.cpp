// Names and headers of token files and masks.
#include "data/token_format.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <initializer_list>

#include "data/base/input_file.h"

namespace slab::data {
namespace fs = std::filesystem;
static_assert(std::endian::native == std::endian::little, "headers and tokens are read as they are, little-endian");

namespace {

// Places in the header, in words of 4 bytes.
constexpr size_t kOriginVocabulary = 4, kOriginFingerprint = 5, kOriginMark = 7, kOriginName = 8;
constexpr int32_t kOriginMagic = 0x6b6e6574;
constexpr size_t kLongestNameBytes = 511;

bool begins_with(const fs::path& path, std::initializer_list<int32_t> magics) {
    int32_t word = 0;
    const InputFile file(path);
    if (file.size_bytes() < sizeof word) return false;
    file.read(0, &word, sizeof word, "first bytes");
    return std::find(magics.begin(), magics.end(), word) != magics.end();
}

}  // namespace

fs::path mask_path_for(const fs::path& token_path) {
    fs::path mask = token_path;
    if (mask.extension() == ".bin") return mask.replace_extension(".mask");
    return mask += ".mask";
}

bool begins_as_token_file(const fs::path& path) {
    return begins_with(path, {kTokenMagicUint16, kTokenMagicUint32});
}
bool begins_as_mask_file(const fs::path& path) {
    return begins_with(path, {kMaskMagic});
}

std::optional<TokenOrigin> origin_in(const TokenHeader& header) {
    if (header[kOriginMark] != kOriginMagic) return {};
    TokenOrigin origin;
    std::memcpy(&origin.fingerprint, &header[kOriginFingerprint], sizeof origin.fingerprint);
    origin.vocabulary_size = static_cast<uint32_t>(header[kOriginVocabulary]);
    const char* const name = reinterpret_cast<const char*>(&header[kOriginName]);
    origin.name.assign(name, std::find(name, name + kLongestNameBytes, '\0'));
    return origin;
}

void put_origin(const TokenOrigin& origin, TokenHeader& header) {
    header[kOriginMark] = kOriginMagic;
    header[kOriginVocabulary] = static_cast<int32_t>(origin.vocabulary_size);
    std::memcpy(&header[kOriginFingerprint], &origin.fingerprint, sizeof origin.fingerprint);
    std::memcpy(&header[kOriginName], origin.name.data(), std::min(origin.name.size(), kLongestNameBytes));
}

}  // namespace slab::data
