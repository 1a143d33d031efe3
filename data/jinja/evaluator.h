// One rendering of a template: statements, expressions, and what filters, tests and methods need of it.
//
// Bounded whatever the template says. Every node costs a step, and every text steps by its length. Values live in an
// arena with a limit. The evaluator counts how deep it calls itself.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/jinja/arguments.h"
#include "data/jinja/show.h"
#include "data/jinja/template.h"
#include "data/jinja/text.h"
#include "data/jinja/tree.h"

namespace slab::data::jinja {

// The variables of one call of a macro, or of the template itself.
struct Activation {
    Activation* outer;
    Value* slots;
    bool is_kept;  // a macro that was made in it may still be called
    Activation* next_free;
};

struct Macro {
    const MacroNode* node;
    Activation* outer;
};

struct Method {
    Value of;
    std::string_view name;
};

// A place in something that can be gone through.
struct Cursor {
    Value source;
    size_t at = 0;
};

// What Python makes lazily: map, select, reversed and their like. What has been taken from it is gone.
struct Generator {
    using Next = bool (*)(Evaluator&, Generator&, Value&);
    Next next;  // false at the end
    Cursor source;
    Arguments arguments = {};        // kept in the arena
    const LoopNode* loop = nullptr;  // of a loop with a condition, and where its names live
    Activation* activation = nullptr;
    Value state = Value::none();
    Filter filter = nullptr;
    Predicate predicate = nullptr;
    const Value* path = nullptr;  // [path_size] attributes to follow, names and numbers
    size_t path_size = 0;
    bool reject = false, case_sensitive = false;
    DictBuilder* seen = nullptr;
};

struct Loop {
    Cursor cursor;
    Value before = Value::missing(), current = Value::missing(), after = Value::missing();
    Value last_changed = Value::missing();
    int64_t index0 = -1;
    int64_t length = -1;  // -1: not known yet
};

class Evaluator {
  public:
    Evaluator(const Tree& tree, const Value& context, const RenderOptions& options);

    // Throws a Problem, which is at byte here() of the source.
    void run();
    size_t here() const { return here_ == nullptr ? 0 : here_->at; }
    TextBuilder& output() { return output_; }

    // --- for filters, tests and methods
    Arena& arena() { return arena_; }
    const RenderOptions& options() const { return options_; }
    void charge(size_t steps);
    void charge_text(size_t bytes) { charge(bytes / 64); }

    // A builder that is cleared and given back at the end of its scope.
    class Scratch {
      public:
        explicit Scratch(Evaluator& evaluator);
        ~Scratch();
        Scratch(const Scratch&) = delete;
        Scratch& operator=(const Scratch&) = delete;
        TextBuilder& operator*() { return *text_; }
        TextBuilder* operator->() { return text_.get(); }
        Value value() { return text_->value(evaluator_.arena_); }

      private:
        Evaluator& evaluator_;
        std::unique_ptr<TextBuilder> text_;
    };

    // Counts how deep the evaluator calls itself.
    struct Deeper {
        explicit Deeper(Evaluator& e) : evaluator(e) {
            if (++e.depth_ > kMaxDepth) too_deep(e);
        }
        ~Deeper() { --evaluator.depth_; }
        [[noreturn]] static void too_deep(Evaluator& e);
        Evaluator& evaluator;
    };

    Value str(const Value& value);
    Value part(const Value& text, size_t begin, size_t end) { return part_of(text, begin, end, arena_); }
    bool same(const Value& a, const Value& b);  // ==
    int order(const Value& a, const Value& b);  // negative, 0 or positive
    // Whether x in y.
    bool contains(const Value& container, const Value& item);
    bool compare_by(Operator op, const Value& left, const Value& right);
    Value binary(Operator op, const Value& left, const Value& right);
    Value attribute_of(const Value& object, std::string_view name);
    Value item_of(const Value& object, const Value& index);
    Value slice_of(const Value& object, std::optional<int64_t> from, std::optional<int64_t> to, int64_t step);
    Value call(const Value& function, const Arguments& arguments);
    // What is left of a sequence, in memory. Throws a Problem for what cannot be gone through.
    Value list_of(const Value& source);
    Cursor cursor_of(const Value& source);
    bool next(Cursor& cursor, Value& value);
    Value generator(const Generator& generator);
    Value pair_of(const Entry& entry);  // (key, value)
    Value call_loop_method(Loop& loop, std::string_view name, const Arguments& arguments);
    // Arguments that outlive the call.
    Arguments kept(const Arguments& arguments);

  private:
    enum class Flow : uint8_t { on, leave, again };
    static constexpr int kMaxDepth = 1000;
    class ArgumentValues;
    friend class ArgumentValues;

    // evaluator.cpp: statements
    Value text_slice(const Value& object, std::optional<int64_t> from, std::optional<int64_t> to, int64_t step);
    Flow run_all(const Nodes& nodes);
    Flow run_one(const Node& node);
    Flow run_branch(const BranchNode& node);
    Flow run_loop(const LoopNode& node);
    Flow run_bodies(const LoopNode& node, Loop& loop, bool& is_done);
    Flow run_set_block(const BlockNode& node);
    Flow run_filter_block(const BlockNode& node);
    Flow run_generation(const BlockNode& node);
    Flow run_with(const WithNode& node);
    void run_call_block(const MacroNode& node);
    void open(const Scope& scope);
    void assign(const Node& target, const Value& value);
    void print(const Value& value);
    static bool next_filtered(Evaluator& evaluator, Generator& generator, Value& value);

    // expressions are in evaluate.cpp
    Value eval(const Node& node);
    Value eval_name(const NameNode& node);
    Value eval_item(const ItemNode& node);
    Value eval_slice(const Value& object, const SliceNode& slice);
    Value eval_call(const CallNode& node, const Value* caller = nullptr);
    Value eval_filter(const FilterNode& node, const Value* printed = nullptr);
    Value eval_test(const TestNode& node);
    Value eval_unary(const UnaryNode& node);
    Value eval_concat(const ConcatNode& node);
    Value eval_comparison(const ComparisonNode& node);
    Value eval_conditional(const ConditionalNode& node);
    Value eval_list(const ListNode& node);
    Value eval_dict(const DictNode& node);

    // calls.cpp
    Value make_macro(const MacroNode& node);
    Value call_macro(const Macro& macro, const Arguments& arguments);
    void bind_macro(const MacroNode& node, const Arguments& arguments, Value* slots);
    Value call_function(Function function, const Arguments& arguments);
    Activation* activate(uint32_t slots, uint32_t id, Activation* outer);
    void deactivate(Activation* activation, uint32_t id);
    Value* slot(const Place& place);
    Value value_at(const Place& place);

    // loops.cpp
    bool advance(Loop& loop, Value& value);
    bool peek(Loop& loop);
    int64_t length_of(Loop& loop);
    Value loop_attribute(const Value& of, std::string_view name);
    Value method_of(const Value& of, std::string_view name);

    const Tree& tree_;
    const RenderOptions& options_;
    Arena arena_;
    uint64_t steps_left_;
    int depth_ = 0;
    const Node* here_;
    Activation* activation_ = nullptr;
    std::vector<Activation*> free_;  // by macro
    std::vector<Value> context_;     // by number of the context's name
    TextBuilder output_;
    TextBuilder* out_ = &output_;
    std::vector<std::unique_ptr<TextBuilder>> spare_;
};

}  // namespace slab::data::jinja
