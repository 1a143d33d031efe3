// Expressions, one function for each level of Jinja's grammar, loosest first.
#include <charconv>
#include <cstdlib>

#include "data/base/utf8.h"
#include "data/jinja/filters.h"
#include "data/jinja/parser.h"
#include "data/jinja/predicates.h"

namespace slab::data::jinja {
namespace {

std::string without_underscores(std::string_view text) {
    std::string kept;
    for (const char c : text)
        if (c != '_') kept += c;
    return kept;
}

bool is_octal(char c) {
    return c >= '0' && c <= '7';
}

}  // namespace

Node* Parser::constant(uint32_t at, const Value& value) {
    auto* const node = tree_.make<ConstantNode>(at);
    node->value = value;
    return node;
}

bool Parser::ends_tuple(std::string_view end) const {
    return now().kind == Token::Kind::end_print || now().kind == Token::Kind::end_statement || is_sign(")") ||
           (!end.empty() && is_name(end));
}

// One expression, or several with commas between them. `simple` ones are names and literals.
Node* Parser::tuple(bool with_condition, std::string_view end, bool in_brackets, bool simple, bool with_namespace) {
    const Nested nested(*this);
    const uint32_t at = now().at;
    Nodes items;
    bool is_tuple = false;
    while (true) {
        if (!items.empty()) expect_sign(",");
        if (ends_tuple(end)) break;
        items.push_back(simple ? primary(with_namespace) : expression(with_condition));
        if (!is_sign(",")) break;
        is_tuple = true;
    }
    if (!is_tuple && !items.empty()) return items[0];
    if (items.empty() && !in_brackets) fail_here("an expression");
    auto* const node = tree_.make<ListNode>(at);
    node->is_tuple = true;
    node->items = std::move(items);
    return node;
}

Node* Parser::expression(bool with_condition) {
    const Nested nested(*this);
    return with_condition ? condition() : either();
}

Node* Parser::condition() {
    const Nested nested(*this);
    const uint32_t at = now().at;
    Node* node = either();
    while (skip_name("if")) {
        Node* const when = either();
        Node* const otherwise = skip_name("else") ? condition() : nullptr;
        node = tree_.make<ConditionalNode>(at, when, node, otherwise);
    }
    return node;
}

Node* Parser::either() {
    Node* node = both();
    while (is_name("or")) {
        const uint32_t at = now().at;
        ++next_;
        node = tree_.make<BinaryNode>(NodeKind::logic, at, Operator::or_, node, both());
    }
    return node;
}

Node* Parser::both() {
    Node* node = negation();
    while (is_name("and")) {
        const uint32_t at = now().at;
        ++next_;
        node = tree_.make<BinaryNode>(NodeKind::logic, at, Operator::and_, node, negation());
    }
    return node;
}

Node* Parser::negation() {
    const Nested nested(*this);
    const uint32_t at = now().at;
    if (skip_name("not")) return tree_.make<UnaryNode>(at, Operator::not_, negation());
    return comparison();
}

Node* Parser::comparison() {
    static constexpr std::pair<std::string_view, Operator> kSigns[] = {
        {"==", Operator::equal},      {"!=", Operator::not_equal}, {"<", Operator::less},
        {"<=", Operator::less_equal}, {">", Operator::greater},    {">=", Operator::greater_equal}};
    Node* const first = sum();
    ComparisonNode* node = nullptr;
    while (true) {
        const uint32_t at = now().at;
        const auto* found =
            std::find_if(std::begin(kSigns), std::end(kSigns), [&](auto& s) { return is_sign(s.first); });
        Operator op = Operator::in;
        if (found != std::end(kSigns)) {
            op = found->second;
            ++next_;
        } else if (is_name("not") && ahead().kind == Token::Kind::name && ahead().text == "in") {
            op = Operator::not_in;
            next_ += 2;
        } else if (!skip_name("in")) {
            return node == nullptr ? first : node;
        }
        if (node == nullptr) node = tree_.make<ComparisonNode>(at, first);
        node->steps.push_back({op, sum()});
    }
}

Node* Parser::sum() {
    Node* node = concat();
    while (is_sign("+") || is_sign("-")) {
        const Token sign = now();
        ++next_;
        const Operator op = sign.text == "+" ? Operator::add : Operator::subtract;
        node = tree_.make<BinaryNode>(NodeKind::binary, sign.at, op, node, concat());
    }
    return node;
}

Node* Parser::concat() {
    Node* const first = product();
    if (!is_sign("~")) return first;
    auto* const node = tree_.make<ConcatNode>(now().at);
    node->parts.push_back(first);
    while (skip_sign("~")) node->parts.push_back(product());
    return node;
}

Node* Parser::product() {
    static constexpr std::pair<std::string_view, Operator> kSigns[] = {
        {"*", Operator::multiply}, {"/", Operator::divide}, {"//", Operator::floor_divide}, {"%", Operator::modulo}};
    Node* node = power();
    while (true) {
        const auto* found =
            std::find_if(std::begin(kSigns), std::end(kSigns), [&](auto& s) { return is_sign(s.first); });
        if (found == std::end(kSigns)) return node;
        const uint32_t at = now().at;
        ++next_;
        node = tree_.make<BinaryNode>(NodeKind::binary, at, found->second, node, power());
    }
}

Node* Parser::power() {  // from left to right in Jinja
    Node* node = unary();
    while (is_sign("**")) {
        const uint32_t at = now().at;
        ++next_;
        node = tree_.make<BinaryNode>(NodeKind::binary, at, Operator::power, node, unary());
    }
    return node;
}

Node* Parser::unary(bool with_filter) {
    const Nested nested(*this);
    const uint32_t at = now().at;
    Node* node = nullptr;
    if (skip_sign("-")) {
        node = tree_.make<UnaryNode>(at, Operator::negate, unary(false));
    } else if (skip_sign("+")) {
        node = tree_.make<UnaryNode>(at, Operator::plus, unary(false));
    } else {
        node = primary();
    }
    node = postfix(node);
    return with_filter ? filters_and_tests(node) : node;
}

Node* Parser::primary(bool with_namespace) {
    const Token token = now();
    switch (token.kind) {
        case Token::Kind::name:
            break;
        case Token::Kind::text:
            return literal_text();
        case Token::Kind::integer:
            return literal_integer();
        case Token::Kind::number:
            return literal_number();
        default:
            if (is_sign("[")) return list();
            if (is_sign("{")) return dict();
            if (!skip_sign("(")) fail_here("an expression");
            Node* const node = tuple(true, "", true);
            expect_sign(")");
            return node;
    }
    ++next_;
    const std::string_view name = token.text;
    if (name == "true" || name == "True") return constant(token.at, Value::of(true));
    if (name == "false" || name == "False") return constant(token.at, Value::of(false));
    if (name == "none" || name == "None") return constant(token.at, Value::none());
    Node* const node = tree_.make<NameNode>(token.at, name);
    if (with_namespace && skip_sign(".")) return tree_.make<AttributeNode>(token.at, node, expect_name());
    return node;
}

Node* Parser::literal_integer() {
    const Token token = now();
    ++next_;
    const std::string digits = without_underscores(token.text);
    const char sign = digits.size() > 1 ? static_cast<char>(digits[1] | 32) : '0';
    const int base = sign == 'x' ? 16 : sign == 'o' ? 8 : sign == 'b' ? 2 : 10;
    int64_t value = 0;
    const char* const begin = digits.data() + (base == 10 ? 0 : 2);
    if (std::from_chars(begin, digits.data() + digits.size(), value, base).ec != std::errc())
        fail(token.at, "has the integer " + digits.substr(0, 40), "integers of 64 bits");
    return constant(token.at, Value::of(value));
}

Node* Parser::literal_number() {
    const Token token = now();
    ++next_;
    return constant(token.at, Value::of(std::strtod(without_underscores(token.text).c_str(), nullptr)));
}

// Texts that follow one another are one.
Node* Parser::literal_text() {
    auto* const node = tree_.make<ConstantNode>(now().at);
    for (; now().kind == Token::Kind::text; ++next_) {
        const std::string_view text = now().text.substr(1, now().text.size() - 2);
        for (size_t i = 0; i < text.size(); ++i) {
            if (text[i] != '\\') {
                node->bytes += text[i];
                continue;
            }
            static constexpr std::string_view kFrom = "\\'\"abfnrtv", kTo = "\\'\"\a\b\f\n\r\t\v";
            const char c = text[++i];  // the lexer saw a character after every backslash
            if (const size_t known = kFrom.find(c); known != kFrom.npos) {
                node->bytes += kTo[known];
            } else if (c == 'x' || c == 'u' || c == 'U') {
                const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
                uint32_t code = 0;
                const char* const begin = text.data() + i + 1;
                const char* const end = begin + std::min(digits, text.size() - i - 1);
                if (std::from_chars(begin, end, code, 16).ptr != begin + digits || code > 0x10ffff ||
                    (code >= 0xd800 && code < 0xe000))
                    fail(now().at, "has a text with the escape \\" + std::string(text.substr(i, digits + 1)),
                         "a character's number with " + std::to_string(digits) + " digits");
                append_utf8(node->bytes, code);
                i += digits;
            } else if (is_octal(c)) {
                uint32_t code = 0;
                size_t end = i;
                for (; end < std::min(i + 3, text.size()) && is_octal(text[end]); ++end)
                    code = code * 8 + static_cast<uint32_t>(text[end] - '0');
                append_utf8(node->bytes, code);
                i = end - 1;
            } else if (c == 'N') {
                fail(now().at, "has a text with the escape \\N", "the character itself");
            } else if (c != '\n') {
                (node->bytes += '\\') += c;
            }
        }
    }
    node->value = Value::text_of(node->bytes);
    return node;
}

Node* Parser::list() {
    auto* const node = tree_.make<ListNode>(now().at);
    expect_sign("[");
    while (!is_sign("]")) {
        if (!node->items.empty()) expect_sign(",");
        if (is_sign("]")) break;
        node->items.push_back(expression());
    }
    expect_sign("]");
    return node;
}

Node* Parser::dict() {
    auto* const node = tree_.make<DictNode>(now().at);
    expect_sign("{");
    while (!is_sign("}")) {
        if (!node->items.empty()) expect_sign(",");
        if (is_sign("}")) break;
        Node* const key = expression();
        expect_sign(":");
        node->items.emplace_back(key, expression());
    }
    expect_sign("}");
    return node;
}

}  // namespace slab::data::jinja
