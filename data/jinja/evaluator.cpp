// Statements.
#include "data/jinja/evaluator.h"

#include <array>

namespace slab::data::jinja {
namespace {

Value global(std::string_view name) {
    static constexpr std::pair<std::string_view, Function> kFunctions[] = {
        {"range", Function::range},
        {"dict", Function::dict},
        {"namespace", Function::name_space},
        {"raise_exception", Function::raise_exception},
        {"strftime_now", Function::strftime_now}};
    for (const auto& [known, function] : kFunctions)
        if (name == known) {
            Value value = Value::of_type(Type::function);
            value.kind = static_cast<uint8_t>(function);
            return value;
        }
    static constexpr std::string_view kRefused[] = {"cycler", "joiner", "lipsum", "self"};
    for (const std::string_view refused : kRefused)
        if (name == refused) return Value::undefined(name, Undefined::refused);
    return Value::missing();
}

}  // namespace

Evaluator::Evaluator(const Tree& tree, const Value& context, const RenderOptions& options)
    : tree_(tree),
      options_(options),
      arena_(options.max_memory_bytes),
      steps_left_(options.max_steps),
      here_(nullptr),
      free_(tree.macros, nullptr),
      output_(options.max_text_bytes) {
    if (context.type != Type::dict) throw std::logic_error("the context of a template is no dict");
    context_.reserve(tree.context_names.size());
    for (const std::string& name : tree.context_names) {
        const Value* const given = context.dict->find(name);
        context_.push_back(given != nullptr ? *given : global(name));
    }
}

void Evaluator::charge(size_t steps) {
    if (steps > steps_left_)
        refuse("takes more than " + std::to_string(options_.max_steps) + " steps for one rendering");
    steps_left_ -= steps;
}

void Evaluator::Deeper::too_deep(Evaluator& e) {
    --e.depth_;
    refuse("calls macros or nests values too deeply", std::to_string(kMaxDepth) + " levels at most");
}

Evaluator::Scratch::Scratch(Evaluator& evaluator) : evaluator_(evaluator) {
    if (evaluator.spare_.empty()) {
        text_ = std::make_unique<TextBuilder>(evaluator.options_.max_text_bytes);
        return;
    }
    text_ = std::move(evaluator.spare_.back());
    evaluator.spare_.pop_back();
    text_->clear();
}

Evaluator::Scratch::~Scratch() {
    evaluator_.spare_.push_back(std::move(text_));
}

void Evaluator::run() {
    activation_ = arena_.make<Activation>(nullptr, arena_.array<Value>(tree_.slots), true, nullptr);
    std::fill_n(activation_->slots, tree_.slots, Value::missing());
    open(tree_.scope);
    run_all(tree_.body);
}

Evaluator::Flow Evaluator::run_all(const Nodes& nodes) {
    for (const Node* const node : nodes)
        if (const Flow flow = run_one(*node); flow != Flow::on) return flow;
    return Flow::on;
}

Evaluator::Flow Evaluator::run_one(const Node& node) {
    const Deeper deeper(*this);
    charge(1);
    here_ = &node;
    switch (node.kind) {
        case NodeKind::text:
            out_->add(static_cast<const TextNode&>(node).text);
            return Flow::on;
        case NodeKind::print:
            print(eval(*static_cast<const PrintNode&>(node).value));
            return Flow::on;
        case NodeKind::branch:
            return run_branch(static_cast<const BranchNode&>(node));
        case NodeKind::loop:
            return run_loop(static_cast<const LoopNode&>(node));
        case NodeKind::set: {
            const auto& set = static_cast<const SetNode&>(node);
            const Value value = eval(*set.value);
            here_ = &node;
            assign(*set.target, value);
            return Flow::on;
        }
        case NodeKind::macro: {
            const auto& macro = static_cast<const MacroNode&>(node);
            *slot(macro.name->place) = make_macro(macro);
            return Flow::on;
        }
        case NodeKind::set_block:
            return run_set_block(static_cast<const BlockNode&>(node));
        case NodeKind::filter_block:
            return run_filter_block(static_cast<const BlockNode&>(node));
        case NodeKind::generation:
            return run_generation(static_cast<const BlockNode&>(node));
        case NodeKind::with:
            return run_with(static_cast<const WithNode&>(node));
        case NodeKind::call_block:
            run_call_block(static_cast<const MacroNode&>(node));
            return Flow::on;
        case NodeKind::leave:
            return static_cast<const LeaveNode&>(node).is_break ? Flow::leave : Flow::again;
        default:
            throw std::logic_error("an expression stands where a statement should");
    }
}

Evaluator::Flow Evaluator::run_branch(const BranchNode& node) {
    for (const BranchNode::Arm& arm : node.arms)
        if (truthy(eval(*arm.condition))) return run_all(arm.body);
    return run_all(node.otherwise);
}

Evaluator::Flow Evaluator::run_loop(const LoopNode& node) {
    const Value source = eval(*node.source);
    here_ = &node;
    Loop& loop = *arena_.make<Loop>();
    loop.cursor = cursor_of(source);
    if (node.condition != nullptr) {
        activation_->is_kept = true;  // the condition's names live there as long as the loop can be asked for more
        Generator filtered{next_filtered, loop.cursor};
        filtered.loop = &node;
        filtered.activation = activation_;
        loop.cursor = cursor_of(generator(filtered));
    }
    bool is_done = false;  // a body came to its end, as Jinja has it for else
    if (const Flow flow = run_bodies(node, loop, is_done); flow != Flow::on) return flow;
    if (is_done || node.otherwise.empty()) return Flow::on;
    open(node.otherwise_scope);
    return run_all(node.otherwise);
}

Evaluator::Flow Evaluator::run_bodies(const LoopNode& node, Loop& loop, bool& is_done) {
    Value loop_value = Value::of_type(Type::loop);
    loop_value.loop = &loop;
    const Place place{Place::Kind::slot, 0, node.loop_slot};
    *slot(place) = loop_value;
    for (Value value; advance(loop, value);) {
        charge(1);
        here_ = &node;
        assign(*node.target, value);
        open(node.scope);
        const Flow flow = run_all(node.body);
        if (flow == Flow::leave) break;
        if (flow == Flow::on) is_done = true;
    }
    return Flow::on;
}

// The next value that a loop's condition holds for.
bool Evaluator::next_filtered(Evaluator& evaluator, Generator& generator, Value& value) {
    Activation* const before = evaluator.activation_;
    evaluator.activation_ = generator.activation;
    bool found = false;
    while (!found && evaluator.next(generator.source, value)) {
        evaluator.assign(*generator.loop->condition_target, value);
        found = truthy(evaluator.eval(*generator.loop->condition));
    }
    evaluator.activation_ = before;
    return found;
}

Evaluator::Flow Evaluator::run_set_block(const BlockNode& node) {
    Scratch printed(*this);
    TextBuilder* const outer = out_;
    out_ = &*printed;
    open(node.scope);
    const Flow flow = run_all(node.body);
    out_ = outer;
    if (flow != Flow::on) return flow;
    Value value = printed.value();
    if (node.filter != nullptr) value = eval_filter(*static_cast<const FilterNode*>(node.filter), &value);
    here_ = &node;
    assign(*node.target, value);
    return Flow::on;
}

Evaluator::Flow Evaluator::run_filter_block(const BlockNode& node) {
    Scratch printed(*this);
    TextBuilder* const outer = out_;
    out_ = &*printed;
    open(node.scope);
    const Flow flow = run_all(node.body);
    out_ = outer;
    if (flow != Flow::on) return flow;
    const Value value = printed.value();
    print(eval_filter(*static_cast<const FilterNode*>(node.filter), &value));
    return Flow::on;
}

Evaluator::Flow Evaluator::run_generation(const BlockNode& node) {
    const size_t begin = out_->size();
    open(node.scope);
    const Flow flow = run_all(node.body);
    out_->mark_generated(begin);
    return flow;
}

Evaluator::Flow Evaluator::run_with(const WithNode& node) {
    std::vector<Value> values;
    for (const auto& [target, value] : node.values) values.push_back(eval(*value));
    here_ = &node;
    for (size_t i = 0; i < values.size(); ++i) assign(*node.values[i].first, values[i]);
    open(node.scope);
    return run_all(node.body);
}

void Evaluator::run_call_block(const MacroNode& node) {
    const Value caller = make_macro(node);
    print(eval_call(*node.call, &caller));
}

void Evaluator::open(const Scope& scope) {
    for (const Opening& opening : scope)
        activation_->slots[opening.slot] = opening.is_empty ? Value::missing() : value_at(opening.from);
}

void Evaluator::assign(const Node& target, const Value& value) {
    if (target.kind == NodeKind::name) {
        *slot(static_cast<const NameNode&>(target).place) = value;
        return;
    }
    if (target.kind == NodeKind::attribute) {
        const auto& attribute = static_cast<const AttributeNode&>(target);
        const Value object = value_at(static_cast<const NameNode*>(attribute.object)->place);
        here_ = &target;
        if (object.type != Type::name_space)
            refuse("sets an attribute of " + described(object), "a namespace", "namespace(name=value) makes one");
        if (attribute.name[0] == '_')
            refuse("sets the attribute \"" + attribute.name + "\" of a namespace",
                   "a name that begins with no underscore");
        charge(object.name_space->size / 8);
        object.name_space->set(attribute.name, value, arena_);
        return;
    }
    const Nodes& items = static_cast<const ListNode&>(target).items;
    Cursor cursor = cursor_of(value);
    std::vector<Value> values;
    for (Value item; values.size() <= items.size() && next(cursor, item);) values.push_back(item);
    here_ = &target;
    if (values.size() != items.size())
        refuse("shares out " + std::string(values.size() > items.size() ? "more" : "fewer") + " values than names",
               std::to_string(items.size()) + " values");
    for (size_t i = 0; i < values.size(); ++i) assign(*items[i], values[i]);
}

Value Evaluator::str(const Value& value) {
    if (value.is_text()) return value;
    Scratch text(*this);
    add_str(*text, value);
    charge(text->size() / 8);
    return text.value();
}

void Evaluator::print(const Value& value) {
    if (value.is_text()) {
        out_->add(value);
        return;
    }
    const size_t before = out_->size();
    add_str(*out_, value);
    charge((out_->size() - before) / 8);
}

}  // namespace slab::data::jinja
