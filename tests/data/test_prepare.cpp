// From records to rows: tokens and marks of every kind against ones written by hand, chat templates, packing, and
// records that are cut, left out or held out. Text as a stream: the same tokens however it is cut for encoding.
#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "data/prepare.h"
#include "data/preview.h"
#include "tests/fake_tokenizer.h"
#include "tests/temporary_files.h"
#include "tests/token_files.h"

namespace {
namespace fs = std::filesystem;
using namespace slab::data;
using namespace slab::test;

// A record as RecordReader reads it.
Record record_of(const nlohmann::ordered_json& line) {
    const FreshDirectory dir;
    put(dir.path / "r.jsonl", line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
    RecordReader reader(dir.path / "r.jsonl");
    return reader.parse(reader.next_lines(1, 1).at(0));
}
Record text_record(const std::string& text) {
    return record_of({{"text", text}});
}
Record completion_record(const std::string& prompt, const std::string& completion) {
    Record record = record_of({{"prompt", prompt}, {"completion", ""}});
    record.text = completion;  // may be broken UTF-8
    return record;
}
Record instruction_record(const std::string& instruction, const std::string& input, const std::string& output) {
    return record_of({{"instruction", instruction}, {"input", input}, {"output", output}});
}
Record chat_record(const std::vector<std::pair<std::string, std::string>>& messages) {
    auto list = nlohmann::ordered_json::array();
    for (const auto& [role, content] : messages) list.push_back({{"role", role}, {"content", content}});
    return record_of({{"messages", list}});
}

TokenFile rows_of(const PreparedRecords& records, const std::vector<bool>& held_out = {}, bool which = false) {
    TokenMemory memory(300, records.settings().T);
    if (records.write(held_out, which, memory).rows == 0) return TokenFile("no rows", TokenMemory(300));
    return TokenFile("rows", std::move(memory));
}

// A file as text: '|' before a document, targets in [[ ]].
std::string marked(const TokenFile& file, const Tokenizer& tokenizer) {
    std::string text;
    bool open = false;
    for (size_t i = 0; i < file.size(); ++i) {
        const bool target = is_target(file, i);
        if (open && !target) text += "]]";
        if (starts_document(file, i)) text += "|";
        if (!open && target) text += "[[";
        open = target;
        text += tokenizer.decode(std::vector<uint32_t>{token_at(file, i)}, true);
    }
    return text + (open ? "]]" : "");
}

std::string marked(const std::vector<Record>& records, const Tokenizer& tokenizer, PrepareSettings settings) {
    PreparedRecords prepared(tokenizer, settings);
    for (const Record& record : records) prepared.add(record, "here");
    return marked(rows_of(prepared), tokenizer);
}

std::string without(std::string text, const std::string& part) {
    for (size_t at; (at = text.find(part)) != std::string::npos;) text.erase(at, part.size());
    return text;
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("prepare: the masks of every kind of record") {
        const FakeTokenizer plain;
        const PrepareSettings replies{
            .T = 12, .sample_packing = false, .train_on_inputs = false, .chat_template = "", .now = {}};
        PrepareSettings all = replies;
        all.train_on_inputs = true;
        CHECK(marked({text_record("hello")}, plain, replies) == "|h[[ello<eos>]]|<eos><eos><eos><eos><eos><eos>|<eos>");
        CHECK(marked({completion_record("ab ", "cd")}, plain, replies) ==
              "|ab [[cd<eos>]]|<eos><eos><eos><eos><eos><eos>|<eos>");
        CHECK(marked({completion_record("ab ", "cd")}, plain, all) ==
              "|a[[b cd<eos>]]|<eos><eos><eos><eos><eos><eos>|<eos>");
        CHECK(marked({completion_record("", "cd")}, plain, replies).starts_with("|c[[d<eos>]]|"));
        CHECK(marked({completion_record("ab", "")}, plain, replies).starts_with("|ab[[<eos>]]|"));
        // Rendered elsewhere: its special tokens count, and it ends only once.
        CHECK(marked({completion_record("a<eos>", "cd<eos>")}, plain, replies).starts_with("|a<eos>[[cd<eos>]]|<eos>"));
        CHECK(marked({text_record("a<eos>")}, plain, replies).starts_with("|a[[<eos>]]|<eos>"));

        const PrepareSettings wide{
            .T = 100, .sample_packing = false, .train_on_inputs = false, .chat_template = "", .now = {}};
        CHECK(marked({instruction_record("Add<eos>", "1+1", "2")}, plain, wide)
                  .starts_with("|### Instruction:\nAdd<eos>\n\n### Input:\n1+1\n\n### Response:\n[[2<eos>]]|<eos>"));
        CHECK(marked({instruction_record("Add", "", "2")}, plain, wide)
                  .starts_with("|### Instruction:\nAdd\n\n### Response:\n[[2<eos>]]|<eos>"));

        const FakeTokenizer bos = llama3_tokenizer();
        CHECK(marked({completion_record("ab", "c")}, bos, replies)
                  .starts_with("|<|begin_of_text|>ab[[c<|end_of_text|>]]|"));
        CHECK(marked({text_record("<|begin_of_text|>ab")}, bos, replies)
                  .starts_with("|<|begin_of_text|>[[ab<|end_of_text|>]]|"));
    }

    TEST_CASE("prepare: ChatML and Llama 3, the replies marked with the ends of their turns") {
        const PrepareSettings s{
            .T = 300, .sample_packing = false, .train_on_inputs = false, .chat_template = "", .now = {}};
        PrepareSettings all = s;
        all.train_on_inputs = true;
        const Record chat = chat_record({{"system", "Be brief."},
                                         {"user", " Hi <|im_end|>"},
                                         {"assistant", " Ho\n"},
                                         {"user", "Why"},
                                         {"assistant", "So"}});
        FakeTokenizer chatml = chatml_tokenizer();
        CHECK(marked({chat}, chatml, s)
                  .starts_with("|<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi <|im_end|><|im_end|>\n"
                               "<|im_start|>assistant\n[[ Ho\n<|im_end|>]]\n<|im_start|>user\nWhy<|im_end|>\n"
                               "<|im_start|>assistant\n[[So<|im_end|>]]\n|<eos>"));
        CHECK(marked({chat}, chatml, all).starts_with("|<|im_start|>[[system\nBe brief.<|im_end|>\n<|im_start|>user"));
        CHECK(marked({instruction_record("Add", "1+1", "2")}, chatml, s)
                  .starts_with("|<|im_start|>user\nAdd\n\n1+1<|im_end|>\n<|im_start|>assistant\n[[2<|im_end|>]]\n|"));
        // The spelling in the user's words stayed text: one special token a turn.
        PreparedRecords prepared(chatml, s);
        prepared.add(chat, "here");
        const TokenFile file = rows_of(prepared);
        size_t ends = 0;
        for (size_t i = 0; i < file.size(); ++i) ends += token_at(file, i) == 258;
        CHECK(ends == 5);

        CHECK(marked({chat}, llama3_tokenizer(), s)
                  .starts_with("|<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
                               "<|start_header_id|>user<|end_header_id|>\n\nHi <|im_end|><|eot_id|>"
                               "<|start_header_id|>assistant<|end_header_id|>\n\n[[Ho<|eot_id|>]]"
                               "<|start_header_id|>user<|end_header_id|>\n\nWhy<|eot_id|>"
                               "<|start_header_id|>assistant<|end_header_id|>\n\n[[So<|eot_id|>]]|<|end_of_text|>"));

        // The system message of the tokenizer's own template, for conversations without one.
        chatml.jinja =
            "{% for m in messages %}{% if tools %}{{ '<|im_start|>system\\n' + tools }}{% elif loop.first and m.role "
            "!= "
            "'system' %}{{ '<|im_start|>system\\nYou help.<|im_end|>\\n' }}{% endif %}{{'<|im_start|>' + m.role + "
            "'\\n' + "
            "m.content + '<|im_end|>' + '\\n'}}{% endfor %}";
        CHECK(marked({chat_record({{"user", "u"}, {"assistant", "a"}})}, chatml, s)
                  .starts_with("|<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\nu<|im_end|>\n"));
        CHECK(marked({chat}, chatml, s).starts_with("|<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user"));
    }

    TEST_CASE("prepare: which chat template it is") {
        const auto found = [](const FakeTokenizer& tokenizer, const std::string& given) {
            return ChatTemplate::find(tokenizer, {.given = given, .now = {}})->description();
        };
        FakeTokenizer tokenizer = chatml_tokenizer();
        tokenizer.specials.insert(tokenizer.specials.end(),
                                  {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"});
        CHECK(found(tokenizer, "") == "ChatML, as the model has no template");
        CHECK(found(tokenizer, "llama3") == "Llama 3");
        CHECK(found(llama3_tokenizer(), "") == "Llama 3, as the model has no template");
        tokenizer.jinja = "{{ messages }}";  // the model's own counts, whatever it is
        CHECK(found(tokenizer, "") == "the model's chat template");
        CHECK(found(tokenizer, "chatml") == "ChatML");
        const FreshDirectory dir;
        put(dir.path / "own.jinja", "{{ messages }}");
        CHECK(found(tokenizer, (dir.path / "own.jinja").string()) ==
              "chat template " + (dir.path / "own.jinja").string());
        CHECK_FALSE(ChatTemplate::find(FakeTokenizer(), {}).has_value());
        CHECK(has(error_of([&] { found(FakeTokenizer(), "chatml"); }), "no token <|im_start|>"));
        CHECK(has(error_of([&] { found(chatml_tokenizer(), "llama3"); }), "no token <|start_header_id|>"));
        CHECK(has(error_of([&] { found(chatml_tokenizer(), "alpaca"); }),
                  "--chat-template alpaca: there is no such file; wanted chatml, llama3, or a file"));
        put(dir.path / "config.json", "{\"chat_template\": \"{{ messages }}\"}");
        CHECK(has(error_of([&] { found(tokenizer, (dir.path / "config.json").string()); }), "is JSON; wanted"));
        put(dir.path / "broken.jinja", "{% for m in messages %}");
        CHECK(has(error_of([&] { found(tokenizer, (dir.path / "broken.jinja").string()); }), "broken.jinja, line 1"));
        const FakeTokenizer plain;
        PreparedRecords records(plain, {});
        const std::string error = error_of([&] { records.add(chat_record({{"user", "u"}}), "chat.jsonl, line 4"); });
        CHECK(has(error, "chat.jsonl, line 4: the record has messages, and the model has no chat template"));
        CHECK(has(error, "--chat-template"));
        // Texts need no template; a conversation says what is wrong with it.
        FakeTokenizer broken;
        broken.jinja = "{% if %}";
        PreparedRecords texts(broken, {});
        texts.add(text_record("abc"), "here");
        CHECK(has(error_of([&] {
                      texts.add(chat_record({{"user", "u"}}), "here");
                  }),
                  "here: the record needs the chat template, which cannot be used: the test's template, line 1"));
        CHECK(has(error_of([&] { texts.add(instruction_record("a", "", "b"), "here"); }), "cannot be used"));
        // A ChatML template that opens with bos.
        FakeTokenizer opening = chatml_tokenizer();
        opening.specials.push_back("<s>");
        opening.bos_text = "<s>";
        const PrepareSettings s{
            .T = 30, .sample_packing = false, .train_on_inputs = false, .chat_template = "", .now = {}};
        const Record chat = chat_record({{"assistant", "a"}});
        CHECK(marked({chat}, opening, s).starts_with("|<|im_start|>assistant\n[[a<|im_end|>]]\n|"));
        opening.jinja =
            "{{ bos_token }}{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' }}"
            "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
        CHECK(marked({chat}, opening, s).starts_with("|<s><|im_start|>assistant\n[[a<|im_end|>]]|"));
    }

    TEST_CASE("prepare: a tokenizer without an end of text makes nothing, as what it makes would never end") {
        FakeTokenizer endless;
        endless.eos_text.clear();
        TokenMemory memory(300);
        CHECK(has(error_of([&] { PreparedRecords(endless, {}); }), "names no end-of-text token"));
        CHECK(has(error_of([&] { append_text("a", endless, true, memory); }), "Hint: \"eos_token\" in"));
        CHECK(memory.size() == 0);
    }

    TEST_CASE("prepare: what is too long, what is empty, and what is said of it") {
        const FakeTokenizer plain;
        PreparedRecords records(
            plain, {.T = 6, .sample_packing = false, .train_on_inputs = false, .chat_template = "", .now = {}});
        records.add(completion_record("abc", "defgh"), "here");  // cut
        records.add(completion_record("abcdef", "g"), "here");   // the prompt fills the row
        records.add(completion_record("abcde", ""), "here");     // fits exactly
        records.add(text_record(""), "here");                    // nothing but an end, which is first
        records.add(text_record("ABCDEFGHIJKLMNOPQ"), "here");   // three rows with its end
        records.add(text_record("RSTUVW"), "here");              // the end alone on a second row: left out
        CHECK(records.records() == 4);
        CHECK(marked(rows_of(records), plain) ==
              "|abc[[def]]|abcde[[<eos>]]|A[[BCDEF]]|G[[HIJKL]]|M[[NOPQ<eos>]]|R[[STUVW]]|<eos>");
        const std::string summary = records.summary();
        CAPTURE(summary);
        CHECK(has(summary, "6 records (text; prompt and completion); 1 cut to 6 tokens; "));
        CHECK(has(summary,
                  "2 longer than 6 tokens, going on in further rows; 1 left out: nothing to train on; 1 left "
                  "out: the first 6 tokens have nothing to train on"));
        CHECK(records.notes() ==
              std::vector<std::string>{
                  "2 records of 6 longer than --sequence-len 6: cut or left out, 11 tokens not used. "
                  "Hint: a larger --sequence-len holds more of them"});
        PreparedRecords whole(
            plain, {.T = 9, .sample_packing = false, .train_on_inputs = false, .chat_template = "", .now = {}});
        whole.add(completion_record("abc", "defgh"), "here");
        CHECK(whole.notes().empty());
        PreparedRecords none(
            plain, {.T = 6, .sample_packing = true, .train_on_inputs = false, .chat_template = "", .now = {}});
        none.add(completion_record("abcdef", "g"), "here");
        CHECK(none.records() == 0);
        TokenMemory memory(300, 6);
        CHECK(none.write({}, false, memory).rows == 0);
        CHECK(memory.size() == 0);
        // A conversation without a reply is left out, unless inputs are trained on.
        const FakeTokenizer chatml = chatml_tokenizer();
        for (const bool inputs : {false, true}) {
            PreparedRecords chats(
                chatml, {.T = 60, .sample_packing = false, .train_on_inputs = inputs, .chat_template = "", .now = {}});
            chats.add(chat_record({{"user", "u"}}), "here");
            CHECK(chats.records() == (inputs ? 1 : 0));
        }
    }

    TEST_CASE("prepare: packing keeps every record whole and loses none, in few rows") {
        const FakeTokenizer plain;
        std::mt19937 random(5);
        for (const size_t T : {5, 16, 64}) {
            std::vector<std::string> wanted;
            PreparedRecords packed(
                plain, {.T = T, .sample_packing = true, .train_on_inputs = false, .chat_template = "", .now = {}});
            size_t tokens = 0;
            for (int i = 0; i < 200; ++i) {
                std::string text(1 + random() % (T - 1), 'a');
                for (char& c : text) c = static_cast<char>('a' + random() % 26);
                packed.add(completion_record(text.substr(0, 1), text.substr(1)), "here");
                wanted.push_back(text + "<eos>");
                tokens += text.size() + 1;
            }
            TokenMemory memory(300, T);
            const auto counts = packed.write({}, false, memory);
            CHECK(counts.records == 200);
            CHECK(counts.tokens == tokens);
            CHECK(counts.targets == tokens - 200);
            CHECK(counts.rows < (tokens + T - 1) / T * 11 / 9 + 2);  // the bound of first fit decreasing
            const TokenFile file("packed", std::move(memory));
            REQUIRE(file.size() == counts.rows * T + 1);
            CHECK(file.row_tokens() == T);
            CHECK(file.target_count() == counts.targets);
            std::vector<std::string> got;
            for (size_t i = 0; i < file.size(); ++i) {
                if (starts_document(file, i)) got.emplace_back();
                got.back() += plain.decode(std::vector<uint32_t>{token_at(file, i)}, true);
            }
            std::erase_if(got, [](const std::string& document) { return without(document, "<eos>").empty(); });
            std::sort(got.begin(), got.end());
            std::sort(wanted.begin(), wanted.end());
            CHECK(got == wanted);
        }
    }

    TEST_CASE("prepare: the share held out is spread evenly, exact, and the same every time") {
        const FakeTokenizer plain;
        PreparedRecords records(
            plain, {.T = 8, .sample_packing = false, .train_on_inputs = false, .chat_template = "", .now = {}});
        for (int i = 0; i < 103; ++i) records.add(text_record("r" + std::to_string(i)), "here");
        for (const size_t n : {0, 1, 10, 50, 103}) {
            const auto held_out = records.spread(n);
            CHECK(static_cast<size_t>(std::count(held_out.begin(), held_out.end(), true)) == n);
            const TokenFile rest = rows_of(records, held_out, false), out = rows_of(records, held_out, true);
            CHECK(rest.size() == (n == 103 ? 0 : (103 - n) * 8 + 1));
            CHECK(out.size() == (n == 0 ? 0 : n * 8 + 1));
        }
        const auto ten = records.spread(10);
        for (size_t at = 0; at + 11 <= 103; ++at) CHECK(std::count(ten.begin() + at, ten.begin() + at + 11, true) >= 1);
        CHECK(rows_of(records, ten).content_hash() == rows_of(records, ten).content_hash());
        CHECK(rows_of(records, ten).content_hash() != rows_of(records, ten, true).content_hash());
        CHECK_THROWS_AS(records.spread(104), std::logic_error);
    }

    TEST_CASE("prepare: a file of records, its errors and its progress") {
        const FreshDirectory dir;
        const fs::path path = dir.path / "r.jsonl";
        std::string blanks;  // so many that they are read in several batches
        for (int i = 0; i < 100; ++i) blanks += std::string(100000, ' ') + "\n";
        put(path,
            "{\"prompt\": \"a\", \"completion\": \"b\"}\n" + blanks + "{\"prompt\": \"c\", \"completion\": \"d\"}\n");
        const FakeTokenizer plain;
        PreparedRecords records(
            plain, {.T = 4, .sample_packing = false, .train_on_inputs = false, .chat_template = "", .now = {}});
        std::vector<size_t> done;
        records.add_file(path, 1, [&](size_t bytes, size_t total) {
            done.push_back(bytes);
            CHECK(total == fs::file_size(path));
        });
        CHECK(done.size() > 2);
        CHECK(std::is_sorted(done.begin(), done.end()));
        CHECK(done.front() > 1000000);
        CHECK(done.front() < done.back());
        CHECK(done.back() == fs::file_size(path));
        CHECK(marked(rows_of(records), plain) == "|a[[b<eos>]]|<eos>|c[[d<eos>]]|<eos>|<eos>");
        put(path, "{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"prompt\": \"c\"}\n");
        CHECK(has(error_of([&] { records.add_file(path); }), "r.jsonl, line 2: "));
        put(path, "{\"messages\": []}\n");
        CHECK(has(error_of([&] { records.add_file(path); }), "r.jsonl, line 1: the record has messages"));
    }

    TEST_CASE("prepare: records are the same for any number of threads, and so are their errors") {
        const FreshDirectory dir;
        const fs::path path = dir.path / "r.jsonl";
        const auto tokenizer = open_tokenizer("tests/tokenizers/smollm");
        std::mt19937 random(3);
        std::vector<std::string> lines;
        for (int i = 0; i < 400; ++i) {
            std::string words;
            for (size_t n = random() % 30; n > 0; --n) words += "word" + std::to_string(random() % 1000) + " é ";
            lines.push_back(i % 50 == 7 ? ""
                                        : "{\"messages\": [{\"role\": \"user\", \"content\": \"" + words +
                                              "\"}, {\"role\": \"assistant\", \"content\": \"" + words + "\"}]}");
        }
        const auto file_of = [&](const std::vector<std::string>& all) {
            std::string text;
            for (const std::string& line : all) text += line + "\n";
            put(path, text);
        };
        const auto with = [&](size_t threads) {
            PreparedRecords records(
                *tokenizer,
                {.T = 64, .sample_packing = true, .train_on_inputs = false, .chat_template = "", .now = {}});
            records.add_file(path, threads);
            TokenMemory memory(1000, 64);
            records.write({}, false, memory);
            return std::to_string(TokenFile("rows", std::move(memory)).content_hash()) + records.summary();
        };
        file_of(lines);
        const std::string one = with(1);
        CHECK(has(one, "392 records (messages, ChatML, as the model has no template); "));
        for (const size_t threads : {2, 3, 8}) CHECK(with(threads) == one);

        const std::vector<std::pair<std::string, std::string>> mistakes = {
            {"{\"messages\": 7}", "\"messages\" is 7"},
            {"{\"text\": \"x\"}", "wanted messages as in line 1"},
            {"{\"text", "is not valid JSON"}};
        for (size_t first = 0; first < mistakes.size(); ++first) {
            auto wrong = lines;
            for (size_t i = 0; i < 6; ++i) wrong[301 + 3 * i] = mistakes[(first + i) % mistakes.size()].first;
            file_of(wrong);
            for (const size_t threads : {1, 4}) {
                const std::string error = error_of([&] { with(threads); });
                CHECK(has(error, "r.jsonl, line 302: "));
                CHECK(has(error, mistakes[first].second));
            }
        }
    }

    TEST_CASE("prepare: text is one stream, whatever pieces it is encoded in") {
        const FakeTokenizer plain;
        std::string text;
        for (int i = 0; i < 1000000; ++i) text += "line " + std::to_string(i) + (i % 3 ? "\n" : "\n\n ");
        REQUIRE(text.size() > 10000000);
        TokenMemory memory(300);
        size_t last = 0;
        const size_t targets = append_text(text, plain, true, memory, 1, [&](size_t done, size_t total) {
            CHECK(total == text.size());
            CHECK(done > last);
            // A cut lies between a line end and a letter.
            if (done < total) CHECK((text[done - 1] == '\n' && text[done] == 'l'));
            last = done;
        });
        CHECK(last == text.size());
        CHECK(targets == text.size());
        append_text("two", plain, false, memory);
        const TokenFile file("text", std::move(memory));
        REQUIRE(file.size() == text.size() + 1 + 4);
        CHECK(file.row_tokens() == 0);
        size_t wrong = 0;
        for (size_t i = 0; i < text.size(); ++i) wrong += token_at(file, i) != static_cast<unsigned char>(text[i]);
        CHECK(wrong == 0);
        CHECK(token_at(file, text.size()) == 256);
        CHECK(is_target(file, text.size()));
        CHECK(document_count(file) == 2);
        CHECK(starts_document(file, text.size() + 1));
        CHECK_FALSE(is_target(file, file.size() - 1));
        CHECK(file.target_count() == targets + 2);
        TokenMemory with_bos(300);
        CHECK(append_text("", llama3_tokenizer(), true, with_bos) == 1);
        CHECK(with_bos.size() == 2);
    }

    TEST_CASE("prepare: pieces have the tokens of the whole text, whatever white space lies around a cut") {
        std::mt19937 random(11);
        // What a cut may lie between: words, blank lines, line ends of CR LF, blanks that are no ASCII, broken UTF-8.
        const std::vector<std::string> parts = {"The", " cat", "'s",           "7",        " 42", "\n",       "\n\n",
                                                "\n",  "\r\n", "\r\n\r\n",     " ",        "  ",  "\t",       ".",
                                                "!\n", "\xff", "\xe7\x8c\xab", "\xc2\xa0", "e",   "\xcc\x81", "-"};
        const std::vector<std::string> without_line_feeds = {"The", " cat", "  ", "\r\n", "7", ".", "\xe3\x80\x80"};
        const std::vector<std::string> without_place = {"x", "\r\n", "\n\n"};
        for (const std::string kind : {"gpt2", "llama3", "qwen2", "smollm"}) {
            const auto tokenizer = open_tokenizer(fs::path("tests/tokenizers") / kind);
            for (const auto* some : {&parts, &without_line_feeds, &without_place}) {
                std::string text;
                for (int i = 0; i < 4000; ++i) text += (*some)[random() % some->size()];
                std::vector<uint32_t> whole = tokenizer->encode(text, SpecialTokens::as_text);
                for (const size_t piece_bytes : {1, 7, 64}) {
                    size_t cuts = 0;
                    TokenMemory memory(static_cast<uint32_t>(tokenizer->vocabulary_size()));
                    append_text(
                        text, *tokenizer, true, memory, 1, [&](size_t, size_t) { ++cuts; }, piece_bytes);
                    const TokenFile file("text", std::move(memory));
                    const size_t bos = tokenizer->adds_bos() ? 1 : 0;
                    CAPTURE(kind);
                    CAPTURE(piece_bytes);
                    CHECK(cuts > (some == &without_place ? 0 : 3 * text.size() / 4 / (20 + 2 * piece_bytes)));
                    REQUIRE(file.size() == bos + whole.size() + 1);
                    size_t wrong = 0;
                    for (size_t i = 0; i < whole.size(); ++i) wrong += token_at(file, bos + i) != whole[i];
                    CHECK(wrong == 0);
                }
            }
        }
    }

    TEST_CASE("preview: the row's text comes back, with the targets marked") {
        const FakeTokenizer chatml = chatml_tokenizer();
        PreparedRecords records(
            chatml, {.T = 40, .sample_packing = true, .train_on_inputs = false, .chat_template = "", .now = {}});
        records.add(completion_record("\xc3\xa4h ", "caf\xc3\xa9\n"), "here");
        records.add(completion_record("1", "2\x1b[31m\xff"), "here");
        records.add(chat_record({{"user", "u"}, {"assistant", "ok"}}), "here");
        const TokenFile file = rows_of(records);
        const std::string shown = preview(file, 9, 40, chatml);
        CHECK(shown ==
              "what is trained on stands in [[ ]]:\nrow 1: 35 tokens, 10 trained on, filled up with 5\n"
              "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n[[ok<|im_end|>]]\n"
              "\n--- next document ---\n\xc3\xa4h [[caf\xc3\xa9\n<eos>]]\n"
              "row 2: 9 tokens, 8 trained on, filled up with 31\n1[[2\xef\xbf\xbd[31m\xef\xbf\xbd<eos>]]\n");
        const std::string coloured = preview(file, 1, 40, chatml, {.colour = true});
        CHECK(coloured.starts_with("what is trained on is green:\nrow 1: "));
        CHECK(has(coloured, "\x1b[32mok<|im_end|>\x1b[0m"));
        std::string text = without(without(shown.substr(shown.find("up with 5\n") + 10), "[["), "]]");
        std::vector<uint32_t> first;
        for (size_t i = 0; i == 0 || !starts_document(file, i); ++i) first.push_back(token_at(file, i));
        CHECK(text.starts_with(chatml.decode(first, true)));
        CHECK(preview(file, 0, 40, chatml).empty());
        // A stream: no filling, and a last row that is cut short.
        TokenMemory memory(300);
        append_text("abcdefg", chatml, true, memory);
        CHECK(preview(TokenFile("text", std::move(memory)), 9, 3, chatml) ==
              "what is trained on stands in [[ ]]:\nrow 1: 3 tokens, 2 trained on\na[[bc]]\nrow 2: 3 tokens, 3 trained "
              "on\n[[def]]\n"
              "row 3: 2 tokens, 2 trained on\n[[g<eos>]]\n");
    }
}
