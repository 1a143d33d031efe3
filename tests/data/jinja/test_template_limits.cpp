// Templates that are wrong or hostile: refused with their place, in bounded time and memory, without a crash.
#include <doctest/doctest.h>

#include <fstream>
#include <string>

#include "data/jinja/from_json.h"
#include "data/jinja/template.h"
#include "tests/mutations.h"

namespace {
using namespace slab::data::jinja;
using Json = nlohmann::ordered_json;

RenderOptions tight() {
    RenderOptions options;
    options.max_steps = 300'000;
    options.max_text_bytes = size_t{4} << 20;
    options.max_memory_bytes = size_t{16} << 20;
    return options;
}

Value context_of(const Json& json, Arena& arena) {
    return from_json(json, arena, [](const std::string&) { return uint32_t{1}; });
}

// What the template is refused for; empty when it is not.
std::string refusal(const std::string& source, const Json& json = Json::object()) {
    Arena arena;
    try {
        Template::compile(source, "t.jinja").render(context_of(json, arena), tight());
        return "";
    } catch (const TemplateError& error) {
        CHECK(std::string(error.what()) == error.error.text());
        return error.what();
    }
}

bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

std::string repeated(const std::string& text, size_t times) {
    std::string all;
    for (size_t i = 0; i < times; ++i) all += text;
    return all;
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("template errors name line, column and what is wrong") {
        CHECK(refusal("a\n  {{ x.y }}") == "t.jinja, line 2, column 7: uses \"x\", which is not defined");
        CHECK(refusal("你好{{ 1 + }}") == "t.jinja, line 1, column 10: has \"}}\"; wanted an expression");
        CHECK(has(refusal("{% include 'x' %}"), "line 1, column 4: uses {% include %}, which is not implemented"));
        CHECK(has(refusal("{% for x in [] recursive %}{% endfor %}"), "recursive loop"));
        CHECK(has(refusal("{{ 'x' | wordwrap }}"), "unknown filter \"wordwrap\""));
        CHECK(has(refusal("{{ 1 is sorted }}"), "unknown test \"sorted\""));
        CHECK(has(refusal("{{ 'x'.casefold() }}"), "casefold() of a text, which is not implemented"));
        CHECK(has(refusal("{{ cycler(1) }}"), "\"cycler\", which is not implemented"));
        CHECK(has(refusal("{{ (1).real }}"), "prints a method"));
        CHECK(has(refusal("{% set x = [] %}{{ x.append(1) }}"), "\"append\", which a template may not"));
        CHECK(has(refusal("{{ 'É' is upper }}"), "not ASCII"));
        CHECK(has(refusal("{{ 'Σ' | lower }}"), "capital sigma"));
        CHECK(has(refusal("{#"), "comment that does not end"));
        CHECK(has(refusal("{% raw %}x"), "raw block that does not end"));
        CHECK(has(refusal("\xff"), "not valid UTF-8"));
        // A macro's error is where it happens, not where it is called.
        CHECK(has(refusal("{% macro m() %}\n{{ 1 / 0 }}{% endmacro %}\n\n{{ m() }}"),
                  "line 2, column 6: divides by zero"));
        CHECK(refusal("{{ missing_one }}{{ 'x' if false }}") == "");
    }

    TEST_CASE("a template's own refusal is told apart") {
        Arena arena;
        const Template compiled = Template::compile("{{ raise_exception('Roles must ' ~ 'alternate') }}", "t.jinja");
        try {
            compiled.render(context_of(Json::object(), arena));
            FAIL("not refused");
        } catch (const TemplateError& error) {
            CHECK(error.raised);
            CHECK(error.error.given == "the template refuses the conversation: Roles must alternate");
            CHECK(error.error.subject == "t.jinja, line 1, column 19");
        }
        CHECK_THROWS_AS(compiled.render(context_of(Json::object(), arena)), slab::data::UserError);
    }

    TEST_CASE("hostile templates: nesting is bounded in parser and evaluator") {
        for (const char* const open :
             {"(", "[", "{1:", "-", "not ", "x if ", "x[", "f(", "x.y(", "1 if 1 else ", "x|f("})
            CHECK(has(refusal("{{ " + repeated(open, 100'000)), "t.jinja"));
        CHECK(has(refusal(repeated("{% if 1 %}", 10'000)), "nested too deeply"));
        CHECK(has(refusal(repeated("{% for x in y %}", 10'000)), "nested too deeply"));
        CHECK(has(refusal(repeated("{% macro m() %}", 10'000)), "nested too deeply"));
        CHECK(has(refusal("{{ 1" + repeated(" + 1", 100'000) + " }}"), "nested too deeply"));
        CHECK(has(refusal("{{ x" + repeated(".y", 100'000) + " }}"), "nested too deeply"));
        CHECK(has(refusal("{{ x" + repeated("|trim", 100'000) + " }}"), "nested too deeply"));
        CHECK(refusal("{{ 1" + repeated(" ~ 1", 10'000) + " }}") == "");
        CHECK(refusal("{{ 1" + repeated(" + 1", 200) + " }}") == "");
        CHECK(refusal(repeated("{% if 1 %}", 40) + repeated("{% endif %}", 40)) == "");
        CHECK(has(refusal("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), "too deeply"));
        CHECK(has(refusal("{% macro m(x) %}{{ [x, m([x, [x]])] | string }}{% endmacro %}{{ m(1) }}"), "too deeply"));
        const std::string self = "{% set ns = namespace() %}{% set ns.a = [ns] %}";
        CHECK(has(refusal(self + "{{ ns }}"), "deeper than"));
        CHECK(has(
            refusal(
                "{% set ns = namespace(a=1) %}{% for i in range(1000) %}{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a }}"),
            "deeper than"));
        CHECK(has(refusal("{% set ns = namespace(a=1, b=1) %}{% for i in range(1000) %}{% set ns.a = [ns.a] %}{% set "
                          "ns.b = [ns.b] %}"
                          "{% endfor %}{{ ns.a == ns.b }}"),
                  "deeper than"));
        CHECK(has(refusal("{% set ns = namespace(a=[1]) %}{% for i in range(5000) %}{% set ns.a = ns.a | map('string') "
                          "%}{% endfor %}"
                          "{{ ns.a | list }}"),
                  "too deeply"));
        CHECK(has(refusal("{% set ns = namespace(a=1) %}{% for i in range(1000) %}{% set ns.a = (ns.a,) %}{% endfor "
                          "%}{{ {ns.a: 1} }}"),
                  "as a key"));
        CHECK(has(refusal("{% set ns = namespace(a=1) %}{% for i in range(1000) %}{% set ns.a = (ns.a,) %}{% endfor "
                          "%}{{ {}[ns.a] }}"),
                  "as a key"));
    }

    TEST_CASE("hostile templates: steps and texts and lists and numbers are bounded") {
        const std::string doubled =
            "{% set ns = namespace(s=1, r=1) %}{% for i in range(100) %}{% set ns.s = (ns.s, ns.s) %}"
            "{% set ns.r = (ns.r, ns.r) %}{% endfor %}";
        for (const char* const use :
             {"ns.s == ns.r", "ns.s < ns.r", "ns.s in [ns.r]", "[ns.s, ns.r] | sort", "[ns.s, ns.r] | max", "{ns.s: 1}",
              "{}[ns.s]", "{}.get(ns.s)", "[ns.s] | unique | list", "ns.s is eq ns.r", "[ns.s].index(ns.r)",
              "ns.s | string", "ns.s | tojson", "[ns.s] | select('eq', ns.r) | list"})
            CHECK(has(refusal(doubled + "{{ " + use + " }}"), "t.jinja"));
        CHECK(
            has(refusal("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"), "steps"));
        CHECK(has(refusal("{{ range(100001) }}"), "100000 at most"));
        CHECK(has(refusal("{{ range(-9223372036854775807, 9223372036854775807) | length }}"), "100000 at most"));
        CHECK(has(refusal("{{ 'x' * 100000000 }}"), "steps"));
        CHECK(has(refusal("{{ ('x' * 1000) * 100000 }}"), "bytes"));
        CHECK(has(refusal("{{ [1] * 9223372036854775807 }}"), "t.jinja"));
        CHECK(has(refusal("{{ [1, 2, 3] * 100000 * 100000 }}"), "t.jinja"));
        CHECK(has(refusal("{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s "
                          "%}{% endfor %}"),
                  "t.jinja"));
        CHECK(has(
            refusal("{% set ns = namespace(s=[1]) %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}"),
            "t.jinja"));
        CHECK(has(refusal("{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s.replace('x', "
                          "'xxxxxxxx') %}{% endfor %}"),
                  "t.jinja"));
        CHECK(has(refusal("{% set ns = namespace(s=[1]) %}{% for i in range(100) %}{% set ns.s = [ns.s, ns.s, ns.s] "
                          "%}{% endfor %}{{ ns.s }}"),
                  "t.jinja"));
        CHECK(has(refusal("{% set ns = namespace(s=1) %}{% for i in range(100) %}{% set ns.s = [ns.s, ns.s] %}{% "
                          "endfor %}{{ ns.s | tojson }}"),
                  "t.jinja"));
        CHECK(has(refusal("{{ 9223372036854775807 + 1 }}"), "64 bits"));
        CHECK(has(refusal("{{ -9223372036854775807 - 2 }}"), "64 bits"));
        CHECK(has(refusal("{{ (-9223372036854775807 - 1) // -1 }}"), "64 bits"));
        CHECK(has(refusal("{{ (-9223372036854775807 - 1) | abs }}"), "64 bits"));
        CHECK(has(refusal("{{ -(-9223372036854775807 - 1) }}"), "64 bits"));
        CHECK(has(refusal("{{ 10 ** 100 }}"), "64 bits"));
        CHECK(has(refusal("{{ 2 ** 9223372036854775807 }}"), "64 bits"));
        CHECK(refusal("{{ (-9223372036854775807 - 1) % -1 + (-9223372036854775807 - 1) % 3 }}{{ 1 ** "
                      "9223372036854775807 }}") == "");
        CHECK(has(refusal("{{ 99999999999999999999 }}"), "64 bits"));
        CHECK(has(refusal("{{ '%d' % 1e30 }}"), "64 bits"));
        CHECK(has(refusal("{{ range(0, 6, 3)[::9223372036854775807] }}"), "64 bits"));
        CHECK(has(refusal("{{ 1e300 ** 2 }}"), "too large"));
        CHECK(has(refusal("{{ '99999999999999999999' | int }}"), "64 bits"));
        CHECK(has(refusal("{{ 1e30 | int }}"), "64 bits"));
        CHECK(has(refusal("{{ '%999999999d' % 1 }}"), "width"));
        CHECK(has(refusal("{{ '%.999999999f' % 1 }}"), "precision"));
        CHECK(has(refusal("{{ '{:999999999}'.format(1) }}"), "width"));
        CHECK(has(refusal("{{ 'x'.center(999999999) }}"), "steps"));
        CHECK(has(refusal("{{ [1] | batch(999999999, 0) | list }}"), "steps"));
        CHECK(has(refusal("{{ [1] | slice(999999999) | list }}"), "steps"));
        CHECK(has(refusal("{{ [[1]] | tojson(indent=999999999) }}"), "indent"));
        CHECK(has(refusal("{{ strftime_now('%999999999Y') }}"), "strftime_now"));
        CHECK(
            refusal(
                "{{ 'abc'[-9223372036854775807:9223372036854775807:9223372036854775807] }}{{ [1, "
                "2][::-9223372036854775807] }}"
                "{{ range(5)[::9223372036854775807] }}{{ [1][9223372036854775807] }}{{ 'a'[-9223372036854775807] }}") ==
            "");
        CHECK(has(refusal(std::string(2'000'000, ' ')), "2000000 bytes"));
    }

    TEST_CASE("hostile templates: searching is linear however texts repeat themselves") {
        const Json texts = {{"a", std::string(1'000'000, 'a')}, {"b", std::string(500'000, 'a') + "b"}};
        for (const char* const source :
             {"{{ b in a }}", "{{ a.find(b) }}", "{{ a.rfind(b) }}", "{{ a.count(b) }}",
              "{{ a.replace(b, 'x') | length }}", "{{ a.split(b) | length }}", "{{ a.rsplit(b) | length }}",
              "{{ a.partition(b) | length }}", "{{ a.rpartition(b) | length }}", "{{ a.rfind(a[500000:]) }}",
              "{{ a.strip(b) }}", "{{ a.split() | length }}", "{{ a == b }}"})
            CHECK(refusal(source, texts) == "");
    }

    // 300 of them; SLABSTREAM_MUTATIONS says otherwise.
    TEST_CASE("broken templates are rendered or refused, and nothing else") {
        const Json fixture = Json::parse(std::ifstream("tests/template_cases.json"));
        const Json& cases = fixture.at("cases");
        Arena arena;
        const Value context = context_of(fixture.at("context"), arena);
        size_t rendered = 0;
        const size_t number = slab::test::mutations(300);
        for (size_t i = 0; i < number; ++i) {
            slab::test::Spoiler spoiler(i);
            std::string source;
            for (size_t k = 1 + spoiler.below(3); k > 0; --k)
                source += cases[spoiler.below(cases.size())].at("template").get<std::string>();
            if (spoiler.below(8) != 0) source = spoiler.spoilt(source, source.size(), true);
            CAPTURE(i);
            CAPTURE(source);
            try {
                const Rendered result = Template::compile(source, "t.jinja").render(context, tight());
                CHECK(result.text.size() <= tight().max_text_bytes);
                ++rendered;
            } catch (const TemplateError&) {
            }
        }
        CHECK(rendered > number / 20);
    }
}
