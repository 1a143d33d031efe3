// Conversations against transformers' apply_chat_template (chat_cases.json, written by dev/reference/check_chat.py).
// Texts are compared, and ids and loss mask where the two agree by design; the script says where they do not.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "data/base/json_file.h"
#include "data/chat_template.h"
#include "data/tokenizer/nfc.h"
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
            const auto chat = ChatTemplate::find(*tokenizer, {});
            REQUIRE(chat.has_value());
            CHECK(chat->description() == "the model's chat template");
            for (const auto& one : form["cases"]) {
                Conversation conversation;
                conversation.add_messages(one["messages"], "here");
                const ChatTokens made = chat->render(*tokenizer, conversation, "here");
                std::string text = one["text"].get<std::string>(), normal_form;
                if (name == "qwen2" && !to_nfc(text, normal_form)) text = normal_form;
                CHECK(tokenizer->decode(made.tokens, true) == text);
                ++texts;
                if (!one.contains("ids")) continue;
                CHECK(made.tokens == one["ids"].get<std::vector<uint32_t>>());
                CHECK(made.is_reply == one["mask"].get<std::vector<uint8_t>>());
                ++ids;
            }
        }
        CHECK(texts >= 40);
        CHECK(ids >= 24);
    }

    TEST_CASE("chat templates: the fixed forms, where the model has no template, are those of their models") {
        const auto forms = read_json_file("tests/chat_cases.json");
        for (const auto& form : forms) {
            const auto name = form["name"].get<std::string>();
            if (name != "llama3" && name != "chatml") continue;
            const auto tokenizer = open_tokenizer(fs::path("tests/tokenizers") / form["tokenizer"].get<std::string>());
            const auto chat = ChatTemplate::find(*tokenizer, {});
            REQUIRE(chat.has_value());
            CHECK(chat->description().ends_with(", as the model has no template"));
            for (const auto& one : form["cases"]) {
                Conversation conversation;
                conversation.add_messages(one["messages"], "here");
                const ChatTokens made = chat->render(*tokenizer, conversation, "here");
                CHECK(tokenizer->decode(made.tokens, true) == one["text"].get<std::string>());
                if (!one.contains("ids")) continue;
                CHECK(made.tokens == one["ids"].get<std::vector<uint32_t>>());
                CHECK(made.is_reply == one["mask"].get<std::vector<uint8_t>>());
            }
        }
    }
}
