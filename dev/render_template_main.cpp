// Renders chat templates, for comparisons with jinja2 (dev/reference/compare_templates.py).
//
//   render_template TEMPLATE.jinja CONTEXT.json     prints the text
//   render_template --batch FILE.jsonl              a line is {"template", "context"}; prints {"text"} or {"error"}
//
// A line of a batch may give "now", seconds since 1970 in UTC. With "origins": true each text of the context has its
// own number as origin, from 1 on in the order of the JSON, and the spans are printed.
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "data/base/error.h"
#include "data/jinja/from_json.h"
#include "data/jinja/template.h"

namespace {

using Json = nlohmann::ordered_json;
namespace jinja = slab::data::jinja;

std::string contents(const char* path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw slab::data::IoError(std::string(path) + ": cannot be read");
    return {std::istreambuf_iterator<char>(file), {}};
}

Json spans(const std::vector<jinja::Span>& of) {
    Json list = Json::array();
    for (const jinja::Span& span : of) list.push_back({span.begin, span.end, span.origin});
    return list;
}

Json rendered(const jinja::Template& compiled, const Json& line) {
    jinja::Arena arena;
    const bool with_origins = line.value("origins", false);
    uint32_t texts = 0;
    const auto origin = [&](const std::string&) { return with_origins ? ++texts : 0; };
    const jinja::Value context = jinja::from_json(line.at("context"), arena, origin);
    jinja::RenderOptions options;
    const std::time_t now = line.value("now", std::time_t{0});
    gmtime_r(&now, &options.now);
    const jinja::Rendered result = compiled.render(context, options);
    Json json = {{"text", result.text}};
    if (with_origins) json["origins"] = spans(result.origins);
    if (!result.generation.empty()) json["generation"] = spans(result.generation);
    return json;
}

void batch(const char* path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw slab::data::IoError(std::string(path) + ": cannot be read");
    std::map<std::string, std::unique_ptr<jinja::Template>> compiled;
    for (std::string text; std::getline(file, text);) {
        Json answer;
        try {
            const Json line = Json::parse(text);
            const std::string source = line.at("template");
            auto& of = compiled[source];
            if (of == nullptr) of = std::make_unique<jinja::Template>(jinja::Template::compile(source, "the template"));
            answer = rendered(*of, line);
        } catch (const slab::data::UserError& error) {
            answer = {{"error", error.what()}};
        } catch (const jinja::Problem& problem) {
            answer = {{"error", problem.given}};
        }
        std::cout << answer.dump() << "\n";
    }
}

}  // namespace

int main(int argc, char** argv) {
    try {
        if (argc == 3 && std::string(argv[1]) == "--batch") {
            batch(argv[2]);
            return 0;
        }
        if (argc != 3) {
            std::fprintf(stderr, "usage: render_template TEMPLATE.jinja CONTEXT.json | --batch FILE.jsonl\n");
            return 2;
        }
        const jinja::Template compiled = jinja::Template::compile(contents(argv[1]), argv[1]);
        std::cout << rendered(compiled, {{"context", Json::parse(contents(argv[2]))}}).at("text").get<std::string>();
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        return 1;
    }
}
