// Tokens to a tree, by the grammar of Jinja 3.1's expressions and the statements that chat templates use.
//
// What Jinja knows and this does not (include, import, extends, block, autoescape, recursive loops) is refused by name.
// Nesting is bounded, for the parser calls itself.
#pragma once

#include <string_view>
#include <vector>

#include "data/jinja/lexer.h"
#include "data/jinja/tree.h"

namespace slab::data::jinja {

inline constexpr int kMaxNesting = 100;

class Parser {
  public:
    Parser(std::vector<Token> tokens, Tree& tree) : tokens_(std::move(tokens)), tree_(tree) {}

    // The whole template. Throws a SourceProblem.
    void parse();

  private:
    // Counts how deep the parser calls itself.
    struct Nested {
        explicit Nested(Parser& p);
        ~Nested() { --parser.nesting_; }
        Parser& parser;
    };

    // parser.cpp: tokens
    const Token& now() const { return tokens_[next_]; }
    const Token& ahead() const { return tokens_[std::min(next_ + 1, tokens_.size() - 1)]; }
    bool is_sign(std::string_view sign) const { return now().kind == Token::Kind::sign && now().text == sign; }
    bool is_name(std::string_view name) const { return now().kind == Token::Kind::name && now().text == name; }
    bool skip_sign(std::string_view sign);
    bool skip_name(std::string_view name);
    void expect_sign(std::string_view sign);
    void expect_end(Token::Kind end);
    std::string_view expect_name();
    [[noreturn]] void fail(uint32_t at, std::string given, std::string wanted = "", std::string hint = "") const;
    [[noreturn]] void fail_here(std::string wanted) const;

    // parser.cpp: statements
    Nodes statements(std::initializer_list<std::string_view> ends);
    Nodes body(std::initializer_list<std::string_view> ends);  // from the end of the tag on
    Node* statement();
    Node* statement_named(std::string_view name, uint32_t at);
    Node* branch(uint32_t at);
    Node* loop(uint32_t at);
    Node* set(uint32_t at);
    Node* with(uint32_t at);
    Node* macro(uint32_t at);
    Node* call_block(uint32_t at);
    Node* filter_block(uint32_t at);
    Node* generation(uint32_t at);
    Node* leave(uint32_t at, bool is_break);
    void signature(MacroNode& macro);
    Nodes function_body(std::string_view end);
    Node* target(std::string_view end, bool with_namespace);
    Node* copy_of_target(const Node* target);
    void check_target(Node* node) const;
    [[noreturn]] void refuse_statement(const Token& name) const;

    // expressions.cpp
    Node* expression(bool with_condition = true);
    Node* tuple(bool with_condition, std::string_view end = "", bool in_brackets = false, bool simple = false,
                bool with_namespace = false);
    Node* condition();
    Node* either();
    Node* both();
    Node* negation();
    Node* comparison();
    Node* sum();
    Node* concat();
    Node* product();
    Node* power();
    Node* unary(bool with_filter = true);
    Node* primary(bool with_namespace = false);
    Node* literal_text();
    Node* literal_integer();
    Node* literal_number();
    Node* list();
    Node* dict();
    Node* postfix(Node* node);
    Node* filters_and_tests(Node* node);
    Node* subscript(Node* object);
    Node* slice_or_index();
    Node* call(Node* function);
    void arguments(ArgumentNodes& into);
    Node* filter(Node* value);
    Node* test(Node* value);
    std::string dotted_name();
    bool ends_tuple(std::string_view end) const;
    Node* constant(uint32_t at, const Value& value);

    std::vector<Token> tokens_;
    size_t next_ = 0;
    Tree& tree_;
    int nesting_ = 0;
    int loops_ = 0;  // around the statement, within its macro
};

}  // namespace slab::data::jinja
