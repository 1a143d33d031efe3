// Bytes to ids and back. The one thing to keep right: a char may be signed, an id never is.
#include "data/byte_tokenizer.h"

namespace slab::data {
namespace {

constexpr std::string_view end_of_text_spelling = "<|endoftext|>";

void append_bytes(std::string_view text, std::vector<uint32_t>& tokens) {
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
}

}  // namespace

std::vector<uint32_t> ByteTokenizer::encode(std::string_view text) {
    std::vector<uint32_t> tokens;
    tokens.reserve(text.size());
    append_bytes(text, tokens);
    return tokens;
}

std::string ByteTokenizer::decode(std::span<const uint32_t> tokens) {
    return BytesAsTokens().decode(tokens);
}

std::vector<uint32_t> BytesAsTokens::encode(std::string_view text, SpecialTokens special) const {
    std::vector<uint32_t> tokens;
    tokens.reserve(text.size());
    while (special == SpecialTokens::parse) {
        const size_t at = text.find(end_of_text_spelling);
        if (at == std::string_view::npos) break;
        append_bytes(text.substr(0, at), tokens);
        tokens.push_back(ByteTokenizer::end_of_text);
        text.remove_prefix(at + end_of_text_spelling.size());
    }
    append_bytes(text, tokens);
    return tokens;
}

std::string BytesAsTokens::decode(std::span<const uint32_t> tokens, bool show_special) const {
    std::string text;
    text.reserve(tokens.size());
    for (const uint32_t id : tokens) {
        if (id < 256) text.push_back(static_cast<char>(id));
        if (show_special && id == ByteTokenizer::end_of_text) text += end_of_text_spelling;
    }
    return text;
}

std::optional<uint32_t> BytesAsTokens::id_of(std::string_view special_token) const {
    if (special_token == end_of_text_spelling) return ByteTokenizer::end_of_text;
    return {};
}

std::string BytesAsTokens::description() const {
    return "bytes, " + std::to_string(ByteTokenizer::vocabulary_size) + " tokens (0 to 255 the bytes, " +
           std::to_string(ByteTokenizer::end_of_text) + " after each document)";
}

}  // namespace slab::data
