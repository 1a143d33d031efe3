// Conversations against transformers' apply_chat_template (chat_cases.json, written by dev/reference/check_chat.py):
// the text of each, and ids and loss mask where the two mean the same (the script says where they do not).
#include <doctest/doctest.h>

#include "data/chat_template.h"
#include "data/json_file.h"
#include "data/nfc.h"
#include "tests/temporary_files.h"

using namespace slab::data;
using namespace slab::test;
namespace fs = std::filesystem;

TEST_SUITE("cpu") {
    TEST_CASE("chat templates: Llama 3, ChatML, Qwen2 and SmolLM2 as transformers renders them") {
        const auto forms = read_json_file("tests/chat_cases.json");
        size_t texts = 0, ids = 0;
        for (const auto& form : forms) {
            const auto name = form["name"].get<std::string>();
            CAPTURE(name);
            const FreshDirectory model;  // as a model's own has them: tokenizer and template
            const fs::path source = fs::path("tests/tokenizers") / form["tokenizer"].get<std::string>();
            for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
                fs::copy_file(source / file, model.path / file);
            put(model.path / "chat_template.jinja", form["template"].get<std::string>());
            const auto tokenizer = open_tokenizer(model.path);
            const auto chat = ChatTemplate::find(*tokenizer, "");
            REQUIRE(chat.has_value());
            CHECK(chat->description() == (name == "llama3" ? "Llama 3" : "ChatML"));
            for (const auto& one : form["cases"]) {
                std::vector<ChatMessage> messages;
                for (const auto& m : one["messages"])
                    messages.push_back({m["role"].get<std::string>(), m["content"].get<std::string>()});
                std::vector<uint32_t> tokens;
                std::vector<uint8_t> is_reply;
                chat->render(*tokenizer, messages, tokens, is_reply);
                std::string text = one["text"].get<std::string>(), normal_form;
                if (name == "qwen2" && !to_nfc(text, normal_form)) text = normal_form;
                CHECK(tokenizer->decode(tokens, true) == text);
                ++texts;
                if (!one.contains("ids")) continue;
                CHECK(tokens == one["ids"].get<std::vector<uint32_t>>());
                CHECK(is_reply == one["mask"].get<std::vector<uint8_t>>());
                ++ids;
            }
        }
        CHECK(texts >= 40);
        CHECK(ids >= 24);
    }
}
