// Where a merged model stops generating: what the base says, and what its replies end in.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/base/json_file.h"
#include "tests/gguf_builder.h"
#include "tests/kernel_checks.h"
#include "tests/temporary_files.h"
#include "train/files/generation_config.h"

using namespace slab;
using namespace slab::train;
using namespace slab::test;
using nlohmann::json;
using Ends = std::vector<int64_t>;
namespace fs = std::filesystem;

TEST_SUITE("cpu") {
    TEST_CASE("generation config: the base's ends are its own file's, else config.json's") {
        const FreshDirectory dir;
        put(dir.path / "config.json",
            R"({"eos_token_id": 7, "bos_token_id": 1, "hidden_size": 4, "temperature": 0.5})");
        CHECK(generation_ends(dir.path) == Ends{7});
        CHECK(json::parse(generation_config_of(dir.path)) ==
              json::parse(R"({"eos_token_id": 7, "bos_token_id": 1, "temperature": 0.5})"));
        put(dir.path / "generation_config.json", R"({"top_k": 20, "eos_token_id": [3, 4], "other": {"a": [1]}})");
        CHECK(generation_ends(dir.path) == Ends{3, 4});
        CHECK(generation_ends_beside(dir.path) == Ends{3, 4});
        CHECK(json::parse(generation_config_of(dir.path, {4, 9})) ==
              json::parse(R"({"top_k": 20, "eos_token_id": [3, 4, 9], "other": {"a": [1]}})"));
        CHECK(generation_config_of(dir.path, {9}).find("top_k") < generation_config_of(dir.path, {9}).find("eos"));
        for (const char* none : {"null", "[]", "-1", "\"x\"", "[null]"}) {
            put(dir.path / "generation_config.json", std::string("{\"eos_token_id\": ") + none + "}");
            CHECK(generation_ends(dir.path).empty());
            CHECK(json::parse(generation_config_of(dir.path, {9}))["eos_token_id"] == 9);
        }
        CHECK(generation_ends_beside(dir.path / "none").empty());
    }

    TEST_CASE("generation config: a companion is replaced by one that stops at more, and written") {
        const FreshDirectory dir, out;
        put(dir.path / "config.json", R"({"eos_token_id": 7})");
        put(dir.path / "generation_config.json", R"({"eos_token_id": 7, "top_p": 0.9})");
        put(dir.path / "tokenizer.json", "{}");
        std::vector<Companion> files = companions_of(dir.path);
        REQUIRE(files.size() == 2);
        stop_at(files, dir.path, {12});
        CHECK(copy_into(out.path, files).copied ==
              std::vector<std::string>{"tokenizer.json", "generation_config.json"});
        CHECK(data::read_json_file(out.path / "generation_config.json") ==
              json::parse(R"({"eos_token_id": [7, 12], "top_p": 0.9})"));
    }

    TEST_CASE("generation config: a GGUF base's is made of its metadata") {
        const FreshDirectory dir;
        GgufBuilder file;
        file.set("general.architecture", "llama");
        file.set("tokenizer.ggml.bos_token_id", uint32_t{1});
        file.set("tokenizer.ggml.eos_token_id", uint32_t{2});
        file.set("tokenizer.ggml.eot_token_id", uint32_t{9});
        file.set("tokenizer.ggml.eom_token_id", uint32_t{2});
        file.set("tokenizer.ggml.padding_token_id", uint32_t{0});
        file.set("general.sampling.temp", 0.5f);
        file.set("general.sampling.top_k", int32_t{20});
        put(dir.path / "m.gguf", file.file());
        CHECK(generation_ends(dir.path / "m.gguf") == Ends{2, 9});
        CHECK(json::parse(generation_config_of(dir.path / "m.gguf", {9, 11})) ==
              json::parse(R"({"bos_token_id": 1, "eos_token_id": [2, 9, 11], "pad_token_id": 0, "temperature": 0.5,
                              "top_k": 20, "do_sample": true})"));
    }
}
