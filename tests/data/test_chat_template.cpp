// Conversations against transformers' apply_chat_template (chat_cases.json, written by dev/reference/check_chat.py).
// Texts are compared, and ids and loss mask where the two agree by design; the script says where they do not.
#include <doctest/doctest.h>

#include <initializer_list>
#include <utility>

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

    TEST_CASE(
        "chat templates: those that write more, or less, than the messages in a known form are not taken for it") {
        const fs::path source = "tests/tokenizers/llama3";
        for (const auto& [jinja, known] : std::initializer_list<std::pair<const char*, bool>>{
                 {"{{ '<|start_header_id|>' + m.role + '<|end_header_id|>' + m.content + '<|eot_id|>' }}", true},
                 {"{{ '<|start_header_id|>system<|end_header_id|>Cutting Knowledge Date: December 2023' + '<|eot_id|>' "
                  "}}",
                  false},
                 {"{{ '<|im_start|>' + m.role + '<think></think>' + m.content + '<|im_end|>' }}", false},
                 {"{{ '<|im_start|>' + m.role + (m.content | trim) + '<|im_end|>' }}", false},
                 {"{{ '<|im_start|>' + m.role + '<|im_sep|>' + m.content + '<|im_end|>' }}", false}}) {
            CAPTURE(jinja);
            const FreshDirectory model;
            for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
                fs::copy_file(source / file, model.path / file);
            put(model.path / "chat_template.jinja", jinja);
            const auto tokenizer = open_tokenizer(model.path);
            CHECK(ChatTemplate::find(*tokenizer, "").has_value() == known);
            CHECK(ChatTemplate::find(*tokenizer, "llama3").has_value());
        }
    }
}
