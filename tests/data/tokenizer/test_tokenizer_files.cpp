// Opening tokenizers: tokenizer.json and the files beside it, GGUF, and every kind that is refused by name. (Broken
// files: test_hostile_files.cpp.)
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "data/base/json_file.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/tokenizer_gguf.h"
#include "data/tokenizer/tokenizer_json_writer.h"
#include "tests/gguf_builder.h"
#include "tests/temporary_files.h"

namespace {
namespace fs = std::filesystem;
using namespace slab::data;
using namespace slab::test;
using nlohmann::json;
using Ids = std::vector<uint32_t>;

json fixture(const std::string& kind) {
    return read_json_file(fs::path("tests/tokenizers") / kind / "tokenizer.json");
}

std::string opening_error(const fs::path& from) {
    return error_of([&] { open_tokenizer(from); });
}

// tokenizer.json of `kind`, changed, in `dir`.
void put_changed(const FreshDirectory& dir, const std::string& kind, const std::function<void(json&)>& change) {
    json document = fixture(kind);
    change(document);
    put(dir.path / "tokenizer.json", document.dump());
}

// The fixture as llama.cpp's converter writes it.
GgufBuilder as_gguf(const std::string& kind, const std::string& pre) {
    const json document = fixture(kind);
    std::vector<std::string> tokens(document["model"]["vocab"].size()), merges;
    std::vector<int32_t> types(tokens.size(), 1);
    for (const auto& [spelling, id] : document["model"]["vocab"].items()) tokens[id.get<size_t>()] = spelling;
    for (const json& added : document["added_tokens"]) {
        const size_t id = added["id"];
        if (id >= tokens.size()) {
            tokens.resize(id + 1);
            types.resize(id + 1);
        }
        tokens[id] = added["content"];
        types[id] = added["special"] == true ? 3 : 4;
    }
    tokens.push_back("[PAD]");
    types.push_back(5);
    for (const json& merge : document["model"]["merges"])
        merges.push_back(merge.is_string() ? merge.get<std::string>()
                                           : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
    GgufBuilder file;
    file.set("general.architecture", "llama");
    file.set("tokenizer.ggml.model", "gpt2");
    if (!pre.empty()) file.set("tokenizer.ggml.pre", pre);
    file.set("tokenizer.ggml.tokens", tokens);
    file.set("tokenizer.ggml.token_type", types);
    file.set("tokenizer.ggml.merges", merges);
    file.set("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(document["added_tokens"][0]["id"].get<size_t>()));
    file.set("tokenizer.ggml.bos_token_id",
             static_cast<uint32_t>(document["added_tokens"][kind == "gpt2" ? 0 : 1]["id"].get<size_t>()));
    file.set("tokenizer.chat_template", "a template");
    return file;
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("tokenizer files: what stands beside tokenizer.json") {
        const auto llama = open_tokenizer("tests/tokenizers/llama3");
        CHECK(llama->adds_bos());
        CHECK(llama->bos() == llama->id_of("<|begin_of_text|>"));
        CHECK(llama->eos() == llama->id_of("<|end_of_text|>"));
        CHECK(llama->decode(Ids{*llama->eos()}).empty());
        CHECK(llama->vocabulary_size() == 625);
        CHECK(llama->chat_template().empty());
        CHECK(llama->description() ==
              "byte-level BPE, 625 tokens (Llama 3 pre-tokenizer), from tests/tokenizers/llama3/tokenizer.json");
        const auto qwen = open_tokenizer("tests/tokenizers/qwen2");
        CHECK_FALSE(qwen->adds_bos());
        CHECK_FALSE(qwen->bos().has_value());
        CHECK(has(qwen->description(), "(Qwen2 pre-tokenizer, NFC)"));
        CHECK(qwen->decode(Ids{*qwen->id_of("<tool_call>")}) == "<tool_call>");  // added, and not special

        FreshDirectory dir;
        put_changed(dir, "smollm", [](json&) {});
        const fs::path config = dir.path / "tokenizer_config.json";
        CHECK_FALSE(open_tokenizer(dir.path)->eos().has_value());
        CHECK_FALSE(open_tokenizer(dir.path / "tokenizer.json")->adds_bos());
        // Where the tokenizer's own files name no end of text, generation's counts; a number that is no id does not.
        put(dir.path / "config.json", R"({"eos_token_id": 1000000, "bos_token_id": 0})");
        CHECK_FALSE(open_tokenizer(dir.path)->eos().has_value());
        put(dir.path / "generation_config.json", R"({"eos_token_id": [2, 0]})");
        CHECK(open_tokenizer(dir.path)->eos() == 2);
        put(dir.path / "config.json", R"({"eos_token_id": 0, "bos_token_id": 0})");
        CHECK(open_tokenizer(dir.path / "tokenizer.json")->eos() == 0);
        CHECK_FALSE(open_tokenizer(dir.path)->bos().has_value());  // a template's bos_token would stay empty, too
        CHECK(
            has(open_tokenizer(dir.path)->description(), "end of text, <|endoftext|>, is eos_token_id of config.json"));
        for (const char* none : {"null", "[]", "-1", "\"x\"", "1.5", "[null]", "1000000000000"}) {
            put(dir.path / "config.json", std::string("{\"eos_token_id\": ") + none + "}");
            CHECK(open_tokenizer(dir.path)->eos() == 2);
        }
        put(dir.path / "config.json", R"({"eos_token_id": 0})");
        put(dir.path / "special_tokens_map.json", R"({"eos_token": "<|im_end|>", "bos_token": null})");
        CHECK(open_tokenizer(dir.path)->eos() == 2);
        put(config, R"({"eos_token": {"content": "<|im_start|>", "lstrip": false}, "bos_token": "<|endoftext|>",
                        "add_bos_token": true, "chat_template": "{{ messages }}"})");
        CHECK(open_tokenizer(dir.path)->eos() == 2);  // special_tokens_map.json overrides, as in transformers
        fs::remove(dir.path / "special_tokens_map.json");
        const auto changed = open_tokenizer(dir.path);
        CHECK(changed->eos() == 1);
        CHECK(changed->bos() == 0);
        CHECK_FALSE(changed->adds_bos());  // the post-processor's to say
        CHECK(changed->chat_template() == "{{ messages }}");
        put(config,
            R"({"chat_template": [{"name": "default", "template": "y"}, {"name": "tool_use", "template": "x"}]})");
        CHECK(open_tokenizer(dir.path)->chat_template() == "y");
        CHECK(open_tokenizer(dir.path)->chat().tool_use == "x");
        put(dir.path / "chat_template.jinja", "from its own file");
        CHECK(open_tokenizer(dir.path / "tokenizer.json")->chat_template() == "from its own file");
        put(config, R"({"eos_token": "!"})");  // an ordinary token becomes a special one
        const auto marked = open_tokenizer(dir.path);
        CHECK(marked->decode(Ids{*marked->id_of("!")}).empty());
        put(config, R"({"eos_token": "<nowhere>"})");
        CHECK(
            has(opening_error(dir.path), "tokenizer_config.json: \"eos_token\" is \"<nowhere>\"; wanted a token of "));
        put(config, R"({"eos_token": 7})");
        CHECK(has(opening_error(dir.path), "\"eos_token\" is 7; wanted text"));

        put(dir.path / "special_tokens_map.json", "{}");
        CHECK(tokenizer_files(dir.path) == std::vector<fs::path>{dir.path / "tokenizer.json", config,
                                                                 dir.path / "special_tokens_map.json",
                                                                 dir.path / "chat_template.jinja"});
    }

    TEST_CASE("tokenizer files: bytes, and what is no tokenizer") {
        const auto bytes = open_tokenizer("bytes");
        CHECK(bytes->vocabulary_size() == 260);
        CHECK(bytes->eos() == 256);
        CHECK(bytes->encode("a<|endoftext|>b", SpecialTokens::parse) == Ids{97, 256, 98});
        CHECK(bytes->encode("<|e", SpecialTokens::parse) == Ids{60, 124, 101});
        CHECK(bytes->encode("<|endoftext|>", SpecialTokens::as_text).size() == 13);
        CHECK(bytes->decode(Ids{97, 256, 98, 259}) == "ab");
        CHECK(bytes->decode(Ids{97, 256, 98, 259}, true) == "a<|endoftext|>b");
        CHECK(bytes->id_of("<|endoftext|>") == 256);
        std::vector<bool> two(300);
        two[65] = two[256] = true;
        CHECK(bytes->fingerprint(two) == 0x1160c6d672436636u);  // token files hold it
        CHECK(bytes->encode_parallel("xyz", SpecialTokens::parse, 4) == Ids{120, 121, 122});

        FreshDirectory dir;
        CHECK(has(opening_error(dir.path / "none"), "no such file or directory"));
        CHECK(has(opening_error(dir.path), "has no tokenizer.json"));
        put(dir.path / "tokenizer.model", "x");
        CHECK(has(opening_error(dir.path), "has tokenizer.model but no tokenizer.json"));
        put(dir.path / "tokenizer.json", "[]");
        CHECK(has(opening_error(dir.path), "tokenizer.json: found []; wanted an object with the key"));
        put(dir.path / "tokenizer.json", "{}");
        CHECK(has(opening_error(dir.path), "tokenizer.json: found null; wanted an object with the key"));
    }

    TEST_CASE("tokenizer files: what would change an id is refused by name") {
        struct Refusal {
            const char* kind;
            std::function<void(json&)> change;
            const char* message;
        };
        const json nothing;
        const std::vector<Refusal> refusals = {
            {"gpt2", [](json& d) { d["model"]["type"] = "Unigram"; }, "model of type \"Unigram\" is not implemented"},
            {"gpt2", [](json& d) { d["model"]["type"] = "WordPiece"; }, "WordPiece"},
            {"gpt2", [](json& d) { d["model"]["dropout"] = 0.1; }, "dropout"},
            {"gpt2", [](json& d) { d["model"]["byte_fallback"] = true; }, "byte_fallback"},
            {"gpt2", [](json& d) { d["model"]["end_of_word_suffix"] = "</w>"; }, "end_of_word_suffix (\"</w>\")"},
            {"gpt2", [](json& d) { d["model"]["continuing_subword_prefix"] = "##"; }, "continuing_subword_prefix"},
            {"gpt2",
             [](json& d) {
                 d["normalizer"] = {{"type", "NFKC"}};
             },
             "normalizer \"NFKC\""},
            {"gpt2",
             [](json& d) {
                 d["pre_tokenizer"] = {{"type", "Metaspace"}};
             },
             "Metaspace"},
            {"gpt2", [](json& d) { d["pre_tokenizer"] = nullptr; }, "without pre-tokenizer"},
            {"gpt2", [](json& d) { d["pre_tokenizer"]["add_prefix_space"] = true; }, "add_prefix_space"},
            {"gpt2", [](json& d) { d["pre_tokenizer"]["use_regex"] = false; }, "without a regular expression"},
            {"gpt2",
             [](json& d) {
                 d["decoder"] = {{"type", "WordPiece"}};
             },
             "decoder \"WordPiece\""},
            {"gpt2", [](json& d) { d["added_tokens"][0]["single_word"] = true; }, "single_word of added token"},
            {"smollm", [](json& d) { d["pre_tokenizer"]["pretokenizers"][0]["individual_digits"] = false; }, "Digits"},
            {"llama3", [](json& d) { d["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\w+"; }, "\\\\w+"},
            {"llama3", [](json& d) { d["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"; }, "Removed"},
            {"llama3", [](json& d) { d["pre_tokenizer"]["pretokenizers"][0]["invert"] = true; }, "\"invert\":true"},
            {"llama3", [](json& d) { d["pre_tokenizer"]["pretokenizers"].clear(); }, "pre-tokenizer"},
            {"gpt2", [](json& d) { d["model"]["vocab"]["x1"] = 5; }, "have the same id 5"},
            {"gpt2", [](json& d) { d["model"]["vocab"]["x1"] = 4000000000u; }, "ids nearly without gaps"},
            {"gpt2", [](json& d) { d["model"]["vocab"]["x1"] = -1; }, "wanted a whole number"},
            {"gpt2", [](json& d) { d["model"]["vocab"]["x1"] = 1e3; }, "wanted a whole number"},
            {"gpt2", [](json& d) { d["model"]["vocab"].clear(); }, "wanted an object of tokens and ids"},
            {"gpt2", [](json& d) { d["model"]["merges"][7] = "a"; }, "merge 7 is \"a\""},
            {"gpt2", [](json& d) { d["model"]["merges"][7] = "a b c"; }, "merge 7 is \"a b c\""},
            {"llama3",
             [](json& d) {
                 d["model"]["merges"][7] = {"a", "b", "c"};
             },
             "merge 7"},
            {"llama3",
             [](json& d) {
                 d["model"]["merges"][7] = {"q", "@@"};
             },
             "merge 7 (\"q\", \"@@\") needs the token \"@@\""},
            {"llama3",
             [](json& d) {
                 d["model"]["merges"][7] = {"q", "$"};
             },
             "needs the token \"q$\""},
            {"gpt2", [](json& d) { d["added_tokens"][0]["id"] = 3; }, "have the same id 3"},
            {"gpt2", [](json& d) { d["added_tokens"][0]["id"] = 99999999; }, "ids nearly without gaps"},
            {"gpt2", [](json& d) { d["added_tokens"][0]["content"] = std::string(2000, 'x'); }, "2000 bytes"},
            {"gpt2", [](json& d) { d["added_tokens"] = 7; }, "wanted a list"},
            {"gpt2", [](json& d) { d["added_tokens"][0].erase("content"); }, "\"content\" is null; wanted text"},
            {"llama3", [](json& d) { d["post_processor"]["processors"][1]["single"][0]["SpecialToken"]["id"] = "?!"; },
             "no token"},
        };
        for (const Refusal& refusal : refusals) {
            FreshDirectory dir;
            put_changed(dir, refusal.kind, refusal.change);
            const std::string error = opening_error(dir.path);
            CAPTURE(error);
            CHECK(has(error, refusal.message));
            CHECK(has(error, "tokenizer.json") != (std::string(refusal.message) == "2000 bytes"));
        }
    }

    TEST_CASE("tokenizer files: spellings of the same that older and newer files have") {
        const std::string text = "It's  12 o'clock, isn't it?\n\n";
        const auto ids = [&](const fs::path& from) { return open_tokenizer(from)->encode(text, SpecialTokens::parse); };
        const std::vector<std::pair<const char*, std::function<void(json&)>>> changes = {
            {"gpt2", [](json& d) { d["model"].erase("type"); }},
            {"gpt2", [](json& d) { d["pre_tokenizer"].erase("use_regex"); }},
            {"gpt2",
             [](json& d) {
                 d["normalizer"] = {{"type", "Sequence"}, {"normalizers", json::array()}};
             }},
            {"gpt2",
             [](json& d) {
                 for (json& merge : d["model"]["merges"]) {
                     const auto both = merge.get<std::string>();
                     merge = {both.substr(0, both.find(' ')), both.substr(both.find(' ') + 1)};
                 }
             }},
            {"gpt2",
             [](json& d) {
                 const char* pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
                 d["pre_tokenizer"] = fixture("llama3")["pre_tokenizer"];
                 d["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = pattern;
             }},
            {"qwen2",
             [](json& d) {
                 d["normalizer"] = {{"type", "Sequence"}, {"normalizers", {d["normalizer"]}}};
             }},
            {"llama3", [](json& d) { d["decoder"] = nullptr; }},
        };
        for (const auto& [kind, change] : changes) {
            FreshDirectory dir;
            put_changed(dir, kind, change);
            CHECK(ids(dir.path) == ids(fs::path("tests/tokenizers") / kind));
        }
    }

    TEST_CASE("tokenizer files: a GGUF file's vocabulary gives the same ids") {
        const std::vector<std::pair<std::string, std::string>> pairs = {
            {"gpt2", "gpt-2"}, {"llama3", "llama-bpe"}, {"qwen2", "qwen2"}, {"smollm", "smollm"}};
        for (const auto& [kind, pre] : pairs) {
            CAPTURE(kind);
            FreshDirectory dir;
            // Where the name does not tell the kind of a file, its content does, as with weights.
            const fs::path file = dir.path / (kind == "gpt2" ? "model-q4_0" : "model.gguf");
            put(file, as_gguf(kind, pre).file());
            const auto from_gguf = open_tokenizer(file);
            const auto from_json = open_tokenizer(fs::path("tests/tokenizers") / kind);
            const json expected = read_json_file(fs::path("tests/tokenizers") / kind / "expected.json");
            for (const json& one : expected["cases"]) {
                const auto text = one["text"].get<std::string>();
                CHECK(from_gguf->encode(text, SpecialTokens::as_text) == one["ids"].get<Ids>());
                CHECK(from_gguf->encode(text, SpecialTokens::parse) == from_json->encode(text, SpecialTokens::parse));
            }
            CHECK(from_gguf->vocabulary_size() == from_json->vocabulary_size() + 1);
            const auto fingerprint = [](const Tokenizer& tokenizer, size_t first, size_t end) {
                std::vector<bool> ids(end);
                std::fill(ids.begin() + static_cast<std::ptrdiff_t>(first), ids.end(), true);
                return tokenizer.fingerprint(ids);
            };
            const size_t all = from_json->vocabulary_size();
            const uint64_t whole = fingerprint(*from_json, 0, all);
            CHECK(fingerprint(*from_gguf, 0, all) == whole);
            CHECK(fingerprint(*from_gguf, 0, all + 1) == whole);  // what is filled up says nothing
            CHECK(fingerprint(*from_json, 0, all - 1) != whole);
            CHECK(fingerprint(*from_json, 1, all) != whole);
            for (const auto& [other, unused] : pairs)
                if (other != kind)
                    CHECK(fingerprint(*open_tokenizer(fs::path("tests/tokenizers") / other), 0, all) != whole);
            CHECK(from_gguf->eos() == from_gguf->id_of(kind == "llama3" ? "<|end_of_text|>" : "<|endoftext|>"));
            CHECK(from_gguf->adds_bos() == (kind == "llama3"));
            CHECK(from_gguf->chat_template() == "a template");
            CHECK(from_gguf->decode(Ids{static_cast<uint32_t>(from_json->vocabulary_size())}, true).empty());
        }
    }

    TEST_CASE("tokenizer files: a GGUF file's tokenizer is written as files with the same ids") {
        const std::vector<std::pair<std::string, std::string>> pairs = {
            {"gpt2", "gpt-2"}, {"llama3", "llama-bpe"}, {"qwen2", "qwen2"}, {"smollm", "smollm"}};
        for (const auto& [kind, pre] : pairs) {
            CAPTURE(kind);
            const FreshDirectory dir;
            GgufBuilder builder = as_gguf(kind, pre);
            const auto end = static_cast<uint32_t>(fixture(kind)["added_tokens"][0]["id"].get<size_t>());
            builder.set("tokenizer.ggml.padding_token_id", end);
            builder.set("tokenizer.ggml.unknown_token_id", uint32_t{5});  // an ordinary token
            put(dir.path / "model.gguf", builder.file());
            const GgufFile file(dir.path / "model.gguf");
            REQUIRE(has_writable_tokenizer(file));
            put(dir.path / "tokenizer.json", tokenizer_json_of(file));
            put(dir.path / "tokenizer_config.json", tokenizer_config_json_of(file));
            const auto from_gguf = open_tokenizer(dir.path / "model.gguf"), written = open_tokenizer(dir.path);
            const json expected = read_json_file(fs::path("tests/tokenizers") / kind / "expected.json");
            for (const json& one : expected["cases"]) {
                const auto text = one["text"].get<std::string>();
                CHECK(written->encode(text, SpecialTokens::as_text) == one["ids"].get<Ids>());
                CHECK(written->encode(text, SpecialTokens::parse) == from_gguf->encode(text, SpecialTokens::parse));
            }
            CHECK(written->bos() == from_gguf->bos());
            CHECK(written->eos() == from_gguf->eos());
            CHECK(written->adds_bos() == (kind == "llama3"));
            CHECK(written->notes().empty());
            CHECK(written->chat_template() == "a template");
            const json config = read_json_file(dir.path / "tokenizer_config.json");
            CHECK(config["pad_token"] == config["eos_token"]);
            CHECK(!config.contains("unk_token"));
            // Every part is what transformers reads, as it writes it.
            const json ours = read_json_file(dir.path / "tokenizer.json"), theirs = fixture(kind);
            for (const char* part : {"normalizer", "pre_tokenizer"}) CHECK(ours[part] == theirs[part]);
            CHECK(ours["model"]["merges"].size() == theirs["model"]["merges"].size());
            CHECK(ours["model"]["ignore_merges"] == (kind == "llama3"));
        }
    }

    TEST_CASE("tokenizer files: GGUF files that are refused, and old ones that do not name their pre-tokenizer") {
        const auto error = [](const std::function<void(GgufBuilder&)>& change, const std::string& pre = "gpt-2") {
            FreshDirectory dir;
            GgufBuilder file = as_gguf("gpt2", pre);
            change(file);
            put(dir.path / "m.gguf", file.file());
            return opening_error(dir.path / "m.gguf");
        };
        const auto replace = [](const std::string& key, const auto& value) {
            return [key, value](GgufBuilder& file) {
                std::erase_if(file.values,
                              [&](const std::string& entry) { return entry.find(key) != std::string::npos; });
                file.set(key, value);
            };
        };
        const auto erase = [](const std::string& key) {
            return [key](GgufBuilder& file) {
                std::erase_if(file.values,
                              [&](const std::string& entry) { return entry.find(key) != std::string::npos; });
            };
        };
        const auto nothing = [](GgufBuilder&) {};
        CHECK(error(nothing).empty());
        CHECK(has(error(nothing, "deepseek-llm"), "tokenizer.ggml.pre is \"deepseek-llm\", which is not implemented"));
        CHECK(has(error(nothing, ""), "\"default\" with architecture \"llama\""));
        for (const char* architecture : {"gpt2", "qwen2", "qwen3"})
            CHECK(error(replace("general.architecture", std::string(architecture)), "").empty());
        CHECK(has(error(replace("tokenizer.ggml.model", std::string("llama"))), "tokenizer.ggml.model is \"llama\""));
        CHECK(has(error(erase("tokenizer.ggml.model")), "tokenizer.ggml.model is \"none\""));
        CHECK(has(error(erase("tokenizer.ggml.tokens")), "no tokenizer.ggml.tokens"));
        CHECK(has(error(erase("tokenizer.ggml.merges")), "no tokenizer.ggml.merges"));
        CHECK(has(error(replace("tokenizer.ggml.merges", std::vector<std::string>{"ab"})), "entry 0 is \"ab\""));
        CHECK(has(error(replace("tokenizer.ggml.merges", std::vector<std::string>{"a @@"})), "needs the token \"@@\""));
        CHECK(has(error(replace("tokenizer.ggml.token_type", std::vector<int32_t>{1, 2})), "has 2 entries for"));
        CHECK(has(error(replace("tokenizer.ggml.eos_token_id", uint32_t{5000})), "eos_token_id is 5000"));
    }
}
