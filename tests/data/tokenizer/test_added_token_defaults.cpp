// What an added token of tokenizer.json is where the file does not say: ordinary text that is one token, not special.
#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/tokenizer/tokenizer.h"
#include "tests/temporary_files.h"

using namespace slab::data;
using namespace slab::test;
using nlohmann::json;

TEST_SUITE("cpu") {
    TEST_CASE("added tokens: one without \"special\" is found in a user's text and shown in a sample") {
        const FreshDirectory dir;
        json document = json::parse(content("tests/tokenizers/gpt2/tokenizer.json"));
        const uint32_t id = static_cast<uint32_t>(open_tokenizer("tests/tokenizers/gpt2")->vocabulary_size());
        document["added_tokens"].push_back({{"id", id}, {"content", "<plain>"}});
        document["added_tokens"].push_back({{"id", id + 1}, {"content", "<special>"}, {"special", true}});
        put(dir.path / "tokenizer.json", document.dump());
        const auto tokenizer = open_tokenizer(dir.path);
        const auto ids = tokenizer->encode("a<plain>b<special>c", SpecialTokens::as_text);
        CHECK(std::count(ids.begin(), ids.end(), id) == 1);
        CHECK(std::count(ids.begin(), ids.end(), id + 1) == 0);
        CHECK(tokenizer->decode({{id}}) == "<plain>");
        CHECK(tokenizer->decode({{id + 1}}) == "");
    }
}
