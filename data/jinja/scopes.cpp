// Two passes over each scope: one notes the names that it loads and sets, one writes their places into the tree.
#include "data/jinja/scopes.h"

#include <map>
#include <string>

#include "data/jinja/children.h"
#include "data/jinja/lexer.h"

namespace slab::data::jinja {
namespace {

constexpr size_t kMaxVisits = 5'000'000;  // of nodes; macros within macros are looked at again and again
constexpr int kMaxTreeDepth = 400;        // long chains of operators are deep to the left

struct Function {
    uint32_t depth = 0, slots = 0;
};

struct Symbol {
    bool is_stored = false;  // else it is read from the context
    bool is_given = false;   // a parameter, which needs no opening
    bool is_empty = false;   // at the scope's beginning
    uint32_t slot = 0;
};

struct Frame {
    Frame* parent;
    Function* function;
    std::map<std::string, Symbol, std::less<>> symbols = {};
    int conditions = 0;  // around what is looked at
};

class Resolver {
  public:
    explicit Resolver(Tree& tree) : tree_(tree) {}

    void run() {
        Function root;
        Frame frame{nullptr, &root};
        note(tree_.body, frame);
        resolve(tree_.body, frame);
        tree_.scope = openings(frame);
        tree_.slots = root.slots;
    }

  private:
    struct Deeper {
        Deeper(Resolver& r, const Node& node) : resolver(r) {
            if (++resolver.visits_ > kMaxVisits) throw SourceProblem{{"is too large a template", "", ""}, node.at};
            if (++resolver.depth_ > kMaxTreeDepth)
                throw SourceProblem{{"is nested too deeply", std::to_string(kMaxTreeDepth) + " levels at most", ""},
                                    node.at};
        }
        ~Deeper() { --resolver.depth_; }
        Resolver& resolver;
    };

    // Unknown filters are minded at once outside of conditions.
    struct Softness {
        Softness(Resolver& r, bool is_soft) : resolver(r), before(r.is_soft_) { r.is_soft_ = is_soft; }
        ~Softness() { resolver.is_soft_ = before; }
        Resolver& resolver;
        bool before;
    };

    // --- the first pass
    static const Symbol* find(const Frame* frame, std::string_view name, const Frame** in = nullptr) {
        for (; frame != nullptr; frame = frame->parent)
            if (const auto found = frame->symbols.find(name); found != frame->symbols.end()) {
                if (in != nullptr) *in = frame;
                return &found->second;
            }
        return nullptr;
    }

    static void load(const std::string& name, Frame& frame) {
        if (find(&frame, name) == nullptr) frame.symbols[name] = Symbol{};
    }

    static void store(const std::string& name, Frame& frame) {
        const auto [found, is_new] = frame.symbols.try_emplace(name);
        Symbol& symbol = found->second;
        if (symbol.is_stored) return;
        symbol.is_stored = true;
        symbol.is_empty = is_new && frame.conditions == 0 && find(frame.parent, name) == nullptr;
        symbol.slot = frame.function->slots++;
    }

    static void give(const std::string& name, Frame& frame) {
        frame.symbols[name] = Symbol{true, true, false, frame.function->slots++};
    }

    void note(const Nodes& nodes, Frame& frame) {
        for (Node* const node : nodes) note(node, frame);
    }

    void note_target(Node* target, Frame& frame, bool is_given) {
        if (target->kind == NodeKind::name) {
            const std::string& name = static_cast<NameNode*>(target)->name;
            is_given ? give(name, frame) : store(name, frame);
        } else if (target->kind == NodeKind::attribute) {
            note(static_cast<AttributeNode*>(target)->object, frame);
        } else {
            for (Node* const item : static_cast<ListNode*>(target)->items) note_target(item, frame, is_given);
        }
    }

    void note(Node* node, Frame& frame) {
        if (node == nullptr) return;
        const Deeper deeper(*this, *node);
        switch (node->kind) {
            case NodeKind::name:
                return load(static_cast<NameNode*>(node)->name, frame);
            case NodeKind::branch:
                return note_branch(*static_cast<BranchNode*>(node), frame);
            case NodeKind::macro:
                return store(static_cast<MacroNode*>(node)->name->name, frame);
            case NodeKind::loop:
                return note(static_cast<LoopNode*>(node)->source, frame);
            case NodeKind::call_block:
                return note(static_cast<MacroNode*>(node)->call, frame);
            case NodeKind::filter_block:
                return note(static_cast<BlockNode*>(node)->filter, frame);
            case NodeKind::set_block:
                return note_target(static_cast<BlockNode*>(node)->target, frame, false);
            case NodeKind::generation:
                return;
            case NodeKind::set:
                note(static_cast<SetNode*>(node)->value, frame);
                return note_target(static_cast<SetNode*>(node)->target, frame, false);
            case NodeKind::with:
                for (const auto& [target, value] : static_cast<WithNode*>(node)->values) note(value, frame);
                return;
            default:
                for (Node* const child : children_of(*node)) note(child, frame);
        }
    }

    void note_branch(BranchNode& node, Frame& frame) {
        for (const auto& arm : node.arms) {
            note(arm.condition, frame);
            ++frame.conditions;
            note(arm.body, frame);
            --frame.conditions;
        }
        ++frame.conditions;
        note(node.otherwise, frame);
        --frame.conditions;
    }

    // --- the second pass
    Place place_of(const std::string& name, const Frame* frame, const Function& seen_from) {
        const Frame* in = nullptr;
        const Symbol* const symbol = find(frame, name, &in);
        if (symbol != nullptr && symbol->is_stored)
            return {Place::Kind::slot, seen_from.depth - in->function->depth, symbol->slot};
        const auto [found, is_new] = context_.try_emplace(name, static_cast<uint32_t>(tree_.context_names.size()));
        if (is_new) tree_.context_names.push_back(name);
        return {Place::Kind::context, 0, found->second};
    }

    Scope openings(const Frame& frame) {
        Scope scope;
        for (const auto& [name, symbol] : frame.symbols)
            if (symbol.is_stored && !symbol.is_given)
                scope.push_back({symbol.slot, symbol.is_empty,
                                 symbol.is_empty ? Place{} : place_of(name, frame.parent, *frame.function)});
        return scope;
    }

    void resolve(const Nodes& nodes, Frame& frame) {
        for (Node* const node : nodes) resolve(node, frame);
    }

    void resolve(Node* node, Frame& frame) {
        if (node == nullptr) return;
        const Deeper deeper(*this, *node);
        switch (node->kind) {
            case NodeKind::name: {
                auto& name = *static_cast<NameNode*>(node);
                name.place = place_of(name.name, &frame, *frame.function);
                return;
            }
            case NodeKind::loop:
                return resolve_loop(*static_cast<LoopNode*>(node), frame);
            case NodeKind::macro:
                resolve(static_cast<MacroNode*>(node)->name, frame);
                return resolve_macro(*static_cast<MacroNode*>(node), frame);
            case NodeKind::call_block:
                resolve(static_cast<MacroNode*>(node)->call, frame);
                return resolve_macro(*static_cast<MacroNode*>(node), frame);
            case NodeKind::set_block:
            case NodeKind::filter_block:
            case NodeKind::generation:
                return resolve_block(*static_cast<BlockNode*>(node), frame);
            case NodeKind::with:
                return resolve_with(*static_cast<WithNode*>(node), frame);
            case NodeKind::filter:
                if (const auto& filter = *static_cast<FilterNode*>(node); filter.filter == nullptr && !is_soft_)
                    throw SourceProblem{{"has the unknown filter \"" + filter.name + "\"", "", ""}, node->at};
                break;
            case NodeKind::test:
                if (const auto& test = *static_cast<TestNode*>(node); test.predicate == nullptr && !is_soft_)
                    throw SourceProblem{{"has the unknown test \"" + test.name + "\"", "", ""}, node->at};
                break;
            default:
                break;
        }
        const bool is_conditional = node->kind == NodeKind::branch || node->kind == NodeKind::conditional;
        const Softness softness(*this, is_soft_ || is_conditional);
        for (Node* const child : children_of(*node)) resolve(child, frame);
    }

    void resolve_loop(LoopNode& node, Frame& frame) {
        resolve(node.source, frame);
        const Softness softness(*this, false);
        if (node.condition != nullptr) {
            Frame inner{&frame, frame.function};
            note_target(node.condition_target, inner, true);
            note(node.condition, inner);
            resolve(node.condition_target, inner);
            resolve(node.condition, inner);
        }
        {
            Frame inner{&frame, frame.function};
            give("loop", inner);
            node.loop_slot = inner.symbols["loop"].slot;
            note_target(node.target, inner, true);
            note(node.body, inner);
            resolve(node.target, inner);
            resolve(node.body, inner);
            node.scope = openings(inner);
        }
        Frame inner{&frame, frame.function};
        note(node.otherwise, inner);
        resolve(node.otherwise, inner);
        node.otherwise_scope = openings(inner);
    }

    void resolve_block(BlockNode& node, Frame& frame) {
        resolve(node.target, frame);
        const Softness softness(*this, false);
        Frame inner{&frame, frame.function};
        note(node.body, inner);
        note(node.filter, inner);
        resolve(node.body, inner);
        resolve(node.filter, inner);
        node.scope = openings(inner);
    }

    void resolve_with(WithNode& node, Frame& frame) {
        Frame inner{&frame, frame.function};
        for (const auto& [target, value] : node.values) {
            resolve(value, frame);
            note_target(target, inner, true);
        }
        const Softness softness(*this, false);
        note(node.body, inner);
        for (const auto& [target, value] : node.values) resolve(target, inner);
        resolve(node.body, inner);
        node.scope = openings(inner);
    }

    void resolve_macro(MacroNode& node, Frame& frame) {
        const Softness softness(*this, false);
        Function function{frame.function->depth + 1, 0};
        Frame inner{&frame, &function};
        for (const auto& parameter : node.parameters) give(parameter.name->name, inner);
        const auto give_special = [&](const std::string& name, int64_t& slot) {
            if (inner.symbols.count(name) != 0 || !reads_first(node.body, name)) return;
            give(name, inner);
            slot = inner.symbols[name].slot;
        };
        give_special("caller", node.caller_slot);
        give_special("kwargs", node.keywords_slot);
        give_special("varargs", node.rest_slot);
        for (const auto& parameter : node.parameters) note(parameter.preset, inner);
        note(node.body, inner);
        for (const auto& parameter : node.parameters) {
            resolve(parameter.name, inner);
            resolve(parameter.preset, inner);
        }
        resolve(node.body, inner);
        node.scope = openings(inner);
        node.slots = function.slots;
        node.id = tree_.macros++;
    }

    // --- both
    enum class First { none, load, store };

    // Whether the first mention of a name reads it.
    bool reads_first(const Nodes& nodes, std::string_view name) {
        for (Node* const node : nodes)
            if (const First first = first_mention(node, name); first != First::none) return first == First::load;
        return false;
    }

    First first_mention(Node* node, std::string_view name, bool is_target = false) {
        if (node == nullptr) return First::none;
        const Deeper deeper(*this, *node);
        if (node->kind == NodeKind::name) {
            if (static_cast<NameNode*>(node)->name != name) return First::none;
            return is_target ? First::store : First::load;
        }
        Node* target = nullptr;
        if (node->kind == NodeKind::set) target = static_cast<SetNode*>(node)->target;
        if (node->kind == NodeKind::set_block) target = static_cast<BlockNode*>(node)->target;
        if (node->kind == NodeKind::loop) target = static_cast<LoopNode*>(node)->target;
        if (target != nullptr && target->kind != NodeKind::attribute)
            if (const First first = first_mention(target, name, true); first != First::none) return first;
        for (Node* const child : children_of(*node))
            if (child != target)
                if (const First first = first_mention(child, name, is_target); first != First::none) return first;
        return First::none;
    }

    Tree& tree_;
    std::map<std::string, uint32_t, std::less<>> context_;
    int depth_ = 0;
    size_t visits_ = 0;
    bool is_soft_ = false;
};

}  // namespace

void resolve_names(Tree& tree) {
    Resolver(tree).run();
}

}  // namespace slab::data::jinja
