// Compiling and rendering: Problems get their place here.
#include "data/jinja/template.h"

#include <algorithm>

#include "data/base/utf8.h"
#include "data/jinja/evaluator.h"
#include "data/jinja/parser.h"
#include "data/jinja/scopes.h"

namespace slab::data::jinja {
namespace {

constexpr size_t kMaxSourceBytes = size_t{1} << 20;

}  // namespace

Template::Template(std::string source, std::string name)
    : name_(std::move(name)),
      source_(std::make_unique<const std::string>(std::move(source))),
      tree_(std::make_unique<Tree>()) {}
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;
Template::~Template() = default;

void Template::fail(const Problem& problem, size_t at) const {
    const std::string place = name_ + ", " + place_in(*source_, at);
    const std::string given =
        problem.raised ? "the template refuses the conversation: " + problem.given : problem.given;
    throw TemplateError({place, given, problem.wanted, problem.hint}, problem.raised);
}

Template Template::compile(std::string_view source, std::string name) {
    Template made(source.size() > kMaxSourceBytes ? "" : normalized_source(source), std::move(name));
    if (source.size() > kMaxSourceBytes)
        throw TemplateError({made.name_, "is a template of " + std::to_string(source.size()) + " bytes",
                             std::to_string(kMaxSourceBytes) + " at most", ""},
                            false);
    if (const size_t valid = valid_utf8_bytes(*made.source_); valid != made.source_->size())
        made.fail({"is not valid UTF-8", "a template in UTF-8", "", false}, valid);
    try {
        Parser(tokens_of(*made.source_), *made.tree_).parse();
        resolve_names(*made.tree_);
    } catch (const SourceProblem& problem) {
        made.fail(problem.problem, problem.at);
    }
    for (const auto& node : made.tree_->nodes) {
        made.has_generation_ |= node->kind == NodeKind::generation;
        if (node->kind == NodeKind::attribute) made.keys_.emplace(static_cast<const AttributeNode&>(*node).name);
        if (node->kind == NodeKind::constant) made.keys_.emplace(static_cast<const ConstantNode&>(*node).bytes);
    }
    return made;
}

Rendered Template::render(const Value& context, const RenderOptions& options) const {
    Evaluator evaluator(*tree_, context, options);
    try {
        evaluator.run();
    } catch (const Problem& problem) {
        fail(problem, evaluator.here());
    }
    Rendered rendered;
    for (const Span& span : evaluator.output().spans()) {
        if (span.origin & kGenerated) {
            if (!rendered.generation.empty() && rendered.generation.back().end == span.begin)
                rendered.generation.back().end = span.end;
            else
                rendered.generation.push_back({span.begin, span.end, kTemplateOrigin});
        }
        const uint32_t origin = span.origin & ~kGenerated;
        if (origin == kTemplateOrigin) continue;
        if (!rendered.origins.empty() && rendered.origins.back().end == span.begin &&
            rendered.origins.back().origin == origin)
            rendered.origins.back().end = span.end;
        else
            rendered.origins.push_back({span.begin, span.end, origin});
    }
    rendered.text = std::move(evaluator.output().text());
    return rendered;
}

const std::vector<std::string>& Template::context_names() const {
    return tree_->context_names;
}

bool Template::mentions(std::string_view word) const {
    return std::any_of(tree_->nodes.begin(), tree_->nodes.end(), [&](const std::unique_ptr<Node>& node) {
        switch (node->kind) {
            case NodeKind::name:
                return static_cast<const NameNode&>(*node).name == word;
            case NodeKind::attribute:
                return static_cast<const AttributeNode&>(*node).name == word;
            case NodeKind::constant:
                return static_cast<const ConstantNode&>(*node).bytes == word;
            default:
                return false;
        }
    });
}

}  // namespace slab::data::jinja
