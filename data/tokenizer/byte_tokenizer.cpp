// Bytes to ids and back. A char may be signed and an id never is, so each goes through unsigned char.
#include "data/tokenizer/byte_tokenizer.h"

namespace slab::data {
namespace {

constexpr std::string_view kEndOfTextSpelling = "<|endoftext|>";

void append_bytes(std::string_view text, std::vector<uint32_t>& tokens) {
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
}

}  // namespace

std::vector<uint32_t> ByteTokenizer::encode(std::string_view text, SpecialTokens special) const {
    std::vector<uint32_t> tokens;
    tokens.reserve(text.size());
    while (special == SpecialTokens::parse) {
        const size_t at = text.find(kEndOfTextSpelling);
        if (at == std::string_view::npos) break;
        append_bytes(text.substr(0, at), tokens);
        tokens.push_back(kEndOfText);
        text.remove_prefix(at + kEndOfTextSpelling.size());
    }
    append_bytes(text, tokens);
    return tokens;
}

std::string ByteTokenizer::decode(std::span<const uint32_t> tokens, bool show_special) const {
    std::string text;
    text.reserve(tokens.size());
    for (const uint32_t id : tokens) {
        if (id < 256) text.push_back(static_cast<char>(id));
        if (show_special && id == kEndOfText) text += kEndOfTextSpelling;
    }
    return text;
}

std::optional<uint32_t> ByteTokenizer::id_of(std::string_view special_token) const {
    if (special_token == kEndOfTextSpelling) return kEndOfText;
    return {};
}

std::string ByteTokenizer::description() const {
    return "bytes, " + std::to_string(kVocabularySize) + " tokens (0 to 255 the bytes, " + std::to_string(kEndOfText) +
           " after each document)";
}

}  // namespace slab::data
