// One case for each kind of node.
#include "data/jinja/children.h"

namespace slab::data::jinja {
namespace {

void add(Nodes& to, const Nodes& nodes) {
    to.insert(to.end(), nodes.begin(), nodes.end());
}
void add(Nodes& to, const ArgumentNodes& arguments) {
    add(to, arguments.positional);
    for (const auto& keyword : arguments.keywords) to.push_back(keyword.value);
    to.push_back(arguments.rest);
    to.push_back(arguments.rest_keywords);
}

}  // namespace

Nodes children_of(Node& node) {
    Nodes all;
    switch (node.kind) {
        case NodeKind::constant:
        case NodeKind::name:
        case NodeKind::text:
        case NodeKind::leave:
            break;
        case NodeKind::attribute:
            return {static_cast<AttributeNode&>(node).object};
        case NodeKind::item:
            return {static_cast<ItemNode&>(node).object, static_cast<ItemNode&>(node).index};
        case NodeKind::slice: {
            const auto& slice = static_cast<SliceNode&>(node);
            return {slice.begin, slice.end, slice.step};
        }
        case NodeKind::call:
            all = {static_cast<CallNode&>(node).function};
            add(all, static_cast<CallNode&>(node).arguments);
            break;
        case NodeKind::filter:
            all = {static_cast<FilterNode&>(node).value};
            add(all, static_cast<FilterNode&>(node).arguments);
            break;
        case NodeKind::test:
            all = {static_cast<TestNode&>(node).value};
            add(all, static_cast<TestNode&>(node).arguments);
            break;
        case NodeKind::unary:
            return {static_cast<UnaryNode&>(node).value};
        case NodeKind::binary:
        case NodeKind::logic:
            return {static_cast<BinaryNode&>(node).left, static_cast<BinaryNode&>(node).right};
        case NodeKind::concat:
            return static_cast<ConcatNode&>(node).parts;
        case NodeKind::comparison:
            all = {static_cast<ComparisonNode&>(node).first};
            for (const auto& step : static_cast<ComparisonNode&>(node).steps) all.push_back(step.operand);
            break;
        case NodeKind::conditional: {
            const auto& conditional = static_cast<ConditionalNode&>(node);
            return {conditional.condition, conditional.yes, conditional.no};
        }
        case NodeKind::list:
            return static_cast<ListNode&>(node).items;
        case NodeKind::dict:
            for (const auto& [key, value] : static_cast<DictNode&>(node).items) all.insert(all.end(), {key, value});
            break;
        case NodeKind::print:
            return {static_cast<PrintNode&>(node).value};
        case NodeKind::branch:
            for (const auto& arm : static_cast<BranchNode&>(node).arms) {
                all.push_back(arm.condition);
                add(all, arm.body);
            }
            add(all, static_cast<BranchNode&>(node).otherwise);
            break;
        case NodeKind::loop: {
            const auto& loop = static_cast<LoopNode&>(node);
            all = {loop.target, loop.source};
            add(all, loop.body);
            add(all, loop.otherwise);
            all.push_back(loop.condition);
            break;
        }
        case NodeKind::set:
            return {static_cast<SetNode&>(node).value, static_cast<SetNode&>(node).target};
        case NodeKind::set_block:
        case NodeKind::filter_block:
        case NodeKind::generation:
            all = {static_cast<BlockNode&>(node).target, static_cast<BlockNode&>(node).filter};
            add(all, static_cast<BlockNode&>(node).body);
            break;
        case NodeKind::with:
            for (const auto& [target, value] : static_cast<WithNode&>(node).values) all.push_back(value);
            add(all, static_cast<WithNode&>(node).body);
            break;
        case NodeKind::macro:
        case NodeKind::call_block:
            all = {static_cast<MacroNode&>(node).call};
            for (const auto& parameter : static_cast<MacroNode&>(node).parameters) all.push_back(parameter.preset);
            add(all, static_cast<MacroNode&>(node).body);
            break;
    }
    return all;
}

}  // namespace slab::data::jinja
