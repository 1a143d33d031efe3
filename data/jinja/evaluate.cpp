// Expressions. After operands are evaluated, here_ is set again, so that an error names the place of the operation.
#include <algorithm>

#include "data/jinja/evaluator.h"
#include "data/jinja/methods.h"

namespace slab::data::jinja {

// Evaluates the arguments of a call: few of them need no memory.
class Evaluator::ArgumentValues {
  public:
    ArgumentValues(Evaluator& evaluator, const ArgumentNodes& nodes, const Value* caller = nullptr) {
        Value rest;
        const Dict* rest_keywords = nullptr;
        size_t count = nodes.positional.size(), keyword_count = nodes.keywords.size() + (caller != nullptr);
        if (nodes.rest != nullptr || nodes.rest_keywords != nullptr) {
            if (nodes.rest != nullptr) rest = evaluator.list_of(evaluator.eval(*nodes.rest));
            if (nodes.rest_keywords != nullptr) rest_keywords = dict_of(evaluator.eval(*nodes.rest_keywords));
            count += nodes.rest != nullptr ? rest.size : 0;
            keyword_count += rest_keywords != nullptr ? rest_keywords->size : 0;
        }
        Value* values = local_;
        Keyword* keywords = local_keywords_;
        if (count > std::size(local_)) values = evaluator.arena_.array<Value>(count);
        if (keyword_count > std::size(local_keywords_)) keywords = evaluator.arena_.array<Keyword>(keyword_count);
        for (const Node* const node : nodes.positional) values[arguments_.count++] = evaluator.eval(*node);
        if (nodes.rest != nullptr)
            for (size_t i = 0; i < rest.size; ++i) values[arguments_.count++] = rest.items[i];
        for (const auto& keyword : nodes.keywords)
            keywords[arguments_.keyword_count++] = {keyword.name, evaluator.eval(*keyword.value)};
        if (rest_keywords != nullptr)
            for (size_t i = 0; i < rest_keywords->size; ++i)
                keywords[arguments_.keyword_count++] = {rest_keywords->entries[i].key.text(),
                                                        rest_keywords->entries[i].value};
        if (caller != nullptr) keywords[arguments_.keyword_count++] = {"caller", *caller};
        arguments_.values = values;
        arguments_.keywords = keywords;
    }
    ArgumentValues(const ArgumentValues&) = delete;
    ArgumentValues& operator=(const ArgumentValues&) = delete;

    const Arguments& operator*() const { return arguments_; }

  private:
    static const Dict* dict_of(const Value& value) {
        if (value.type != Type::dict) refuse("gives " + described(value) + " after **", "a dict");
        for (size_t i = 0; i < value.dict->size; ++i) text_of(value.dict->entries[i].key, "the name of an argument");
        return value.dict;
    }

    Arguments arguments_;
    Value local_[4];
    Keyword local_keywords_[2];
};

Value Evaluator::eval(const Node& node) {
    const Deeper deeper(*this);
    charge(1);
    here_ = &node;
    switch (node.kind) {
        case NodeKind::constant:
            return static_cast<const ConstantNode&>(node).value;
        case NodeKind::name:
            return eval_name(static_cast<const NameNode&>(node));
        case NodeKind::attribute: {
            const auto& attribute = static_cast<const AttributeNode&>(node);
            const Value object = eval(*attribute.object);
            here_ = &node;
            return attribute_of(object, attribute.name);
        }
        case NodeKind::item:
            return eval_item(static_cast<const ItemNode&>(node));
        case NodeKind::call:
            return eval_call(static_cast<const CallNode&>(node));
        case NodeKind::filter:
            return eval_filter(static_cast<const FilterNode&>(node));
        case NodeKind::test:
            return eval_test(static_cast<const TestNode&>(node));
        case NodeKind::unary:
            return eval_unary(static_cast<const UnaryNode&>(node));
        case NodeKind::binary: {
            const auto& operation = static_cast<const BinaryNode&>(node);
            const Value left = eval(*operation.left);
            const Value right = eval(*operation.right);
            here_ = &node;
            return binary(operation.op, left, right);
        }
        case NodeKind::logic: {
            const auto& logic = static_cast<const BinaryNode&>(node);
            const Value left = eval(*logic.left);
            return truthy(left) == (logic.op == Operator::or_) ? left : eval(*logic.right);
        }
        case NodeKind::concat:
            return eval_concat(static_cast<const ConcatNode&>(node));
        case NodeKind::comparison:
            return eval_comparison(static_cast<const ComparisonNode&>(node));
        case NodeKind::conditional:
            return eval_conditional(static_cast<const ConditionalNode&>(node));
        case NodeKind::list:
            return eval_list(static_cast<const ListNode&>(node));
        case NodeKind::dict:
            return eval_dict(static_cast<const DictNode&>(node));
        default:
            throw std::logic_error("a statement stands where an expression should");
    }
}

Value Evaluator::eval_name(const NameNode& node) {
    const Value value = value_at(node.place);
    if (value.type == Type::missing) return Value::undefined(node.name);
    if (value.type == Type::undefined && value.kind == static_cast<uint8_t>(Undefined::refused))
        refuse_undefined(value);
    return value;
}

Value Evaluator::eval_item(const ItemNode& node) {
    const Value object = eval(*node.object);
    if (node.index->kind == NodeKind::slice) return eval_slice(object, static_cast<const SliceNode&>(*node.index));
    const Value index = eval(*node.index);
    here_ = &node;
    return item_of(object, index);
}

Value Evaluator::eval_slice(const Value& object, const SliceNode& node) {
    const auto bound = [&](const Node* part) {
        if (part == nullptr) return std::optional<int64_t>();
        const Value value = eval(*part);
        here_ = &node;
        return value.type == Type::none ? std::optional<int64_t>() : whole_of(value, "a bound of a slice");
    };
    const std::optional<int64_t> begin = bound(node.begin), end = bound(node.end), step = bound(node.step);
    here_ = &node;
    return slice_of(object, begin, end, step.value_or(1));
}

Value Evaluator::eval_call(const CallNode& node, const Value* caller) {
    if (node.function->kind != NodeKind::attribute) {
        const Value function = eval(*node.function);
        const ArgumentValues arguments(*this, node.arguments, caller);
        here_ = &node;
        return call(function, *arguments);
    }
    // A method is called without making a value of it first.
    const auto& attribute = static_cast<const AttributeNode&>(*node.function);
    const Value object = eval(*attribute.object);
    here_ = &attribute;
    if (has_method(object, attribute.name)) {
        const ArgumentValues arguments(*this, node.arguments, caller);
        here_ = &node;
        return call_method(*this, object, attribute.name, *arguments);
    }
    const Value function = attribute_of(object, attribute.name);
    const ArgumentValues arguments(*this, node.arguments, caller);
    here_ = &node;
    return call(function, *arguments);
}

// `printed` is what the block around the filters printed.
Value Evaluator::eval_filter(const FilterNode& node, const Value* printed) {
    const Deeper deeper(*this);
    const Value value = node.value == nullptr ? *printed
                        : printed != nullptr  ? eval_filter(static_cast<const FilterNode&>(*node.value), printed)
                                              : eval(*node.value);
    here_ = &node;
    if (node.filter == nullptr) refuse("uses the unknown filter \"" + node.name + "\"");
    const ArgumentValues arguments(*this, node.arguments);
    here_ = &node;
    if (value.is_text()) charge(value.size / 16);
    return node.filter(*this, value, *arguments);
}

Value Evaluator::eval_test(const TestNode& node) {
    const Value value = eval(*node.value);
    here_ = &node;
    if (node.predicate == nullptr) refuse("uses the unknown test \"" + node.name + "\"");
    const ArgumentValues arguments(*this, node.arguments);
    here_ = &node;
    return Value::of(node.predicate(*this, value, *arguments) != node.negated);
}

Value Evaluator::eval_unary(const UnaryNode& node) {
    const Value value = eval(*node.value);
    here_ = &node;
    if (node.op == Operator::not_) return Value::of(!truthy(value));
    if (value.type == Type::undefined) refuse_undefined(value);
    const bool negates = node.op == Operator::negate;
    if (value.type == Type::number) return Value::of(negates ? -value.number : value.number);
    if (!value.is_whole()) refuse((negates ? "negates " : "puts + before ") + described(value), "a number");
    return negates ? binary(Operator::subtract, Value::of(int64_t{0}), value) : Value::of(value.whole());
}

Value Evaluator::eval_concat(const ConcatNode& node) {
    Scratch text(*this);
    for (const Node* const part : node.parts) {
        const Value value = eval(*part);
        here_ = &node;
        const size_t before = text->size();
        add_str(*text, value);
        charge((text->size() - before) / (value.is_text() ? 64 : 8));
    }
    return text.value();
}

Value Evaluator::eval_comparison(const ComparisonNode& node) {
    Value left = eval(*node.first);
    for (const ComparisonNode::Step& step : node.steps) {
        const Value right = eval(*step.operand);
        here_ = &node;
        if (!compare_by(step.op, left, right)) return Value::of(false);
        left = right;
    }
    return Value::of(true);
}

Value Evaluator::eval_conditional(const ConditionalNode& node) {
    if (truthy(eval(*node.condition))) return eval(*node.yes);
    if (node.no != nullptr) return eval(*node.no);
    return Value::undefined("the condition of an inline if is false, and it has no else", Undefined::nothing);
}

Value Evaluator::eval_list(const ListNode& node) {
    Value* const items = arena_.array<Value>(node.items.size());
    for (size_t i = 0; i < node.items.size(); ++i) items[i] = eval(*node.items[i]);
    return Value::list_of(items, node.items.size(), node.is_tuple ? Type::tuple : Type::list);
}

Value Evaluator::eval_dict(const DictNode& node) {
    DictBuilder dict(arena_);
    for (const auto& [key, value] : node.items) {
        const Value name = eval(*key);
        const Value held = eval(*value);
        here_ = &node;
        dict.set(name, held);
    }
    return dict.finish();
}

}  // namespace slab::data::jinja
