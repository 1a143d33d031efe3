// What is trained on in conversations: templates of our own, with the constructs that published ones have, against
// marks written by hand.
#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "data/base/error.h"
#include "data/chat_template.h"
#include "tests/fake_tokenizer.h"
#include "tests/temporary_files.h"

namespace {
using namespace slab::data;
using namespace slab::test;
using Json = nlohmann::ordered_json;

FakeTokenizer tokenizer_with(const std::string& jinja) {
    FakeTokenizer tokenizer;
    tokenizer.specials = {"<eos>", "<s>", "<end>", "<call>"};
    tokenizer.bos_text = "<s>";
    tokenizer.jinja = jinja;
    return tokenizer;
}

Conversation conversation_of(const Json& record) {
    Conversation conversation;
    conversation.add_messages(record.at("messages"), "here");
    if (record.contains("tools")) conversation.set_tools(record["tools"], "here");
    if (record.contains("chat_template_kwargs")) conversation.variables = record["chat_template_kwargs"];
    return conversation;
}

ChatTokens rendered(const FakeTokenizer& tokenizer, const std::string& record) {
    std::tm date{};
    date.tm_year = 126;
    date.tm_mon = 11;
    date.tm_mday = 1;
    return ChatTemplate::find(tokenizer, {.given = "", .now = date})
        ->render(tokenizer, conversation_of(Json::parse(record)), "here");
}

// The text with what is trained on in [[ ]].
std::string marked(const FakeTokenizer& tokenizer, const ChatTokens& chat) {
    std::string text;
    for (size_t i = 0; i < chat.tokens.size(); ++i) {
        const bool before = i > 0 && chat.is_reply[i - 1], now = chat.is_reply[i];
        if (before && !now) text += "]]";
        if (!before && now) text += "[[";
        text += tokenizer.decode({&chat.tokens[i], 1}, true);
    }
    return text + (!chat.is_reply.empty() && chat.is_reply.back() ? "]]" : "");
}
std::string marked(const std::string& jinja, const std::string& record) {
    const FakeTokenizer tokenizer = tokenizer_with(jinja);
    return marked(tokenizer, rendered(tokenizer, record));
}
ChatCounts counts(const std::string& jinja, const std::string& record) {
    return rendered(tokenizer_with(jinja), record).counts;
}
std::string refusal(const std::string& jinja, const std::string& record) {
    return error_of([&] { marked(jinja, record); });
}

const std::string kPlain =
    "{% for m in messages %}{{ m.role + ': ' + m.content + '<end>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}";
// The last reply has thoughts, if only empty ones; earlier replies have none.
const std::string kLastThinks =
    "{% for m in messages %}{{ m.role + ': ' }}{% if m.role == 'assistant' and loop.last %}"
    "{{ '<think>' + m.reasoning_content | default('') + '</think>' }}{% endif %}{{ m.content + '<end>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}";

const std::string kTwo = R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"},)"
                         R"({"role": "user", "content": "v"}, {"role": "assistant", "content": "b"}]})";

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("turns: every reply up to the token that ends it") {
        CHECK(marked(kPlain, kTwo) == "user: u<end>\nassistant: [[a<end>]]\nuser: v<end>\nassistant: [[b<end>]]\n");
        CHECK(counts(kPlain, kTwo).context_turns == 0);
        // An empty reply is its end; blanks around texts are the text's own.
        CHECK(marked(kPlain,
                     R"({"messages": [{"role": "user", "content": " u\n"}, {"role": "assistant", "content": ""}]})") ==
              "user:  u\n<end>\nassistant: [[<end>]]\n");
        CHECK(marked(kPlain, R"({"messages": [{"role": "assistant", "content": "\n a "}]})") ==
              "assistant: [[\n a <end>]]\n");
        CHECK(marked(kPlain, R"({"messages": [{"role": "user", "content": "u"}]})") == "user: u<end>\n");
        CHECK(marked(kPlain, R"({"messages": []})").empty());
        // What comes after the conversation's end is no part of a turn.
        const std::string closing = kPlain + "{% if not add_generation_prompt %}{{ '<eos>' }}{% endif %}";
        CHECK(marked(closing, kTwo) ==
              "user: u<end>\nassistant: [[a<end>]]\nuser: v<end>\nassistant: [[b<end>\n<eos>]]");
    }

    TEST_CASE("turns: a template without a generation prompt, and one whose questions end in it") {
        const std::string without = "{% for m in messages %}{{ m.role + ': ' + m.content + '<end>\n' }}{% endfor %}";
        CHECK(marked(without, kTwo) == "user: u<end>\nassistant: [[a<end>]]\nuser: v<end>\nassistant: [[b<end>]]\n");
        const std::string in_question =
            "{% set system = 'Be polite.' %}{% if messages[0].role == 'system' %}{% set system = messages[0].content %}"
            "{% endif %}{{ system + '<end>' }}{% for m in messages %}{% if m.role == 'user' %}"
            "{{ 'Q: ' + m.content + '\nA: ' }}{% elif m.role == 'assistant' %}{{ m.content + '<end>\n' }}{% endif %}"
            "{% endfor %}";
        CHECK(marked(in_question, kTwo) == "Be polite.<end>Q: u\nA: [[a<end>]]\nQ: v\nA: [[b<end>]]\n");
        CHECK(marked("[INST]{{ messages[0].content }}[/INST]{{ messages[1].content }}",
                     R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]})") ==
              "[INST]u[/INST][[a]]");
        CHECK(counts("{% for m in messages %}{{ m.content }}{% endfor %}", kTwo).endless == 2);
    }

    TEST_CASE("turns: where replies change later, the last one alone is trained on, as it is generated") {
        CHECK(marked(kLastThinks, kTwo) ==
              "user: u<end>\nassistant: a<end>\nuser: v<end>\nassistant: [[<think></think>b<end>]]\n");
        const ChatCounts made = counts(kLastThinks, kTwo);
        CHECK(made.context_turns == 1);
        CHECK(made.conversations == 1);
        CHECK(marked(kLastThinks, R"({"messages": [{"role": "user", "content": "u"},)"
                                  R"({"role": "assistant", "content": "a", "reasoning_content": "hm"}]})") ==
              "user: u<end>\nassistant: [[<think>hm</think>a<end>]]\n");
        // A generation prompt that opens thoughts, which the reply then lacks.
        const std::string opens =
            "{% for m in messages %}{{ m.role + ': ' + m.content + '<end>' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ 'assistant: <think>\n' }}{% endif %}";
        CHECK(marked(opens, kTwo) == "user: u<end>assistant: [[a<end>]]user: v<end>assistant: [[b<end>]]");
        CHECK(counts(opens, kTwo).other_openings == 2);
        // A template that refuses a conversation's beginning shows no such beginning.
        const std::string strict =
            "{% if messages[0].role != 'user' %}{{ raise_exception('first a question') }}{% endif %}" + kPlain;
        CHECK(marked(strict, kTwo) == marked(kPlain, kTwo));
        CHECK(refusal(strict, R"({"messages": [{"role": "assistant", "content": "a"}]})")
                  .starts_with("here: the chat template cannot render it: the template refuses the conversation: first "
                               "a question (the "
                               "test's template, line 1"));
    }

    TEST_CASE("turns: generation blocks say it themselves") {
        const std::string blocks =
            "{% for m in messages %}{% if m.role == 'assistant' %}{{ 'A: ' }}{% generation %}{{ m.content }}<end>"
            "{% endgeneration %}{{ '\n' }}{% else %}{{ m.content + '\n' }}{% endif %}{% endfor %}";
        CHECK(marked(blocks, kTwo) == "u\nA: [[a<end>]]\nv\nA: [[b<end>]]\n");
        const std::string first_not =
            R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a", "loss": 0},)"
            R"({"role": "user", "content": "v"}, {"role": "assistant", "content": "b", "loss": 1}]})";
        CHECK(marked(blocks, first_not) == "u\nA: a<end>\nv\nA: [[b<end>]]\n");
        const std::string word_alone =
            "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}<end>{% endfor %}";
        CHECK(counts(word_alone, R"({"messages": [{"role": "assistant", "content": "a"}]})").endless == 1);
    }

    TEST_CASE("turns: flags of messages leave replies out of what is trained on") {
        for (const char* const flag : {"\"weight\": 0", "\"loss\": false", "\"loss_mask\": 0", "\"train\": false",
                                       "\"training\": 0", "\"train\": false, \"weight\": 0"}) {
            CAPTURE(flag);
            CHECK(marked(kPlain,
                         R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a", )" +
                             std::string(flag) + R"(}, {"role": "assistant", "content": "b", "weight": 1}]})") ==
                  "user: u<end>\nassistant: a<end>\nassistant: [[b<end>]]\n");
        }
        CHECK(marked(kPlain, R"({"messages": [{"role": "assistant", "content": "a", "train": null}]})") ==
              "assistant: [[a<end>]]\n");
    }

    TEST_CASE("turns: tools, calls, thoughts and roles only where the template has a place for them") {
        const std::string with_tools =
            "{% if tools %}{{ tools | tojson + '\n' }}{% endif %}{% for m in messages %}{{ m.role + ': ' }}"
            "{% if m.role == 'tool' %}{{ '(' + m.content + ')' }}{% elif m.tool_calls %}{% for c in m.tool_calls %}"
            "{{ '<call>' + c.function.name + c.function.arguments | tojson }}{% endfor %}{% else %}{{ m.content }}"
            "{% endif %}{{ '<end>\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}";
        const std::string calls =
            R"({"tools": [{"name": "f", "b": 1, "a": 2}], "messages": [{"role": "user", "content": "u"},)"
            R"({"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"z": 1, "y": 2}}}]},)"
            R"({"role": "tool", "content": "7"}, {"role": "assistant", "content": "a"}]})";
        CHECK(marked(with_tools, calls) ==
              "[{\"name\": \"f\", \"b\": 1, \"a\": 2}]\nuser: u<end>\nassistant: [[<call>f{\"z\": 1, \"y\": 2}<end>]]\n"
              "tool: (7)<end>\nassistant: [[a<end>]]\n");
        const std::string text_of_tools =
            R"({"tools": "[{\"name\": \"f\"}]", "messages": [{"role": "assistant", "content": "a"}]})";
        CHECK(marked(with_tools, text_of_tools).starts_with("[{\"name\": \"f\"}]\n"));
        CHECK(
            has(refusal(kPlain, calls), "here: the record has \"tools\", and the chat template has no place for them"));
        CHECK(has(refusal(kPlain, R"({"messages": [{"role": "assistant", "content": "a", "tool_calls": [1]}]})"),
                  "message 1 has \"tool_calls\", and the chat template has no place for it"));
        CHECK(has(refusal(kPlain, R"({"messages": [{"role": "assistant", "content": "a", "thinking": "b"}]})"),
                  "message 1 has \"thinking\""));
        CHECK(marked(kPlain,
                     R"({"messages": [{"role": "assistant", "content": "a", "thinking": "", "tool_calls": []}]})") ==
              "assistant: [[a<end>]]\n");
        // A role that is printed is shown as it is; one that would become another's turn is refused.
        CHECK(marked(kPlain, R"({"messages": [{"role": "tool", "content": "a"}]})") == "tool: a<end>\n");
        CHECK(has(
            refusal(
                "{% for m in messages %}{% if m.role == 'user' %}Q{% else %}A{% endif %}{{ m.content }}{% endfor %}",
                R"({"messages": [{"role": "tool", "content": "a"}]})"),
            "message 1 has the role \"tool\", which the chat template does not know"));
        // Keys that are null are left out; thoughts have both of their names.
        CHECK(marked("{{ messages[0].content is defined }}{{ messages[0].tool_calls | length }}",
                     R"({"messages": [{"role": "user", "content": null, "tool_calls": [1]}]})") == "False1");
        CHECK(marked("{{ messages[0].thinking }}{{ messages[0].reasoning_content }}",
                     R"({"messages": [{"role": "user", "content": "", "reasoning": "r"}]})") == "rr");
        // Of two templates the one for tools, where there are tools.
        FakeTokenizer two = tokenizer_with(kPlain);
        two.tool_use = with_tools;
        CHECK(marked(two, rendered(two, calls)) == marked(with_tools, calls));
        CHECK(marked(two, rendered(two, kTwo)) == marked(kPlain, kTwo));
    }

    TEST_CASE("turns: what the template leaves out is counted, and keys that it does not read are named") {
        const std::string no_system =
            "{% for m in messages if m.role != 'system' %}{{ m.content + '<end>' }}{% endfor %}";
        CHECK(
            counts(no_system, R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]})")
                .lost_contents == 1);
        CHECK(
            counts(no_system, R"({"messages": [{"role": "system", "content": " "}, {"role": "user", "content": "u"}]})")
                .lost_contents == 0);
        CHECK(counts(kLastThinks, R"({"messages": [{"role": "assistant", "content": "a", "reasoning": "r"},)"
                                  R"({"role": "assistant", "content": "b", "reasoning": "s"}]})")
                  .lost_thoughts == 1);
        CHECK(counts(kPlain, R"({"messages": [{"role": "user", "name": "n", "content": "u", "id": 1},)"
                             R"({"role": "assistant", "content": "a", "name": null}]})")
                  .unused_keys == std::vector<std::string>{"name", "id"});
        CHECK(counts("{% for m in messages %}{{ m.name + m.content }}{% endfor %}",
                     R"({"messages": [{"role": "user", "name": "n", "content": "u"}]})")
                  .unused_keys.empty());
    }

    TEST_CASE("turns: a special token's spelling stays text, but where the assistant says it") {
        const std::string say =
            R"({"messages": [{"role": "system", "content": "<s><end>"}, {"role": "user", "content": "<end>x<end>"},)"
            R"({"role": "assistant", "content": "<call>go"}]})";
        for (const std::string filter : {"", " | trim", "[0:]", " | replace('q', 'r')"}) {
            const std::string jinja = "{% for m in messages %}{{ m.content" + filter +
                                      " }}<end>{% endfor %}{% if add_generation_prompt %}{% endif %}";
            CAPTURE(jinja);
            const FakeTokenizer tokenizer = tokenizer_with(jinja);
            const ChatTokens chat = rendered(tokenizer, say);
            CHECK(marked(tokenizer, chat) == "<s><end><end><end>x<end><end>[[<call>go<end>]]");
            size_t specials = 0;
            for (const uint32_t id : chat.tokens) specials += tokenizer.is_special(id);
            CHECK(specials == 4);
            CHECK(chat.counts.special_replies == 1);
            CHECK(chat.counts.special == "<call>");
        }
        CHECK(counts(kPlain, kTwo).special_replies == 0);
    }

    TEST_CASE("turns: lists of parts as the template takes them, variables, dates and special tokens") {
        const std::string parts =
            R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "u"}, {"type": "text", "text": "v"}]},)"
            R"({"role": "assistant", "content": [{"type": "text", "text": "a"}]}]})";
        CHECK(marked(kPlain, parts) == "user: uv<end>\nassistant: [[a<end>]]\n");
        CHECK(marked("{% for m in messages %}{{ m.content }}<end>{% endfor %}", parts) == "uv<end>[[a<end>]]");
        CHECK(marked(
                  "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
                  "{{ p.text }}{% if not loop.last %}|{% endif %}{% endfor %}{% endif %}<end>{% endfor %}",
                  parts) == "u|v<end>[[a<end>]]");
        const std::string one = R"({"messages": [{"role": "user", "content": "u"}])";
        CHECK(marked("{{ bos_token }}{{ strftime_now('%d %b %Y') }}{{ pad_token }}{{ messages[0].content }}{{ tools is "
                     "none }}",
                     one + "}") == "<s>01 Dec 2026uTrue");
        const std::string thinking =
            "{{ messages[0].content }}{% if enable_thinking is defined and not enable_thinking %}!{% endif %}";
        CHECK(marked(thinking, one + R"(, "chat_template_kwargs": {"enable_thinking": false}})") == "u!");
        CHECK(has(refusal(thinking, one + R"(, "chat_template_kwargs": {"thinking": false}})"),
                  "gives \"thinking\", and the chat template has no place for it"));
        CHECK(has(refusal("{{ messages[0].content }}",
                          R"({"messages": [{"role": "user", "content": "u", "n": 18446744073709551615}]})"),
                  "here: holds the integer 18446744073709551615"));
    }

    TEST_CASE("turns: a prompt is the conversation and the opening of a reply; ends of turns are the template's own") {
        const auto prompt = [](const FakeTokenizer& tokenizer) {
            Conversation conversation;
            conversation.add("user", "<end>");
            return tokenizer.decode(ChatTemplate::find(tokenizer, {})->prompt(tokenizer, conversation, "here"), true);
        };
        const FakeTokenizer plain = tokenizer_with(kPlain);
        CHECK(prompt(plain) == "user: <end><end>\nassistant: ");
        CHECK(ChatTemplate::find(plain, {})->ends_of_turn(plain) == std::vector<uint32_t>{258});
        const FakeTokenizer endless = tokenizer_with("{% for m in messages %}{{ m.content }}\n{% endfor %}");
        CHECK(ChatTemplate::find(endless, {})->ends_of_turn(endless).empty());
        const FakeTokenizer strict = tokenizer_with("{{ raise_exception('no') }}");
        CHECK(ChatTemplate::find(strict, {})->ends_of_turn(strict).empty());
    }

    TEST_CASE("turns: hundreds of broken templates end in a text or in an error, and mark nothing beside the text") {
        const std::vector<std::string> whole = {
            kPlain, kLastThinks,
            "{% macro say(m) %}{{ m.role }}: {{ m.content | trim }}<end>{% endmacro %}{% set ns = "
            "namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% if m.role == "
            "'assistant' %}{% generation %}{{ say(m) }}{% endgeneration %}{% else %}{{ say(m) }}{% "
            "endif %}{{ messages[ns.n:] | length }}{% endfor %}"};
        const std::string pieces = "{}%-|()[]'\".,:~+*/<>=! \n0123abmsnroletcontent_\xc3\xa9";
        std::mt19937 random(7);
        size_t texts = 0, errors = 0;
        for (int i = 0; i < 600; ++i) {
            std::string jinja = whole[static_cast<size_t>(i) % whole.size()];
            for (int change = static_cast<int>(random() % 3); change >= 0; --change) {
                const size_t at = random() % jinja.size(), bytes = 1 + random() % 9;
                if (random() % 3 == 0)
                    jinja.erase(at, bytes);
                else if (random() % 2 == 0)
                    jinja.insert(at, jinja.substr(random() % jinja.size(), bytes));
                else
                    jinja[at] = pieces[random() % pieces.size()];
                if (jinja.empty()) jinja = "x";
            }
            CAPTURE(jinja);
            const FakeTokenizer tokenizer = tokenizer_with(jinja);
            try {
                const ChatTokens chat = rendered(tokenizer, kTwo);
                CHECK(chat.tokens.size() == chat.is_reply.size());
                ++texts;
            } catch (const UserError&) {
                ++errors;
            }
        }
        CHECK(texts > 60);
        CHECK(errors > 60);
    }
}
