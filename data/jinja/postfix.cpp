// What follows a value in an expression: attributes, items, calls, filters, tests.
#include "data/jinja/filters.h"
#include "data/jinja/parser.h"
#include "data/jinja/predicates.h"

namespace slab::data::jinja {

Node* Parser::postfix(Node* node) {
    while (true) {
        if (is_sign(".") || is_sign("[")) {
            node = subscript(node);
        } else if (is_sign("(")) {
            node = call(node);
        } else {
            return node;
        }
    }
}

Node* Parser::filters_and_tests(Node* node) {
    while (true) {
        if (is_sign("|")) {
            node = filter(node);
        } else if (is_name("is")) {
            node = test(node);
        } else if (is_sign("(")) {
            node = call(node);
        } else {
            return node;
        }
    }
}

Node* Parser::subscript(Node* object) {
    const uint32_t at = now().at;
    if (skip_sign(".")) {
        if (now().kind == Token::Kind::integer) return tree_.make<ItemNode>(at, object, literal_integer());
        return tree_.make<AttributeNode>(at, object, expect_name());
    }
    expect_sign("[");
    auto* const several = tree_.make<ListNode>(at);
    several->is_tuple = true;
    while (!is_sign("]")) {
        if (!several->items.empty()) expect_sign(",");
        several->items.push_back(slice_or_index());
    }
    expect_sign("]");
    if (several->items.size() == 1) return tree_.make<ItemNode>(at, object, several->items[0]);
    for (const Node* const item : several->items)
        if (item->kind == NodeKind::slice) fail(item->at, "has a slice among several indices", "one slice");
    return tree_.make<ItemNode>(at, object, several);
}

Node* Parser::slice_or_index() {
    const uint32_t at = now().at;
    Node* const begin = is_sign(":") ? nullptr : expression();
    if (!is_sign(":")) return begin;
    auto* const slice = tree_.make<SliceNode>(at);
    slice->begin = begin;
    ++next_;
    const auto is_over = [&] { return is_sign("]") || is_sign(","); };
    if (!is_sign(":") && !is_over()) slice->end = expression();
    if (skip_sign(":") && !is_over()) slice->step = expression();
    return slice;
}

Node* Parser::call(Node* function) {
    auto* const node = tree_.make<CallNode>(now().at, function);
    arguments(node->arguments);
    return node;
}

void Parser::arguments(ArgumentNodes& into) {
    const Nested nested(*this);
    const uint32_t at = now().at;
    const auto ensure = [&](bool ok) {
        if (!ok) fail(at, "has arguments in an order that a call cannot have", "values, NAME=VALUE, *LIST, **DICT");
    };
    expect_sign("(");
    for (bool is_first = true; !is_sign(")"); is_first = false) {
        if (!is_first) {
            expect_sign(",");
            if (is_sign(")")) break;
        }
        if (skip_sign("*")) {
            ensure(into.rest == nullptr && into.rest_keywords == nullptr);
            into.rest = expression();
        } else if (skip_sign("**")) {
            ensure(into.rest_keywords == nullptr);
            into.rest_keywords = expression();
        } else if (now().kind == Token::Kind::name && ahead().kind == Token::Kind::sign && ahead().text == "=") {
            ensure(into.rest_keywords == nullptr);
            std::string name(now().text);
            for (const auto& other : into.keywords)
                if (other.name == name) fail(now().at, "gives the argument \"" + name + "\" twice");
            next_ += 2;
            into.keywords.push_back({std::move(name), expression()});
        } else {
            ensure(into.rest == nullptr && into.rest_keywords == nullptr && into.keywords.empty());
            into.positional.push_back(expression());
        }
    }
    expect_sign(")");
}

std::string Parser::dotted_name() {
    std::string name(expect_name());
    while (skip_sign(".")) (name += '.') += expect_name();
    return name;
}

// From the "|" on, as many filters as follow one another.
Node* Parser::filter(Node* value) {
    do {
        ++next_;
        const uint32_t at = now().at;
        auto* const node = tree_.make<FilterNode>(at, value, dotted_name());
        node->filter = filter_named(node->name);
        if (is_sign("(")) arguments(node->arguments);
        value = node;
    } while (is_sign("|"));
    return value;
}

Node* Parser::test(Node* value) {
    ++next_;
    const bool negated = skip_name("not");
    const uint32_t at = now().at;
    auto* const node = tree_.make<TestNode>(at, value, dotted_name());
    node->negated = negated;
    node->predicate = predicate_named(node->name);
    if (is_sign("(")) {
        arguments(node->arguments);
        return node;
    }
    const Token::Kind kind = now().kind;
    const bool has_value = kind == Token::Kind::name || kind == Token::Kind::text || kind == Token::Kind::integer ||
                           kind == Token::Kind::number || is_sign("[") || is_sign("{");
    if (!has_value || is_name("else") || is_name("or") || is_name("and")) return node;
    if (is_name("is")) fail(now().at, "has a test of a test", "\"and\" between them");
    node->arguments.positional.push_back(postfix(primary()));
    return node;
}

}  // namespace slab::data::jinja
