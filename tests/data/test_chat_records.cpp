// Records around conversations: system, history, flags, keys that are named as unused, notes, and the preview of what
// is spelled like a special token.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "data/prepare.h"
#include "data/preview.h"
#include "tests/fake_tokenizer.h"
#include "tests/temporary_files.h"
#include "tests/token_files.h"

namespace {
using namespace slab::data;
using namespace slab::test;

// What is prepared of a file with these lines.
struct Prepared {
    FakeTokenizer tokenizer = chatml_tokenizer();
    std::string text;  // of the rows, as the preview shows them
    std::string summary, error;
    std::vector<std::string> notes;

    explicit Prepared(const std::string& lines, bool with_template = true) {
        if (!with_template) tokenizer = FakeTokenizer();
        const FreshDirectory dir;
        put(dir.path / "r.jsonl", lines);
        PreparedRecords records(
            tokenizer, {.T = 400, .sample_packing = true, .train_on_inputs = false, .chat_template = "", .now = {}});
        error = error_of([&] { records.add_file(dir.path / "r.jsonl"); });
        summary = records.summary();
        notes = records.notes();
        for (std::string& note : notes)
            if (note.starts_with(dir.path.string())) note.erase(0, dir.path.string().size() + 1);
        TokenMemory memory(300, 400);
        if (error.empty() && records.write({}, false, memory).rows != 0)
            text = preview(TokenFile("rows", std::move(memory)), 9, 400, tokenizer);
    }
};

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE(
        "chat records: system and history of an instruction are turns, and are refused where they have no place") {
        const std::string line =
            R"({"system": "S", "instruction": "I", "input": "", "output": "O", "history": [["q", "a"]]})";
        CHECK(has(Prepared(line).text,
                  "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nq<|im_end|>\n"
                  "<|im_start|>assistant\n[[a<|im_end|>]]\n<|im_start|>user\nI<|im_end|>\n"
                  "<|im_start|>assistant\n[[O<|im_end|>]]\n"));
        CHECK(has(
            Prepared(
                R"({"system": "S", "messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]})")
                .text,
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nu<|im_end|>\n"));
        CHECK(has(Prepared(line, false).error, "the record has \"system\", and the model has no chat template"));
        CHECK(has(Prepared(R"({"instruction": "I", "output": "O", "history": [["q", "a"]]})", false).error,
                  "\"history\""));
        CHECK(has(Prepared(R"({"instruction": "I", "output": "O", "system": "", "history": []})", false).text,
                  "### Instruction:\nI\n\n### Response:\n[[O<eos>]]"));
    }

    TEST_CASE("chat records: a record that is not to be trained on is left out and counted") {
        for (const char* const flag : {"\"weight\": 0", "\"loss\": false", "\"train\": 0"}) {
            CAPTURE(flag);
            const Prepared made("{\"text\": \"no\", " + std::string(flag) + "}\n{\"text\": \"yes\", \"weight\": 1}\n");
            CHECK(has(made.summary, "2 records (text); 1 left out: marked as not to be trained on"));
            CHECK(has(made.text, "y[[es<eos>]]"));
            CHECK_FALSE(has(made.text, "n[[o"));
        }
    }

    TEST_CASE("chat records: keys without a use are named once a file, with their number") {
        const Prepared made(
            R"({"messages": [{"role": "user", "content": "u", "name": "n"}, {"role": "assistant", "content": "a"}], "id": 1})"
            "\n"
            R"({"messages": [{"role": "assistant", "content": "b", "name": "n"}], "id": 2, "source": null})"
            "\n");
        CHECK(made.notes ==
              std::vector<std::string>{"r.jsonl: keys that are not used: \"id\" (2), \"name\" of messages (2)"});
        CHECK(Prepared("{\"text\": \"a\"}\n").notes.empty());
    }

    TEST_CASE(
        "chat records: text of a special token's spelling looks otherwise than the token, which a reply's becomes") {
        const Prepared made(
            R"({"messages": [{"role": "user", "content": "<|im_end|>"}, {"role": "assistant", "content": "a<|im_start|>"}]})");
        CHECK(has(made.text, "what has a \\ before it is text"));
        CHECK(has(made.text, "user\n\\<|im_end|><|im_end|>\n<|im_start|>assistant\n[[a<|im_start|><|im_end|>]]\n"));
        REQUIRE(made.notes.size() == 1);
        CHECK(has(made.notes[0], "1 assistant turn with the spelling of a special token (<|im_start|>)"));
        const FakeTokenizer tokenizer = chatml_tokenizer();
        TokenMemory memory(300);
        append_text("a\\<eos>", tokenizer, true, memory);
        CHECK(preview(TokenFile("text", std::move(memory)), 1, 9, tokenizer, {.colour = false, .ids = true}) ==
              "what is trained on stands in [[ ]]:\nwhat has a \\ before it is text, and no special token:\n"
              "row 1: 8 tokens, 7 trained on\na[[\\\\<eos><eos>]]\nids: 97 [[92 60 101 111 115 62 256]]\n");
    }
}
