// A tokenizer with predictable answers: ids 0 to 255 are the bytes, special tokens follow in the order given.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace slab::test {

class FakeTokenizer final : public data::Tokenizer {
  public:
    std::vector<std::string> specials = {"<eos>"};  // ids from 256 on
    std::string eos_text = "<eos>", bos_text, jinja;
    std::string tool_use;
    mutable data::ChatFiles files;
    bool with_bos = false;

    std::vector<uint32_t> encode(std::string_view text, data::SpecialTokens special) const override {
        std::vector<uint32_t> tokens;
        for (size_t at = 0; at < text.size();) {
            size_t length = 1;
            uint32_t token = static_cast<unsigned char>(text[at]);
            for (size_t i = 0; special == data::SpecialTokens::parse && i < specials.size(); ++i)
                if (text.substr(at).starts_with(specials[i])) {
                    length = specials[i].size();
                    token = static_cast<uint32_t>(256 + i);
                }
            tokens.push_back(token);
            at += length;
        }
        return tokens;
    }
    std::string decode(std::span<const uint32_t> tokens, bool show_special = false) const override {
        std::string text;
        for (const uint32_t token : tokens) {
            if (token < 256) text.push_back(static_cast<char>(token));
            if (token >= 256 && show_special) text += specials.at(token - 256);
        }
        return text;
    }
    size_t vocabulary_size() const override { return 256 + specials.size(); }
    std::optional<uint32_t> id_of(std::string_view spelling) const override {
        for (size_t i = 0; i < specials.size(); ++i)
            if (specials[i] == spelling) return static_cast<uint32_t>(256 + i);
        return std::nullopt;
    }
    std::optional<uint32_t> bos() const override { return id_of(bos_text); }
    std::optional<uint32_t> eos() const override { return id_of(eos_text); }
    bool adds_bos() const override { return with_bos; }
    const data::ChatFiles& chat() const override {
        files = {.from = "the test's template", .standard = jinja};
        if (!tool_use.empty()) files.tool_use = tool_use;
        for (const auto& [name, text] : {std::pair{"bos_token", bos_text}, {"eos_token", eos_text}})
            if (!text.empty()) files.special_tokens[name] = text;
        return files;
    }
    std::string description() const override { return "bytes and special tokens of a test"; }
};

inline FakeTokenizer chatml_tokenizer() {
    FakeTokenizer tokenizer;
    tokenizer.specials = {"<eos>", "<|im_start|>", "<|im_end|>"};
    return tokenizer;
}
inline FakeTokenizer llama3_tokenizer() {
    FakeTokenizer tokenizer;
    tokenizer.specials = {"<|end_of_text|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
                          "<|eot_id|>"};
    tokenizer.eos_text = "<|end_of_text|>";
    tokenizer.bos_text = "<|begin_of_text|>";
    tokenizer.with_bos = true;
    return tokenizer;
}

}  // namespace slab::test
