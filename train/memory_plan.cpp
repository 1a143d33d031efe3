// The memory plan as people read it, and the advice when it does not fit. Sizes come from model_layout.cpp.
#include <algorithm>
#include <stdexcept>

#include "kernels/runtime.h"
#include "train/model_layout.h"
#include "train/text.h"

namespace slab::train {

namespace {

size_t planned_bytes(const ModelConfig& config, const ModelSettings& settings) {
    return make_layout(config, settings).device_bytes();
}

// Changes of flags, one at a time and then together, that bring the plan under the budget.
std::string advice(const ModelLayout& layout, size_t reserved_bytes, size_t budget_bytes) {
    struct Change {
        std::string flags;
        ModelSettings settings;
    };
    const ModelSettings& now = layout.settings;
    std::vector<Change> changes;
    const auto add = [&](const std::string& flags, auto&& edit) {
        ModelSettings changed = now;
        edit(changed);
        changes.push_back({flags, changed});
    };
    const auto offload = [](ModelSettings& s) {
        s.layer_offloading = true;
        s.num_prefetch = 1;
        s.num_slots = 2;
        s.resident_layers.clear();
    };
    if (now.recompute == Recompute::none)
        add("--recompute block", [](ModelSettings& s) { s.recompute = Recompute::block; });
    if (!now.layer_offloading && layout.resident_frozen.size() > 2) add("--layer-offloading --recompute none", offload);
    if (now.layer_offloading && (now.num_slots > 2 || !now.resident_layers.empty()))
        add("--num-prefetch 1 --num-slots 2, no --resident-layers", offload);
    if (now.B > 1)
        add("--micro-batch-size 1 --gradient-accumulation-steps x" + std::to_string(now.B),
            [](ModelSettings& s) { s.B = 1; });
    const bool can_offload = !layout.resident_frozen.empty() || !layout.streamed.empty();
    add(std::string(can_offload ? "--layer-offloading --num-slots 2 " : "") + "--recompute block",
        [&](ModelSettings& s) {
            if (can_offload) offload(s);
            s.recompute = Recompute::block;
        });
    add(std::string(can_offload ? "--layer-offloading --num-slots 2 " : "") + "--recompute block --micro-batch-size 1",
        [&](ModelSettings& s) {
            if (can_offload) offload(s);
            s.recompute = Recompute::block;
            s.B = 1;
        });
    for (int T = now.T / 2; T >= 64; T /= 2)
        add(std::string(can_offload ? "--layer-offloading --num-slots 2 " : "") +
                "--recompute block --micro-batch-size 1 --sequence-len " + std::to_string(T),
            [&](ModelSettings& s) {
                if (can_offload) offload(s);
                s.recompute = Recompute::block;
                s.B = 1;
                s.T = T;
            });
    std::string text;
    int found = 0;
    for (const auto& change : changes) {
        const size_t bytes = reserved_bytes + planned_bytes(layout.config, change.settings);
        if (bytes > budget_bytes) continue;
        text += "\n  " + change.flags + "  would need " + memory_text(bytes);
        if (++found == 3) break;
    }
    if (found != 0) return "It would fit with:" + text;
    const size_t least = reserved_bytes + planned_bytes(layout.config, changes.back().settings);
    return "No choice of --layer-offloading, --recompute, --micro-batch-size and --sequence-len makes it fit; the "
           "least is " +
           memory_text(least) + " (" + changes.back().flags + ").";
}

}  // namespace

std::string describe_plan(const ModelLayout& layout, size_t reserved_bytes, size_t budget_bytes) {
    std::string text = "device memory\n";
    const auto line = [&](const std::string& category, const std::string& what, size_t bytes) {
        text += format_text("  %-17s %-40s %12s\n", category.c_str(), what.c_str(), memory_text(bytes).c_str());
    };
    size_t total = reserved_bytes;
    for (const auto& item : layout.device_items()) {
        line(name_of(item.category), item.what, item.bytes);
        total += item.bytes;
    }
    if (reserved_bytes != 0) line("driver", "driver and libraries", reserved_bytes);
    text += format_text("  %-58s %12s  (%s)\n", "in all", memory_text(total).c_str(), bytes_text(total).c_str());
    if (budget_bytes != 0)
        text += format_text("  %-58s %12s\n", total <= budget_bytes ? "budget: fits" : "budget: DOES NOT FIT",
                            memory_text(budget_bytes).c_str());
    text += "host memory\n";
    for (const auto& [what, bytes] : layout.host_items()) line("", what, bytes);
    return text;
}

void check_budget(const ModelLayout& layout, size_t reserved_bytes, size_t budget_bytes) {
    const size_t needed = reserved_bytes + layout.device_bytes();
    if (budget_bytes == 0 || needed <= budget_bytes) return;
    const auto items = layout.device_items();
    const auto largest =
        std::max_element(items.begin(), items.end(), [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
    throw std::runtime_error("the plan needs " + memory_text(needed) + " of device memory and the budget is " +
                             memory_text(budget_bytes) + " (" + bytes_text(needed - budget_bytes) +
                             " too much). Largest item: " + name_of(largest->category) + ", " + largest->what + ", " +
                             memory_text(largest->bytes) + ". " + advice(layout, reserved_bytes, budget_bytes));
}

}  // namespace slab::train
