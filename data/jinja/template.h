// A chat template in Jinja's language: compiled once, rendered for many conversations, from several threads at once.
//
// It renders as transformers' apply_chat_template does: Jinja 3.1 in its immutable sandbox, trim_blocks and
// lstrip_blocks on, loop controls, generation blocks, transformers' own tojson, raise_exception and strftime_now. What
// is not implemented is refused by name, line and column; templates are hostile input, so time and memory are bounded.
#pragma once

#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "data/jinja/error.h"
#include "data/jinja/value.h"

namespace slab::data::jinja {

struct RenderOptions {
    uint64_t max_steps = 50'000'000;              // one for each node that is evaluated, and for 64 bytes of text
    size_t max_text_bytes = size_t{64} << 20;     // of one text and of the output
    size_t max_memory_bytes = size_t{256} << 20;  // of all values that one rendering makes
    std::tm now = {};                             // what strftime_now shows
};

struct Rendered {
    std::string text;
    // What is not the template's own, by the origins of the context's texts: ascending, none empty, neighbours differ.
    std::vector<Span> origins;
    // What generation blocks printed, with origin 0: ascending, none empty, with text between them.
    std::vector<Span> generation;
};

struct Tree;

class Template {
  public:
    // `name` is the subject of errors, such as "chat_template.jinja". Throws a TemplateError.
    static Template compile(std::string_view source, std::string name);
    Template(Template&&) noexcept;
    Template& operator=(Template&&) noexcept;
    ~Template();

    // `context` is a dict of the names that the template may use. Throws a TemplateError.
    Rendered render(const Value& context, const RenderOptions& options = {}) const;

    // What the template reads and never sets: the names of the context and of Jinja's functions.
    const std::vector<std::string>& context_names() const;
    bool has_generation() const { return has_generation_; }
    // Whether a name, attribute or text of the template's code is `word`: "tools", "reasoning_content".
    bool mentions(std::string_view word) const;
    // Attributes and texts of the template's code: every key that it may read from the context's dicts is among them.
    const std::set<std::string, std::less<>>& keys() const { return keys_; }

  private:
    Template(std::string source, std::string name);
    [[noreturn]] void fail(const Problem& problem, size_t at) const;

    std::string name_;
    std::unique_ptr<const std::string> source_;  // the tree points into it
    std::unique_ptr<Tree> tree_;
    std::set<std::string, std::less<>> keys_;
    bool has_generation_ = false;
};

}  // namespace slab::data::jinja
