// Statements. Expressions are in expressions.cpp.
#include "data/jinja/parser.h"

#include <algorithm>

namespace slab::data::jinja {
namespace {

std::string shown(const Token& token) {
    switch (token.kind) {
        case Token::Kind::end:
            return "the end of the template";
        case Token::Kind::data:
            return "text";
        default:
            return "\"" + std::string(token.text.substr(0, 60)) + "\"";
    }
}

std::string quoted(std::string_view text) {
    return "\"" + std::string(text) + "\"";
}

}  // namespace

Parser::Nested::Nested(Parser& p) : parser(p) {
    if (++parser.nesting_ > kMaxNesting) {
        const uint32_t at = parser.now().at;
        --parser.nesting_;
        parser.fail(at, "is nested too deeply", std::to_string(kMaxNesting) + " levels at most");
    }
}

void Parser::fail(uint32_t at, std::string given, std::string wanted, std::string hint) const {
    throw SourceProblem{{std::move(given), std::move(wanted), std::move(hint)}, at};
}

void Parser::fail_here(std::string wanted) const {
    fail(now().at, "has " + shown(now()), std::move(wanted));
}

bool Parser::skip_sign(std::string_view sign) {
    if (!is_sign(sign)) return false;
    ++next_;
    return true;
}

bool Parser::skip_name(std::string_view name) {
    if (!is_name(name)) return false;
    ++next_;
    return true;
}

void Parser::expect_sign(std::string_view sign) {
    if (!skip_sign(sign)) fail_here(quoted(sign));
}

void Parser::expect_end(Token::Kind end) {
    if (now().kind != end) fail_here(end == Token::Kind::end_print ? "\"}}\"" : "\"%}\"");
    ++next_;
}

std::string_view Parser::expect_name() {
    if (now().kind != Token::Kind::name) fail_here("a name");
    return tokens_[next_++].text;
}

void Parser::parse() {
    tree_.body = statements({});
    if (now().kind != Token::Kind::end) fail_here("a statement");
}

// Up to, not including, the name of a statement of `ends`, or the template's end where `ends` is empty.
Nodes Parser::statements(std::initializer_list<std::string_view> ends) {
    const Nested nested(*this);
    Nodes nodes;
    while (now().kind != Token::Kind::end) {
        const Token token = now();
        ++next_;
        if (token.kind == Token::Kind::data) {
            nodes.push_back(tree_.make<TextNode>(token.at, token.text));
        } else if (token.kind == Token::Kind::begin_print) {
            Node* const value = tuple(true);
            nodes.push_back(tree_.make<PrintNode>(token.at, value));
            expect_end(Token::Kind::end_print);
        } else {
            if (std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return is_name(end); })) return nodes;
            if (Node* const node = statement()) nodes.push_back(node);
            expect_end(Token::Kind::end_statement);
        }
    }
    if (ends.size() > 0) {
        std::string wanted;
        for (const std::string_view end : ends)
            wanted += (wanted.empty() ? "" : " or ") + ("{% " + std::string(end) + " %}");
        fail_here(wanted);
    }
    return nodes;
}

Nodes Parser::body(std::initializer_list<std::string_view> ends) {
    skip_sign(":");  // as Python has it; Jinja takes it too
    expect_end(Token::Kind::end_statement);
    return statements(ends);
}

Node* Parser::statement() {
    if (now().kind != Token::Kind::name) fail_here("the name of a statement");
    const Token name = now();
    ++next_;
    return statement_named(name.text, name.at);
}

Node* Parser::statement_named(std::string_view name, uint32_t at) {
    if (name == "if") return branch(at);
    if (name == "for") return loop(at);
    if (name == "set") return set(at);
    if (name == "macro") return macro(at);
    if (name == "with") return with(at);
    if (name == "call") return call_block(at);
    if (name == "filter") return filter_block(at);
    if (name == "generation") return generation(at);
    if (name == "break") return leave(at, true);
    if (name == "continue") return leave(at, false);
    refuse_statement(tokens_[next_ - 1]);
}

void Parser::refuse_statement(const Token& name) const {
    static constexpr std::string_view kJinjas[] = {"include", "import", "from",       "extends", "block",
                                                   "print",   "do",     "autoescape", "trans",   "debug"};
    const bool is_known = std::find(std::begin(kJinjas), std::end(kJinjas), name.text) != std::end(kJinjas);
    const std::string shown = "{% " + std::string(name.text.substr(0, 60)) + " %}";
    if (is_known)
        fail(name.at, "uses " + shown + ", which is not implemented", "",
             "chat templates do without it; rewrite that part");
    if (name.text.starts_with("end") || name.text.starts_with("el"))
        fail(name.at, "has " + shown + ", which ends nothing that is open");
    fail(name.at, "has the unknown statement " + shown);
}

Node* Parser::branch(uint32_t at) {
    auto* const node = tree_.make<BranchNode>(at);
    while (true) {
        Node* const condition = tuple(false);
        node->arms.push_back({condition, body({"elif", "else", "endif"})});
        if (skip_name("elif")) continue;
        if (skip_name("else")) node->otherwise = body({"endif"});
        ++next_;
        return node;
    }
}

Node* Parser::loop(uint32_t at) {
    auto* const node = tree_.make<LoopNode>(at);
    ++loops_;  // the target is refused the name "loop", too
    node->target = target("in", false);
    --loops_;
    if (!skip_name("in")) fail_here("\"in\"");
    node->source = tuple(false, "recursive");
    if (skip_name("if")) {
        node->condition_target = copy_of_target(node->target);
        node->condition = expression();
    }
    if (is_name("recursive"))
        fail(now().at, "has a recursive loop, which is not implemented", "", "a macro can call itself");
    ++loops_;
    node->body = body({"endfor", "else"});
    --loops_;
    if (skip_name("else")) node->otherwise = body({"endfor"});
    ++next_;
    return node;
}

Node* Parser::set(uint32_t at) {
    Node* const to = target("", true);
    if (skip_sign("=")) return tree_.make<SetNode>(at, to, tuple(true));
    auto* const node = tree_.make<BlockNode>(NodeKind::set_block, at);
    node->target = to;
    if (is_sign("|")) node->filter = filter(nullptr);
    node->body = body({"endset"});
    ++next_;
    return node;
}

Node* Parser::with(uint32_t at) {
    auto* const node = tree_.make<WithNode>(at);
    while (now().kind != Token::Kind::end_statement) {
        if (!node->values.empty()) expect_sign(",");
        Node* const to = target("", false);
        expect_sign("=");
        node->values.emplace_back(to, expression());
    }
    node->body = body({"endwith"});
    ++next_;
    return node;
}

void Parser::signature(MacroNode& macro) {
    expect_sign("(");
    while (!is_sign(")")) {
        if (!macro.parameters.empty()) expect_sign(",");
        const Token token = now();
        auto* const name = tree_.make<NameNode>(token.at, expect_name());
        check_target(name);
        if (name->name == "caller") fail(token.at, "has a parameter \"caller\"", "another name");
        Node* const preset = skip_sign("=") ? expression() : nullptr;
        if (preset == nullptr && !macro.parameters.empty() && macro.parameters.back().preset != nullptr)
            fail(token.at, "has a parameter without a default after one with", "a default for " + quoted(name->name));
        macro.parameters.push_back({name, preset});
    }
    expect_sign(")");
}

// break and continue do not leave a loop around a macro.
Nodes Parser::function_body(std::string_view end) {
    const int loops = loops_;
    loops_ = 0;
    Nodes nodes = body({end});
    loops_ = loops;
    ++next_;
    return nodes;
}

Node* Parser::macro(uint32_t at) {
    auto* const node = tree_.make<MacroNode>(NodeKind::macro, at);
    node->name = tree_.make<NameNode>(now().at, expect_name());
    check_target(node->name);
    signature(*node);
    node->body = function_body("endmacro");
    return node;
}

Node* Parser::call_block(uint32_t at) {
    auto* const node = tree_.make<MacroNode>(NodeKind::call_block, at);
    if (is_sign("(")) signature(*node);
    Node* const called = expression();
    if (called->kind != NodeKind::call) fail(called->at, "calls nothing", "{% call NAME(...) %}");
    node->call = static_cast<CallNode*>(called);
    node->body = function_body("endcall");
    return node;
}

Node* Parser::filter_block(uint32_t at) {
    auto* const node = tree_.make<BlockNode>(NodeKind::filter_block, at);
    --next_;  // filter() skips a "|"; here the statement's name stands in its place
    node->filter = filter(nullptr);
    node->body = body({"endfilter"});
    ++next_;
    return node;
}

Node* Parser::generation(uint32_t at) {
    auto* const node = tree_.make<BlockNode>(NodeKind::generation, at);
    node->body = function_body("endgeneration");
    return node;
}

Node* Parser::leave(uint32_t at, bool is_break) {
    if (loops_ == 0) fail(at, is_break ? "has {% break %} outside of a loop" : "has {% continue %} outside of a loop");
    return tree_.make<LeaveNode>(at, is_break);
}

Node* Parser::target(std::string_view end, bool with_namespace) {
    Node* const node = tuple(true, end, false, true, with_namespace);
    check_target(node);
    return node;
}

void Parser::check_target(Node* node) const {
    if (node->kind == NodeKind::name) {
        const std::string& name = static_cast<NameNode*>(node)->name;
        if (name == "loop" && loops_ > 0) fail(node->at, "sets \"loop\" within a loop", "another name");
        static constexpr std::string_view kConstants[] = {"true", "false", "none", "True", "False", "None"};
        if (std::find(std::begin(kConstants), std::end(kConstants), name) == std::end(kConstants)) return;
    }
    if (node->kind == NodeKind::attribute) return;  // only primary() with_namespace makes one here
    if (node->kind == NodeKind::list && static_cast<ListNode*>(node)->is_tuple) {
        for (Node* const item : static_cast<ListNode*>(node)->items) check_target(item);
        return;
    }
    fail(node->at, "sets what cannot be set", "a name, or names with commas between them");
}

Node* Parser::copy_of_target(const Node* target) {
    if (target->kind == NodeKind::name)
        return tree_.make<NameNode>(target->at, static_cast<const NameNode*>(target)->name);
    auto* const copy = tree_.make<ListNode>(target->at);
    copy->is_tuple = true;
    for (const Node* const item : static_cast<const ListNode*>(target)->items)
        copy->items.push_back(copy_of_target(item));
    return copy;
}

}  // namespace slab::data::jinja
