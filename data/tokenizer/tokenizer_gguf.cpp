// A GGUF file's vocabulary is a list of spellings by id, each with a type. Special tokens are among them.
#include "data/tokenizer/tokenizer_gguf.h"

#include <initializer_list>
#include <utility>

#include "data/base/display.h"
#include "data/base/error.h"
#include "data/tokenizer/bpe_tokenizer.h"

namespace slab::data {
namespace {

// llama.cpp's numbers. Tokens of other types (unknown, byte) are ordinary here.
enum TokenType : int64_t { control = 3, user_defined = 4, unused = 5 };

constexpr char kOwnTokensHint[] = "make token files with the model's own tokenizer, in llm.c's format";

[[noreturn]] void fail(const GgufFile& file, ErrorText error) {
    error.subject = file.path().string();
    throw UserError(error);
}

// Files from before 2024-04-29 name no pre-tokenizer ("default" or no key at all); then the architecture may tell.
PreTokenizerKind pre_tokenizer_of(const GgufFile& file, size_t tokens) {
    const std::string name = file.text("tokenizer.ggml.pre", "default");
    if (name == "gpt-2") return PreTokenizerKind::gpt2;
    if (name == "llama-bpe" || name == "llama3" || name == "llama-v3") return PreTokenizerKind::llama3;
    if (name == "qwen2" || name == "deepseek-r1-qwen") return PreTokenizerKind::qwen2;
    if (name == "smollm") return PreTokenizerKind::smollm;
    const std::string architecture = file.text("general.architecture", "");
    constexpr size_t llama3_tokens = 128256;
    if (name == "default") {
        if (architecture == "gpt2") return PreTokenizerKind::gpt2;
        if (architecture == "qwen2" || architecture == "qwen3") return PreTokenizerKind::qwen2;
        if (architecture == "llama" && tokens == llama3_tokens) return PreTokenizerKind::llama3;
    }
    fail(file, {.given = "tokenizer.ggml.pre is " + quote(name) +
                         (name == "default" ? " with architecture " + quote(architecture) : "") +
                         ", which is not implemented",
                .wanted = "gpt-2, llama-bpe, qwen2 or smollm",
                .hint = std::string("convert the model again with a recent llama.cpp, or ") + kOwnTokensHint});
}

std::optional<uint32_t> token_id(const GgufFile& file, const char* key, size_t tokens) {
    if (!file.has(key)) return {};
    const int64_t id = file.integer(key);
    if (id < 0 || static_cast<uint64_t>(id) >= tokens)
        fail(file, {.given = std::string(key) + " is " + std::to_string(id),
                    .wanted = "one of the " + std::to_string(tokens) + " tokens"});
    return static_cast<uint32_t>(id);
}

// The file's templates; the special tokens by the names that templates have for them.
ChatFiles chat_files_of(const GgufFile& file, const std::vector<std::string>& tokens) {
    ChatFiles chat;
    chat.standard = file.text("tokenizer.chat_template", "");
    chat.tool_use = file.text("tokenizer.chat_template.tool_use", "");
    if (!chat.standard.empty()) chat.from = file.path().string() + ", tokenizer.chat_template";
    for (const auto& [name, key] :
         std::initializer_list<std::pair<const char*, const char*>>{{"bos_token", "tokenizer.ggml.bos_token_id"},
                                                                    {"eos_token", "tokenizer.ggml.eos_token_id"},
                                                                    {"unk_token", "tokenizer.ggml.unknown_token_id"},
                                                                    {"sep_token", "tokenizer.ggml.seperator_token_id"},
                                                                    {"pad_token", "tokenizer.ggml.padding_token_id"},
                                                                    {"mask_token", "tokenizer.ggml.mask_token_id"}})
        if (const auto id = token_id(file, key, tokens.size())) chat.special_tokens[name] = tokens[*id];
    return chat;
}

}  // namespace

BpeTokenizerParts read_gguf_parts(const GgufFile& file) {
    const std::string model = file.text("tokenizer.ggml.model", "none");
    if (model != "gpt2")
        fail(file, {.given = "tokenizer.ggml.model is " + quote(model) + ", which is not implemented",
                    .wanted = "gpt2, byte-level BPE",
                    .hint = kOwnTokensHint});
    const auto* tokens = file.texts("tokenizer.ggml.tokens");
    const auto* merges = file.texts("tokenizer.ggml.merges");
    const auto* types = file.integers("tokenizer.ggml.token_type");
    if (tokens == nullptr || tokens->empty())
        fail(file, {.given = "has no tokenizer.ggml.tokens", .wanted = "the vocabulary"});
    if (merges == nullptr) fail(file, {.given = "has no tokenizer.ggml.merges", .wanted = "those of the vocabulary"});
    if (types != nullptr && types->size() != tokens->size())
        fail(file, {.given = "tokenizer.ggml.token_type has " + std::to_string(types->size()) + " entries for " +
                             std::to_string(tokens->size()) + " tokens",
                    .wanted = "one each"});

    BpeTokenizerParts parts;
    parts.source = file.path().string();
    parts.pre_tokenizer = pre_tokenizer_of(file, tokens->size());
    parts.vocabulary.ignore_merges = parts.pre_tokenizer == PreTokenizerKind::llama3;
    parts.nfc = parts.pre_tokenizer == PreTokenizerKind::qwen2;
    parts.vocabulary.spellings = *tokens;
    parts.bos = token_id(file, "tokenizer.ggml.bos_token_id", tokens->size());
    parts.eos = token_id(file, "tokenizer.ggml.eos_token_id", tokens->size());
    for (uint32_t id = 0; id < tokens->size(); ++id) {
        const int64_t type = types == nullptr ? 0 : (*types)[id];
        const bool special = type == control || id == parts.bos || id == parts.eos;
        if (type == unused) parts.vocabulary.spellings[id].clear();
        if (special || type == user_defined)
            parts.added.push_back({.text = (*tokens)[id], .id = id, .special = special});
    }
    parts.vocabulary.merges.reserve(merges->size());
    for (const std::string& merge : *merges) {
        const auto halves = split_merge(merge);
        if (!halves)
            fail(file, {.given = "tokenizer.ggml.merges: entry " + std::to_string(parts.vocabulary.merges.size()) +
                                 " is " + quote(merge),
                        .wanted = "two tokens with a space between"});
        parts.vocabulary.merges.push_back(*halves);
    }
    const bool add_bos = file.boolean("tokenizer.ggml.add_bos_token", parts.pre_tokenizer == PreTokenizerKind::llama3);
    parts.adds_bos = add_bos && parts.bos;
    parts.chat = chat_files_of(file, *tokens);
    return parts;
}

std::unique_ptr<Tokenizer> open_tokenizer_gguf(const GgufFile& file) {
    return std::make_unique<BpeTokenizer>(read_gguf_parts(file));
}

}  // namespace slab::data
