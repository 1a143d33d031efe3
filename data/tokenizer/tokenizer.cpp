// Opens the tokenizer that a path names, by what lies there.
#include "data/tokenizer/tokenizer.h"

#include <algorithm>
#include <system_error>

#include "data/base/checksum.h"
#include "data/base/error.h"
#include "data/gguf/gguf.h"
#include "data/tokenizer/byte_tokenizer.h"
#include "data/tokenizer/tokenizer_gguf.h"
#include "data/tokenizer/tokenizer_json.h"

namespace slab::data {
namespace fs = std::filesystem;

std::vector<uint32_t> Tokenizer::encode_parallel(std::string_view text, SpecialTokens special, size_t) const {
    return encode(text, special);
}

// For tokenizers whose tokens are as long as their text: pieces between the ends of ranges are encoded one by one.
std::vector<uint32_t> Tokenizer::encode_placed(std::string_view text, std::span<const TextRange> plain,
                                               std::span<const size_t> places, std::vector<size_t>& token_at) const {
    std::vector<uint32_t> ids;
    std::vector<size_t> ends;  // of the tokens
    const auto add = [&](size_t begin, size_t end, SpecialTokens special) {
        for (const uint32_t id : encode(text.substr(begin, end - begin), special)) {
            ids.push_back(id);
            ends.push_back((ends.empty() ? 0 : ends.back()) + decode({&id, 1}, true).size());
        }
    };
    size_t done = 0;
    for (const TextRange& range : plain) {
        add(done, range.begin, SpecialTokens::parse);
        add(range.begin, range.end, SpecialTokens::as_text);
        done = range.end;
    }
    add(done, text.size(), SpecialTokens::parse);
    token_at.clear();
    for (const size_t place : places)
        token_at.push_back(static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), place) - ends.begin()));
    return ids;
}

uint64_t Tokenizer::fingerprint(const std::vector<bool>& ids) const {
    uint64_t hash = 0xcbf29ce484222325u;
    const auto add = [&](uint64_t word) { hash = checksum_step(hash, word); };
    for (uint32_t id = 0; id < std::min(ids.size(), vocabulary_size()); ++id) {
        if (!ids[id]) continue;
        const std::string text = decode({{id}}, true);
        if (text.empty()) continue;
        add(id);
        add(text.size());
        for (const char c : text) add(static_cast<unsigned char>(c));
    }
    return hash == 0 ? 1 : hash;
}

std::unique_ptr<Tokenizer> open_tokenizer(const fs::path& from) {
    if (from == "bytes") return std::make_unique<ByteTokenizer>();
    std::error_code error;
    const bool directory = fs::is_directory(from, error);
    if (!directory && !fs::exists(from, error))
        throw UserError({.subject = from.string(),
                         .given = "no such file or directory",
                         .wanted = "a tokenizer",
                         .hint = "give a Hugging Face directory, its tokenizer.json, a .gguf file, or the word bytes"});
    const fs::path file = directory ? from / "tokenizer.json" : from;
    if (directory && !fs::exists(file, error)) {
        const char* const hint =
            "with transformers, AutoTokenizer.from_pretrained(...).save_pretrained(...) writes one";
        for (const char* other : {"tokenizer.model", "spiece.model", "vocab.txt", "vocab.json"})
            if (fs::exists(from / other, error))
                throw UserError({.subject = from.string(),
                                 .given = std::string("has ") + other + " but no tokenizer.json",
                                 .wanted = "the latter",
                                 .hint = hint});
        throw UserError({.subject = from.string(), .given = "has no tokenizer.json", .hint = hint});
    }
    if (is_gguf_file(file)) return open_tokenizer_gguf(GgufFile(file));
    return open_tokenizer_json(file);
}

std::vector<fs::path> tokenizer_files(const fs::path& directory) {
    std::vector<fs::path> files;
    for (const char* name :
         {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
          "merges.txt", "tokenizer.model", "chat_template.jinja", "chat_template.json"}) {
        std::error_code error;
        if (fs::is_regular_file(directory / name, error)) files.push_back(directory / name);
    }
    return files;
}

}  // namespace slab::data
