// What is wrong with a template, or with a conversation in its eyes.
//
// Within this room a Problem is thrown, which has no place; the parser and the evaluator know the place and make a
// TemplateError of it, with line and column. A TemplateError keeps its parts, so that a caller can put another subject,
// such as the record that was rendered, in front.
#pragma once

#include <string>

#include "data/base/error.h"

namespace slab::data::jinja {

struct Problem {
    std::string given, wanted, hint;
    bool raised = false;  // by the template's own raise_exception
};

[[noreturn]] inline void refuse(std::string given, std::string wanted = "", std::string hint = "") {
    throw Problem{std::move(given), std::move(wanted), std::move(hint)};
}

struct TemplateError : UserError {
    TemplateError(ErrorText parts, bool was_raised) : UserError(parts), error(std::move(parts)), raised(was_raised) {}
    ErrorText error;
    bool raised;  // the template refused the conversation itself; else it could not be evaluated
};

}  // namespace slab::data::jinja
