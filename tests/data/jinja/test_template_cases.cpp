// Templates of our own against jinja2 (template_cases.json, written by dev/reference/compare_templates.py --fixture).
#include <doctest/doctest.h>

#include <ctime>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "data/jinja/from_json.h"
#include "data/jinja/template.h"

namespace {
using namespace slab::data::jinja;
using Json = nlohmann::ordered_json;

Json fixture() {
    return Json::parse(std::ifstream("tests/template_cases.json"));
}

uint32_t no_origin(const std::string&) {
    return kTemplateOrigin;
}

RenderOptions at_time(const Json& cases) {
    RenderOptions options;
    const auto now = cases.at("now").get<std::time_t>();
    gmtime_r(&now, &options.now);
    return options;
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("template cases: text and refusals are jinja2's") {
        const Json cases = fixture();
        Arena arena;
        const Value context = from_json(cases.at("context"), arena, no_origin);
        const RenderOptions options = at_time(cases);
        size_t texts = 0;
        for (const Json& one : cases.at("cases")) {
            const auto source = one.at("template").get<std::string>();
            CAPTURE(source);
            if (one.contains("error")) {
                CHECK_THROWS_AS(Template::compile(source, "t").render(context, options), TemplateError);
                continue;
            }
            ++texts;
            std::string text;
            CHECK_NOTHROW(text = Template::compile(source, "t").render(context, options).text);
            CHECK(text == one.at("text").get<std::string>());
        }
        CHECK(texts > 200);
    }

    TEST_CASE("template cases: one compiled template renders in several threads at once") {
        const Json cases = fixture();
        Arena arena;
        const Value context = from_json(cases.at("context"), arena, no_origin);
        const RenderOptions options = at_time(cases);
        for (const Json& one : cases.at("cases")) {
            const auto source = one.at("template").get<std::string>();
            if (one.contains("error") || source.size() < 300) continue;
            CAPTURE(source);
            const Template compiled = Template::compile(source, "t");
            std::vector<std::string> texts(4);
            std::vector<std::thread> threads;
            for (std::string& text : texts)
                threads.emplace_back([&] {
                    for (int i = 0; i < 20; ++i) text = compiled.render(context, options).text;
                });
            for (std::thread& thread : threads) thread.join();
            for (const std::string& text : texts) CHECK(text == one.at("text").get<std::string>());
        }
    }

    TEST_CASE("template cases: JSON keeps its order only as ordered_json") {
        const char* const text = R"({"b": 1, "a": [true, null, 2.5, "x"]})";
        Arena arena;
        const Template compiled = Template::compile("{{ x | tojson }}", "t");
        const auto rendered = [&](const auto& json) {
            DictBuilder context(arena);
            context.set(Value::text_of("x"), from_json(json, arena, no_origin));
            return compiled.render(context.finish()).text;
        };
        CHECK(rendered(Json::parse(text)) == R"({"b": 1, "a": [true, null, 2.5, "x"]})");
        CHECK(rendered(nlohmann::json::parse(text)) == R"({"a": [true, null, 2.5, "x"], "b": 1})");
        CHECK_THROWS_AS(rendered(Json::parse("[9223372036854775808]")), Problem);
    }
}
