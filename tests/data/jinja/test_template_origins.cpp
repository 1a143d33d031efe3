// Where the bytes of a rendered text come from, and which of them generation blocks printed.
#include <doctest/doctest.h>

#include <string>

#include "data/jinja/template.h"

namespace {
using namespace slab::data::jinja;

// The text with each origin's spans in brackets: "a" of origin 1 is "1[a]".
std::string marked(const Rendered& rendered) {
    std::string text;
    size_t at = 0;
    for (const Span& span : rendered.origins) {
        REQUIRE(span.begin >= at);
        REQUIRE(span.end > span.begin);
        REQUIRE(span.end <= rendered.text.size());
        text += rendered.text.substr(at, span.begin - at) + std::to_string(span.origin) + "[" +
                rendered.text.substr(span.begin, span.end - span.begin) + "]";
        at = span.end;
    }
    return text + rendered.text.substr(at);
}

// user (1): " Hi <x> ", assistant (2): "Hello", parts: texts of 3 and 4 in a list.
Rendered rendered(const std::string& source) {
    Arena arena;
    DictBuilder context(arena);
    context.set(Value::text_of("user"), Value::text_of(" Hi <x> ", 1));
    context.set(Value::text_of("assistant"), Value::text_of("Hello", 2));
    context.set(Value::text_of("script"), Value::text_of("你好 Ünï", 5));
    ListBuilder parts(arena);
    parts.add(Value::text_of("a\"b", 3));
    parts.add(Value::text_of("c\n", 4));
    context.set(Value::text_of("parts"), parts.finish());
    DictBuilder tool(arena);
    tool.set(Value::text_of("name", 6), Value::text_of("é", 7));
    context.set(Value::text_of("tool"), tool.finish());
    return Template::compile(source, "t").render(context.finish());
}

std::string origins(const std::string& source) {
    return marked(rendered(source));
}

std::string generated(const std::string& source) {
    const Rendered result = rendered(source);
    std::string text;
    for (const Span& span : result.generation)
        text += "(" + result.text.substr(span.begin, span.end - span.begin) + ")";
    return text;
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("origins: a printed text keeps its own, what is around it is the template's") {
        CHECK(origins("<|user|>{{ user }}<|end|>{{ assistant }}") == "<|user|>1[ Hi <x> ]<|end|>2[Hello]");
        CHECK(origins("{{ user }}{{ user }}") == "1[ Hi <x>  Hi <x> ]");
        CHECK(origins("{{ 'user' }}{{ 5 }}") == "user5");
        CHECK(rendered("{{ 'x' }}").origins.empty());
    }

    TEST_CASE("origins: operators, slices, filters and methods keep them byte for byte") {
        CHECK(origins("{{ '<' + user + '>' + assistant }}") == "<1[ Hi <x> ]>2[Hello]");
        CHECK(origins("{{ '<' ~ user ~ 1 ~ assistant }}") == "<1[ Hi <x> ]12[Hello]");
        CHECK(origins("{{ user | trim }}|{{ user.strip() }}|{{ user.lstrip() }}") == "1[Hi <x>]|1[Hi <x>]|1[Hi <x> ]");
        CHECK(origins("{{ ('a' + user + 'b')[1:4] }}") == "1[ Hi]");
        CHECK(origins("{{ ('ab' + user)[1:4] }}|{{ (user + assistant)[-7:-3] }}") == "b1[ H]|1[> ]2[He]");
        CHECK(origins("{{ (user + assistant)[::-1] }}") == "2[olleH]1[ >x< iH ]");
        CHECK(origins("{{ (user + assistant) | upper }}") == "1[ HI <X> ]2[HELLO]");
        CHECK(origins("{{ ('q' + script) | upper }}|{{ script[1:3] }}") == "Q5[你好 ÜNÏ]|5[好 ]");
        CHECK(origins("{{ user.replace('<x>', '<y>') }}|{{ 'a-b' | replace('-', user | trim) }}") ==
              "1[ Hi ]<y>1[ ]|a1[Hi <x>]b");
        CHECK(origins("{{ parts | join('+') }}|{{ '+'.join(parts) }}") == "3[a\"b]+4[c\n]|3[a\"b]+4[c\n]");
        CHECK(origins("{{ ('x,' + user).split(',') | last }}|{{ (user ~ '|' ~ assistant).split('|')[1] }}") ==
              "1[ Hi <x> ]|2[Hello]");
        CHECK(origins("{{ '%s/%s' % (user, assistant) }}|{{ '{}/{:>7}'.format(user, assistant) }}") ==
              "1[ Hi <x> ]/2[Hello]|1[ Hi <x> ]/  2[Hello]");
        CHECK(origins("{{ ('a\\n' + parts[1] + 'b') | indent(1) }}") == "a\n 4[c]\n b");
        CHECK(origins("{{ user | e }}") == "1[ Hi ]&lt;1[x]&gt;1[ ]");
        CHECK(origins("{{ assistant * 2 }}|{{ assistant | title }}|{{ assistant | first }}") ==
              "2[HelloHello]|2[Hello]|2[H]");
        CHECK(origins("{% for c in user + assistant %}{{ c }}.{% endfor %}").starts_with("1[ ].1[H].1[i]."));
    }

    TEST_CASE("origins: JSON, lists and dicts are the template's but for the texts in them") {
        CHECK(origins("{{ tool | tojson }}") == R"({"6[name]": "7[é]"})");
        CHECK(origins("{{ tool | tojson(ensure_ascii=true) }}") == R"({"6[name]": "7[\u00e9]"})");
        CHECK(origins("{{ parts | tojson }}") == R"(["3[a\"b]", "4[c\n]"])");
        CHECK(origins("{{ parts }}") == R"(['3[a"b]', '4[c\n]'])");
        CHECK(origins("{{ (user ~ 'x') | tojson }}") == "\"1[ Hi <x> ]x\"");
    }

    TEST_CASE("origins: macros, blocks and variables hand them on") {
        CHECK(origins("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(user) }}{{ m(assistant) | upper }}") ==
              "<1[ Hi <x> ]><2[HELLO]>");
        CHECK(origins("{% set x %}<{{ user }}>{% endset %}{{ x[1:] }}") == "1[ Hi <x> ]>");
        CHECK(origins("{% filter trim %} {{ user }}{% endfilter %}") == "1[Hi <x>]");
        CHECK(origins("{% set ns = namespace(x='') %}{% set ns.x = ns.x ~ user %}{{ ns.x }}") == "1[ Hi <x> ]");
        CHECK(origins("{% set u = user | trim %}{% if u == 'Hi <x>' %}{{ u }}{% endif %}") == "1[Hi <x>]");
    }

    TEST_CASE("generation blocks mark what they print, wherever it goes") {
        CHECK(generated("a{% generation %}b{{ assistant }}{% endgeneration %}c") == "(bHello)");
        CHECK(generated("a{% generation %}{% endgeneration %}c").empty());
        CHECK(generated("{% for x in [1, 2] %}-{% generation %}{{ x }}{% endgeneration %}{% endfor %}") == "(1)(2)");
        CHECK(generated("{% generation %}a{% endgeneration %}{% generation %}b{% endgeneration %}") == "(ab)");
        CHECK(generated("{% macro m() %}x{% generation %}{{ assistant }}{% endgeneration %}y{% endmacro %}<{{ m() | "
                        "trim }}>") == "(Hello)");
        CHECK(
            generated("{% set x %}{% generation %} {{ user }}{% endgeneration %}{% endset %}{{ x | trim | upper }}") ==
            "(HI <X>)");
        CHECK(origins("{% generation %}b{{ assistant }}{{ user }}c{% endgeneration %}") == "b2[Hello]1[ Hi <x> ]c");
        CHECK(Template::compile("{% generation %}{% endgeneration %}", "t").has_generation());
        CHECK_FALSE(Template::compile("generation", "t").has_generation());
    }

    TEST_CASE("a template says what it reads and mentions") {
        const Template compiled = Template::compile(
            "{% for m in messages %}{{ m.content }}{{ m['extra'] }}{% endfor %}{% set q = tools %}", "t");
        CHECK(compiled.context_names() == std::vector<std::string>{"messages", "tools"});
        CHECK(compiled.mentions("extra"));
        CHECK(compiled.mentions("content"));
        CHECK(compiled.mentions("tools"));
        CHECK_FALSE(compiled.mentions("reasoning"));
    }
}
