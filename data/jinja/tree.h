// A parsed template. Every node is owned by the tree itself, so that freeing it needs no recursion.
//
// Names are resolved before anything is rendered, as Jinja's own compiler does. A variable is a slot of a function's
// activation: of the template's root, a macro or a call block. A name that the template never sets is the context's.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/jinja/value.h"

namespace slab::data::jinja {

class Evaluator;
struct Arguments;
using Filter = Value (*)(Evaluator&, const Value&, const Arguments&);
using Predicate = bool (*)(Evaluator&, const Value&, const Arguments&);

enum class NodeKind : uint8_t {
    // expressions
    constant,
    name,
    attribute,
    item,
    slice,
    call,
    filter,
    test,
    unary,
    binary,
    concat,
    comparison,
    logic,
    conditional,
    list,
    dict,
    // statements
    text,
    print,
    branch,
    loop,
    set,
    set_block,
    macro,
    call_block,
    filter_block,
    generation,
    with,
    leave,
};

struct Node {
    explicit Node(NodeKind k, uint32_t offset) : kind(k), at(offset) {}
    virtual ~Node() = default;
    NodeKind kind;
    uint32_t at;  // byte in the source
};
using Nodes = std::vector<Node*>;

// Where a variable lives.
struct Place {
    enum class Kind : uint8_t { slot, context };
    Kind kind = Kind::context;
    uint32_t hops = 0;   // activations outwards
    uint32_t index = 0;  // slot of that activation, or number of the context's name
};

// What a variable of a scope begins with.
struct Opening {
    uint32_t slot;
    bool is_empty;  // no value yet, else that of `from`
    Place from;
};
using Scope = std::vector<Opening>;

struct ConstantNode : Node {
    explicit ConstantNode(uint32_t at) : Node(NodeKind::constant, at) {}
    std::string bytes;  // of a text
    Value value;
};

struct NameNode : Node {
    NameNode(uint32_t at, std::string_view n) : Node(NodeKind::name, at), name(n) {}
    std::string name;
    Place place;
};

struct AttributeNode : Node {  // object.name, also the target of {% set namespace.name = ... %}
    AttributeNode(uint32_t at, Node* o, std::string_view n) : Node(NodeKind::attribute, at), object(o), name(n) {}
    Node* object;
    std::string name;
};

struct SliceNode : Node {  // begin:end:step
    explicit SliceNode(uint32_t at) : Node(NodeKind::slice, at) {}
    Node *begin = nullptr, *end = nullptr, *step = nullptr;
};

struct ItemNode : Node {  // object[index]; index may be a SliceNode
    ItemNode(uint32_t at, Node* o, Node* i) : Node(NodeKind::item, at), object(o), index(i) {}
    Node *object, *index;
};

struct ArgumentNodes {
    struct Keyword {
        std::string name;
        Node* value;
    };
    Nodes positional;
    std::vector<Keyword> keywords;
    Node *rest = nullptr, *rest_keywords = nullptr;  // *rest, **rest_keywords
};

struct CallNode : Node {
    CallNode(uint32_t at, Node* f) : Node(NodeKind::call, at), function(f) {}
    Node* function;
    ArgumentNodes arguments;
};

struct FilterNode : Node {
    FilterNode(uint32_t at, Node* v, std::string_view n) : Node(NodeKind::filter, at), value(v), name(n) {}
    Node* value;  // null: what the block around it printed
    std::string name;
    Filter filter = nullptr;  // null: unknown
    ArgumentNodes arguments;
};

struct TestNode : Node {
    TestNode(uint32_t at, Node* v, std::string_view n) : Node(NodeKind::test, at), value(v), name(n) {}
    Node* value;
    std::string name;
    bool negated = false;
    Predicate predicate = nullptr;  // null: unknown
    ArgumentNodes arguments;
};

enum class Operator : uint8_t {
    add,
    subtract,
    multiply,
    divide,
    floor_divide,
    modulo,
    power,
    negate,
    plus,
    not_,
    and_,
    or_,
    equal,
    not_equal,
    less,
    less_equal,
    greater,
    greater_equal,
    in,
    not_in,
};

struct UnaryNode : Node {
    UnaryNode(uint32_t at, Operator o, Node* v) : Node(NodeKind::unary, at), op(o), value(v) {}
    Operator op;
    Node* value;
};

struct BinaryNode : Node {  // kinds binary and logic
    BinaryNode(NodeKind kind, uint32_t at, Operator o, Node* l, Node* r) : Node(kind, at), op(o), left(l), right(r) {}
    Operator op;
    Node *left, *right;
};

struct ConcatNode : Node {
    explicit ConcatNode(uint32_t at) : Node(NodeKind::concat, at) {}
    Nodes parts;
};

struct ComparisonNode : Node {  // first op operand op operand ..., each with its neighbour
    struct Step {
        Operator op;
        Node* operand;
    };
    ComparisonNode(uint32_t at, Node* f) : Node(NodeKind::comparison, at), first(f) {}
    Node* first;
    std::vector<Step> steps;
};

struct ConditionalNode : Node {
    ConditionalNode(uint32_t at, Node* c, Node* y, Node* n)
        : Node(NodeKind::conditional, at), condition(c), yes(y), no(n) {}
    Node *condition, *yes, *no;  // no may be null
};

struct ListNode : Node {
    explicit ListNode(uint32_t at) : Node(NodeKind::list, at) {}
    bool is_tuple = false;
    Nodes items;
};

struct DictNode : Node {
    explicit DictNode(uint32_t at) : Node(NodeKind::dict, at) {}
    std::vector<std::pair<Node*, Node*>> items;
};

struct TextNode : Node {
    TextNode(uint32_t at, std::string_view t) : Node(NodeKind::text, at), text(t) {}
    std::string_view text;  // of the source
};

struct PrintNode : Node {
    PrintNode(uint32_t at, Node* v) : Node(NodeKind::print, at), value(v) {}
    Node* value;
};

struct BranchNode : Node {  // if, elif, else
    struct Arm {
        Node* condition;
        Nodes body;
    };
    explicit BranchNode(uint32_t at) : Node(NodeKind::branch, at) {}
    std::vector<Arm> arms;
    Nodes otherwise;
};

struct LoopNode : Node {
    explicit LoopNode(uint32_t at) : Node(NodeKind::loop, at) {}
    Node *target = nullptr, *source = nullptr, *condition = nullptr, *condition_target = nullptr;
    Nodes body, otherwise;
    Scope scope, otherwise_scope;
    uint32_t loop_slot = 0;  // of the variable `loop`
};

struct SetNode : Node {
    SetNode(uint32_t at, Node* t, Node* v) : Node(NodeKind::set, at), target(t), value(v) {}
    Node *target, *value;
};

struct BlockNode : Node {  // kinds set_block, filter_block, generation
    BlockNode(NodeKind kind, uint32_t at) : Node(kind, at) {}
    Node *target = nullptr, *filter = nullptr;  // null where there is none; filter is a chain of FilterNodes
    Nodes body;
    Scope scope;
};

struct WithNode : Node {
    explicit WithNode(uint32_t at) : Node(NodeKind::with, at) {}
    std::vector<std::pair<Node*, Node*>> values;  // target, value
    Nodes body;
    Scope scope;
};

// A macro, or the body of a call block, which is a macro without a name.
struct MacroNode : Node {
    struct Parameter {
        NameNode* name;
        Node* preset;  // null: none
    };
    MacroNode(NodeKind kind, uint32_t at) : Node(kind, at) {}
    NameNode* name = nullptr;
    std::vector<Parameter> parameters;
    Nodes body;
    CallNode* call = nullptr;  // of a call block
    Scope scope;
    uint32_t slots = 0, id = 0;  // of its activation; number among the template's macros
    // The slots of caller, kwargs and varargs where the body asks for them, else -1.
    int64_t caller_slot = -1, keywords_slot = -1, rest_slot = -1;
};

struct LeaveNode : Node {
    LeaveNode(uint32_t at, bool b) : Node(NodeKind::leave, at), is_break(b) {}
    bool is_break;  // else continue
};

struct Tree {
    std::vector<std::unique_ptr<Node>> nodes;
    Nodes body;
    Scope scope;
    uint32_t slots = 0, macros = 0;
    std::vector<std::string> context_names;

    template <class T, class... A>
    T* make(A&&... arguments) {
        auto node = std::make_unique<T>(std::forward<A>(arguments)...);
        T* const raw = node.get();
        nodes.push_back(std::move(node));
        return raw;
    }
};

}  // namespace slab::data::jinja
