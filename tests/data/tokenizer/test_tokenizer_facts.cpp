// One fact in several files: the ids are those of transformers 5.24, and contradictions are named.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/base/json_file.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/tokenizer_facts.h"
#include "tests/kernel_checks.h"
#include "tests/temporary_files.h"

using namespace slab::data;
using namespace slab::test;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

using Ids = std::vector<uint32_t>;

// A tokenizer of the kind, with other files beside it.
struct Files {
    FreshDirectory dir;
    uint32_t next = 0;  // the first free id
    explicit Files(const std::string& kind) {
        json document = read_json_file(fs::path("tests/tokenizers") / kind / "tokenizer.json");
        put(dir.path / "tokenizer.json", document.dump());
        next = static_cast<uint32_t>(open_tokenizer(dir.path)->vocabulary_size());
    }
    const Files& with(const char* name, const json& content) const {
        put(dir.path / name, content.dump());
        return *this;
    }
    const Files& with_config(const json& content) const { return with("tokenizer_config.json", content); }
    std::unique_ptr<Tokenizer> open() const { return open_tokenizer(dir.path); }
    std::string error() const {
        return error_of([&] { open(); });
    }
    // The ids of the new tokens in a text that has them.
    Ids new_ids(const std::string& text) const {
        Ids ids = open()->encode(text, SpecialTokens::parse);
        std::erase_if(ids, [&](uint32_t id) { return id < next; });
        return ids;
    }
};

json token(const std::string& text, bool special = true, bool strips = false) {
    json t;
    t["content"] = text;
    t["special"] = special;
    t["normalized"] = false;
    t["lstrip"] = t["rstrip"] = strips;
    t["single_word"] = false;
    return t;
}
json object(const std::string& key, const json& value) {
    json o = json::object();
    o[key] = value;
    return o;
}
json decoder(uint32_t id, const json& value) {
    return object("added_tokens_decoder", object(std::to_string(id), value));
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("tokenizer facts: a token named in any of the files has the next free id") {
        const std::string text = "go <|pause|> on";
        const std::string pause = "<|pause|>";
        const json list = json::array({pause});
        for (const std::string kind : {"qwen2", "gpt2", "llama3", "smollm"}) {
            CAPTURE(kind);
            const Files none(kind);
            CHECK(none.new_ids(text).empty());
            const Ids one = {none.next};
            CHECK(Files(kind).with_config(decoder(none.next, token(pause))).new_ids(text) == one);
            CHECK(Files(kind).with_config(decoder(none.next, token(pause, false))).new_ids(text) == one);
            for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
                CHECK(Files(kind).with_config(object(key, list)).new_ids(text) == one);
                CHECK(Files(kind).with("special_tokens_map.json", object(key, list)).new_ids(text) == one);
            }
            CHECK(Files(kind).with_config(object("extra_special_tokens", object("x", pause))).new_ids(text) == one);
            for (const char* key : {"pad_token", "unk_token", "mask_token", "image_token"})
                CHECK(Files(kind).with_config(object(key, pause)).new_ids(text) == one);
            CHECK(Files(kind).with("added_tokens.json", object(pause, none.next)).new_ids(text) == one);
        }
    }

    TEST_CASE("tokenizer facts: new tokens stand in the order of their ids, then of their keys") {
        const Files files("qwen2");
        json two = object("<|b|>", files.next + 1);
        two["<|a|>"] = files.next;
        CHECK(files.with("added_tokens.json", two).new_ids("<|b|><|a|>") == Ids{files.next + 1, files.next});
        const Files mixed("qwen2");
        json config = decoder(mixed.next, token("<|first|>"));
        config["additional_special_tokens"] = json::array({"<|third|>"});
        config["pad_token"] = "<|second|>";
        CHECK(mixed.with_config(config).new_ids("<|third|><|second|><|first|>") ==
              Ids{mixed.next + 2, mixed.next + 1, mixed.next});
        CHECK(mixed.open()->vocabulary_size() == mixed.next + 3);
    }

    TEST_CASE("tokenizer facts: an id that transformers would not give is refused") {
        const Files files("qwen2");
        const auto refused = [&](uint32_t id, const std::string& text) {
            const std::string error = files.with_config(decoder(id, token(text))).error();
            CAPTURE(error);
            return has(error,
                       "\"" + text + "\" has the id " + std::to_string(id) + " there, and transformers gives it ");
        };
        CHECK(refused(files.next + 5, "<|pause|>"));
        CHECK(refused(3, "<|pause|>"));
        CHECK(refused(7, "<|im_end|>"));
        const Files legacy("qwen2");
        CHECK(
            has(legacy.with("added_tokens.json", object("<|pause|>", legacy.next + 1)).error(), "transformers gives"));
        for (const json& bad : {json::array({1}), object("x", token("a")), object("1", json("a"))})
            CHECK(has(Files("qwen2").with_config(object("added_tokens_decoder", bad)).error(), "added_tokens_decoder"));
    }

    TEST_CASE("tokenizer facts: what another file says that does not count is told") {
        const Files ends("qwen2");
        const uint32_t text_end = *ends.open()->id_of("<|endoftext|>"), turn_end = *ends.open()->id_of("<|im_end|>");
        ends.with_config(object("eos_token", "<|im_end|>"));
        CHECK(ends.open()->eos() == turn_end);
        CHECK(ends.open()->notes().empty());
        ends.with("special_tokens_map.json", object("eos_token", object("content", "<|endoftext|>")));
        CHECK(ends.open()->eos() == text_end);
        REQUIRE(ends.open()->notes().size() == 1);
        CHECK(ends.open()->notes()[0] ==
              "\"eos_token\" is \"<|im_end|>\" in tokenizer_config.json and \"<|endoftext|>\" in "
              "special_tokens_map.json; as in transformers the second counts");
        json config = decoder(ends.next, token("<|pause|>"));
        config["eos_token"] = "<|im_end|>";
        ends.with_config(config);  // the map does not count then
        CHECK(ends.open()->eos() == turn_end);
        CHECK(has(ends.open()->notes().at(0), "the first counts"));
        ends.with("added_tokens.json", object("<|other|>", ends.next + 1));
        CHECK(ends.new_ids("<|other|>").empty());
        CHECK(has(ends.open()->notes().at(0) + ends.open()->notes().at(1), "added_tokens.json names \"<|other|>\""));

        // Flags of added_tokens_decoder count: with lstrip and rstrip the token takes the spaces around it.
        const Files strips("qwen2");
        const size_t apart = strips.open()->encode("a <|im_end|> b", SpecialTokens::parse).size();
        strips.with_config(decoder(turn_end, token("<|im_end|>", true, true)));
        CHECK(strips.open()->encode("a <|im_end|> b", SpecialTokens::parse) ==
              strips.open()->encode("a<|im_end|>b", SpecialTokens::parse));
        CHECK(apart >= 4);
        CHECK(has(strips.open()->notes().at(0), "\"<|im_end|>\" has other flags in tokenizer_config.json"));
    }

    TEST_CASE("tokenizer facts: tokenizer.json alone says what stands before a text") {
        const Files llama("llama3");
        CHECK(llama.open()->adds_bos());
        CHECK(llama.open()->notes().empty());
        CHECK(has(llama.with_config(object("add_bos_token", false)).open()->notes().at(0), "the latter counts"));
        CHECK(llama.open()->adds_bos());
        const Files qwen("qwen2");
        json config = object("add_bos_token", true);
        config["bos_token"] = "<|im_start|>";
        CHECK(!qwen.with_config(config).open()->adds_bos());
        CHECK(has(qwen.open()->notes().at(0), "add_bos_token true, and tokenizer.json puts nothing before a text"));
        CHECK(has(llama.with_config(object("bos_token", "<|end_of_text|>")).error(), "bos_token is another"));
        for (const char* key : {"add_prefix_space", "split_special_tokens"}) {
            CHECK(has(qwen.with_config(object(key, true)).error(), std::string("\"") + key + "\" is true"));
            CHECK(qwen.with_config(object(key, false)).error() == "");
        }
    }

    TEST_CASE("tokenizer facts: post-processors that add more than is implemented are refused") {
        const Files llama("llama3");
        const auto error = [&](const std::function<void(json & processor)>& change) {
            json document = read_json_file("tests/tokenizers/llama3/tokenizer.json");
            change(document["post_processor"]);
            put(llama.dir.path / "tokenizer.json", document.dump());
            return llama.error();
        };
        const auto piece = [](const std::string& id) {
            json p;
            p["SpecialToken"]["id"] = id;
            p["SpecialToken"]["type_id"] = 0;
            return p;
        };
        const auto single = [](json& processor) -> json& {
            for (json& step : processor["processors"])
                if (step["type"] == "TemplateProcessing") return step["single"];
            return processor["single"];
        };
        llama.with_config(object("eos_token", "<|end_of_text|>"));
        CHECK(error([](json&) {}) == "");
        CHECK(has(error([&](json& p) { single(p).insert(single(p).begin(), piece("<|begin_of_text|>")); }),
                  "post-processor"));
        CHECK(has(error([&](json& p) { single(p).push_back(piece("<|begin_of_text|>")); }), "after a text"));
        CHECK(error([&](json& p) { single(p).push_back(piece("<|end_of_text|>")); }) == "");
        CHECK(has(error([&](json& p) { single(p)[0]["SpecialToken"]["id"] = "<none>"; }), "which is no token"));
        CHECK(has(error([&](json& p) { p["type"] = "BertProcessing"; }), "post-processor \"BertProcessing\""));
        CHECK(has(error([&](json& p) {
                      for (json& step : p["processors"])
                          if (step["type"] == "TemplateProcessing")
                              step["special_tokens"]["<|begin_of_text|>"]["ids"] = json::array({1});
                  }),
                  "the ids [1]"));
    }
}
