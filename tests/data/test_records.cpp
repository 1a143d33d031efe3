// JSONL records: each kind with everything that is allowed around it, and every mistake with its line. (Broken files:
// test_hostile_files.cpp.)
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <string>
#include <vector>

#include "data/base/json_file.h"
#include "data/records.h"
#include "tests/temporary_files.h"

namespace {
namespace fs = std::filesystem;
using namespace slab::data;
using namespace slab::test;

std::vector<Record> read_all(const fs::path& path) {
    RecordReader reader(path);
    std::vector<Record> records;
    for (auto lines = reader.next_lines(1, 1); !lines.empty(); lines = reader.next_lines(1, 1)) {
        records.push_back(reader.parse(lines.front()));
        reader.check_kind(records.back());
        REQUIRE(reader.done_bytes() <= reader.size_bytes());
    }
    return records;
}

// A record as one text, for comparisons.
std::string flat(const Record& r) {
    std::string text = std::to_string(r.line) + ":" + r.prompt + "|" + r.input + "|" + r.text;
    if (r.kind != RecordKind::chat) return text;
    for (const auto& m : r.conversation.messages)
        text += "[" + m["role"].get<std::string>() + "=" +
                (m["content"].is_string() ? m["content"].get<std::string>() : m["content"].dump()) + "]";
    return text;
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("records: the four kinds") {
        const FreshDirectory dir;
        const fs::path path = dir.path / "r.jsonl";
        const auto first = [&](const std::string& line) {
            put(path, line + "\n");
            const auto records = read_all(path);
            REQUIRE(records.size() == 1);
            return records[0];
        };
        CHECK(flat(first(R"({"text": "a\nb", "id": 7, "meta": {"source": [1, 2]}})")) == "1:||a\nb");
        CHECK(first(R"({"text": ""})").kind == RecordKind::text);
        CHECK(flat(first(R"({"completion": "c", "prompt": "p"})")) == "1:p||c");
        CHECK(first(R"({"completion": "c", "prompt": "p"})").kind == RecordKind::completion);
        for (const char* input : {"", R"("input": null, )", R"("input": "", )"})
            CHECK(flat(first(std::string("{\"instruction\": \"do\", ") + input + "\"output\": \"done\"}")) ==
                  "1:do||done");
        CHECK(flat(first(R"({"instruction": "do", "input": "this", "output": "done"})")) == "1:do|this|done");
        CHECK(first(R"({"instruction": "do", "output": "done"})").kind == RecordKind::instruction);
        const Record chat =
            first(R"({"tools": [], "messages": [{"role": "system", "content": "s", "tool_calls": null},)"
                  R"({"role": "user", "content": [{"type": "text", "text": "u"}, {"type": "text", "text": "v"}]},)"
                  R"({"role": "assistant", "content": "", "weight": 1, "name": "x"}]})");
        CHECK(chat.kind == RecordKind::chat);
        CHECK(flat(chat) ==
              R"(1:||[system=s][user=[{"type":"text","text":"u"},{"type":"text","text":"v"}]][assistant=])");
        CHECK(chat.conversation.train == std::vector<Train>{Train::unsaid, Train::unsaid, Train::yes});
        CHECK(chat.conversation.other_keys == std::vector<std::string>{"name"});
        CHECK(first(R"({"messages": []})").conversation.messages.empty());
    }

    TEST_CASE("records: line ends, blank lines, a byte order mark, a last line without an end, names of files") {
        const FreshDirectory dir;
        const fs::path path = dir.path / "r.jsonl";
        put(path, "\xef\xbb\xbf{\"text\": \"a\"}\r\n\r\n \t\n{\"text\": \"\xc3\xa9\"}\r\n\n{\"text\": \"c\"}");
        const auto records = read_all(path);
        REQUIRE(records.size() == 3);
        CHECK(flat(records[0]) == "1:||a");
        CHECK(flat(records[1]) == "4:||\xc3\xa9");
        CHECK(flat(records[2]) == "6:||c");
        for (const char* nothing : {"", "\n", "\r\n\r\n", "\xef\xbb\xbf", "  "}) {
            put(path, nothing);
            CHECK(read_all(path).empty());
        }
        CHECK(is_records_file("a/b.jsonl"));
        CHECK(is_records_file("b.ndjson"));
        CHECK(is_records_file("b.json"));
        CHECK(is_records_file("b.JSONL"));
        CHECK(is_records_file("b.Json"));
        CHECK_FALSE(is_records_file("jsonl"));
        CHECK_FALSE(is_records_file("a.jsonl/b.txt"));
    }

    TEST_CASE("records: a byte of 0 anywhere is refused with its place, and nothing behind it is dropped") {
        const FreshDirectory dir;
        const fs::path path = dir.path / "r.jsonl";
        using namespace std::string_literals;
        const std::string line = "{\"text\":\"a\"}\n";
        for (const auto& [file, place] :
             {std::pair(line + "\0\0\n"s + line, "line 2: is not valid JSON at column 1: the byte there is 0"),
              {line + "{\"text\":\"b\"}\0{\"text\":\"c\"}\n"s, "line 2: is not valid JSON at column 13: the byte"},
              {line + "\0"s, "line 2: is not valid JSON at column 1: the byte"},
              {"{\"text\":\"a\0\"}\n"s + line, "line 1: is not valid JSON at column 11: the byte"}}) {
            CAPTURE(place);
            put(path, file);
            CHECK(has(error_of([&] { read_all(path); }), path.string() + ", " + place));
        }
        put(path, "{\"a\":1}\0 and more"s);
        CHECK(
            has(error_of([&] { read_json_file(path); }), "line 1: is not valid JSON at column 8: the byte there is 0"));
    }

    TEST_CASE("records: a text that begins with a record is refused, one that only looks like it is not") {
        for (const char* text :
             {"{\"text\": \"a\"}", "\xef\xbb\xbf\n {\"prompt\":\"\",\"completion\":\"\"}\r\nmore",
              "{\"messages\": [], \"id\": 7}\n{\"messages\"", "{\"output\":1,\"instruction\":2}\n"}) {
            CAPTURE(text);
            const std::string error = error_of([&] { refuse_records_as_text(text, "d/pc.txt"); });
            CHECK(has(error, "d/pc.txt: is named as a text, and its first line is a record"));
            CHECK(has(error, ".jsonl"));
        }
        for (const char* text : {"", "\n", "{", "{}", "{\"a\": 1}", "{\"prompt\": \"a\"}", "[{\"text\": \"a\"}]",
                                 "\"text\"", "{\"text\": \"a\"} more", "a\n{\"text\": \"a\"}", "{\n\"text\": \"a\"}"}) {
            CAPTURE(text);
            CHECK_NOTHROW(refuse_records_as_text(text, "pc.txt"));
        }
    }

    TEST_CASE("records: lines of all lengths around the size of a read") {
        const FreshDirectory dir;
        const fs::path path = dir.path / "r.jsonl";
        std::string file;
        std::vector<size_t> lengths;
        for (const size_t length : {1048560, 1048576 - 12, 5, 1048577, 3000000, 0, 1048575, 17}) {
            file += "{\"text\":\"" + std::string(length, 'x') + "\"}\n";
            lengths.push_back(length);
        }
        put(path, file);
        const auto records = read_all(path);
        REQUIRE(records.size() == lengths.size());
        for (size_t i = 0; i < lengths.size(); ++i) CHECK(records[i].text.size() == lengths[i]);
    }

    TEST_CASE("records: every mistake is named with file and line") {
        const FreshDirectory dir;
        const fs::path path = dir.path / "r.jsonl";
        const auto message = [&](const std::string& file) {
            put(path, file);
            return error_of([&] { read_all(path); });
        };
        struct Mistake {
            std::string line, part;
        };
        const std::vector<Mistake> mistakes = {
            {"{}", "the record has no keys; wanted \"text\""},
            {R"({"question": "q", "answer": "a"})", R"(has the keys "question", "answer"; wanted "text")"},
            {R"({"text": "a", "prompt": "p", "completion": "c"})", "of two kinds (text; prompt and completion)"},
            {R"({"prompt": "p"})", R"(lacks "completion")"},
            {R"({"instruction": "p", "response": "r"})", R"(lacks "output")"},
            {R"({"input": "p", "output": "r"})", R"(lacks "instruction")"},
            {R"({"text": 5})", R"("text" is 5; wanted a text)"},
            {R"({"text": null})", R"("text" is null)"},
            {R"({"prompt": ["p"], "completion": "c"})", R"("prompt" is ["p"])"},
            {R"({"instruction": "i", "input": 3, "output": "c"})", R"("input" is 3)"},
            {R"({"messages": "hello"})", R"("messages" is "hello"; wanted a list)"},
            {R"({"messages": [7]})", "message 1: it is 7"},
            {R"({"messages": [{"role": "user"}]})", R"(message 1: it has the keys "role")"},
            {R"({"messages": [{"from": "human", "value": "v"}]})", R"(message 1: it has the keys "from", "value")"},
            {R"({"messages": [{"role": 1, "content": "a"}]})", R"("role" is 1)"},
            {R"({"messages": [{"role": "assistant", "content": null}]})", R"("content" is null)"},
            {R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]})", "image_url"},
            {R"({"messages": [{"role": "user", "content": ["x"]}]})", R"(the part "x")"},
            {R"({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]})", R"("text" is 1)"},
            {R"({"messages": [{"role": "assistant", "content": "", "weight": 0.5}]})",
             R"(message 1: "weight" is 0.5; wanted 1 or 0)"},
            {R"({"messages": [{"role": "assistant", "content": "", "weight": true}]})", R"("weight" is true)"},
            {R"({"messages": [{"role": "assistant", "content": "", "loss_mask": [1, 0]}]})", R"("loss_mask" is [1,0])"},
            {R"({"messages": [{"role": "assistant", "content": "", "loss": 0, "train": true}]})",
             R"("loss" is 0, and "train" is true; wanted keys that agree)"},
            {R"({"messages": [{"role": "user", "content": "", "train": true}]})", R"(the role "user")"},
            {R"({"messages": [{"role": "assistant", "content": "", "train_detail": [{"begin_offset": 0}]}]})",
             R"("train_detail" is)"},
            {R"({"messages": [{"role": "user", "content": "a", "images": ["x.png"]}]})", R"("images" is ["x.png"])"},
            {R"({"messages": [{"role": "assistant", "content": "a", "thinking": "b", "reasoning_content": "c"}]})",
             R"("thinking" is "b"; wanted the same thoughts)"},
            {R"({"messages": [], "tools": "[1]"})", R"("tools" holds 1)"},
            {R"({"messages": [], "tools": {"name": "x"}})", R"("tools" is {"name":"x"}; wanted a list)"},
            {R"({"messages": [], "history": [["a", "b"]]})",
             R"("history" is [["a","b"]]; wanted none beside messages)"},
            {R"({"messages": [{"role": "system", "content": "a"}], "system": "b"})", "another system message"},
            {R"({"text": "a", "weight": 0.1})", R"("weight" is 0.1; wanted 1 or 0)"},
            {R"({"text": "a", "system": "b"})", R"("system" is "b"; wanted none beside text)"},
            {R"({"prompt": "a", "completion": "b", "system": "c"})", R"("system" is "c"; wanted none beside prompt)"},
            {R"({"prompt": "a", "completion": "b", "input": "c"})", R"("input" is "c")"},
            {R"({"instruction": "a", "output": "b", "context": "c"})", R"("context" is "c"; wanted none)"},
            {R"({"instruction": "a", "output": "b", "history": [["c"]]})", R"("history" holds ["c"])"},
            {R"({"instruction": "a", "output": "b", "reasoning_content": "c"})", R"("reasoning_content" is "c")"},
            {R"({"messages": [], "chat_template_kwargs": 1})", R"("chat_template_kwargs" is 1)"},
            {"[{\"text\": \"a\"}]", "wanted a JSON object, {...}, on each line"},
            {"[", "is not valid JSON"},
            {"\"text\"", "wanted a JSON object"},
            {R"({"text": "a"} {"text": "b"})", "is not valid JSON"},
            {R"({"text": "a", "text": "b"})", "given twice"},
            {R"({"text": "a)", "is not valid JSON"},
            {"plain text", "is not valid JSON"},
            {"{\"text\": \"a\xff\"}", "is not valid JSON"},
            {"{\"text\": \"\xc3\"}", "is not valid JSON"},
            {"{\"text\": \"\xed\xa0\x80\"}", "is not valid JSON"},
            {R"({"text": "\ud800"})", "is not valid JSON"},
            {std::string("{\"text\": \"a\0\"}", 13), "is 0; wanted JSON"},
            {std::string(100000, '['), "nested deeper"},
            {R"({"messages": [{"role": "user", "content": "u"}]})", R"(has "messages"; wanted text as in line 1)"},
        };
        for (const Mistake& mistake : mistakes) {
            const std::string error = message("{\"text\": \"fine\"}\n\n" + mistake.line + "\n{\"text\": \"fine\"}\n");
            CAPTURE(mistake.line.substr(0, 200));
            CAPTURE(error);
            CHECK(has(error, path.string() + ", line 3"));
            CHECK(has(error, mistake.part));
        }
        CHECK(has(message(std::string("\xff\xfe{\0", 4)), "is UTF-16; wanted UTF-8"));
        CHECK(has(error_of([&] { read_all(dir.path / "none.jsonl"); }), "none.jsonl: cannot be opened"));
        CHECK(has(error_of([&] { read_all(dir.path); }), "is a directory"));
    }

    TEST_CASE("records: a file that is one JSON list is named as one, on one line or on many") {
        const FreshDirectory dir;
        const fs::path path = dir.path / "r.json";
        const std::string hint = "Hint: `jq -c '.[]' " + path.string() + " > ";
        for (const char* list : {"[{\"text\": \"a\"}, {\"text\": \"b\"}]\n", "\n \t[\n  {\"text\": \"a\"}\n]\n"}) {
            put(path, list);
            const std::string error = error_of([&] { read_all(path); });
            CAPTURE(error);
            CHECK(has(error, "r.json, line " + std::to_string(list[0] == '[' ? 1 : 2) + ": begins with [, so"));
            CHECK(has(error, hint));
        }
        put(path, "[");
        fs::resize_file(path, kMaxJsonBytes * 2);
        CHECK(has(error_of([&] { read_all(path); }), hint));
        put(path, "{\n  \"text\": \"a\"\n}\n");  // one record on many lines
        CHECK(has(error_of([&] { read_all(path); }), "r.json, line 1: is not valid JSON at column 2: it ends here"));
    }

    TEST_CASE("records: a line without end is refused before it is held in memory") {
        const FreshDirectory dir;
        const fs::path path = dir.path / "r.jsonl";
        put(path, "");
        fs::resize_file(path, size_t{1} << 40);  // zeros that take no place on the disk
        CHECK(has(error_of([&] { read_all(path); }), "line 1: is longer than 67108864 bytes"));
    }
}
