// Advice is tried before it is given: each line of it is a layout that was computed and fits.
#include "train/model/memory_plan.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <stdexcept>

#include "data/base/error.h"
#include "kernels/matmul.h"
#include "kernels/runtime/runtime.h"
#include "train/model/model_layout.h"
#include "train/spec/text.h"

namespace slab::train {

namespace {

constexpr int kShortestAdvised = 8;  // tokens in a row; shorter rows are never advised
constexpr int kAdvisedStep = 64;     // longer rows are advised in multiples of it

size_t planned_bytes(const ModelConfig& config, const ModelSettings& settings) {
    return make_layout(config, settings).device_bytes();
}

// The flags that change `now` into `wanted`, as a user adds them to a command line.
std::string flags_between(const ModelSettings& now, const ModelSettings& wanted) {
    std::string flags;
    const auto add = [&](const std::string& flag) { flags += (flags.empty() ? "" : " ") + flag; };
    const bool newly_offloading = wanted.layer_offloading && !now.layer_offloading;
    if (newly_offloading) add("--layer-offloading");
    if (wanted.num_prefetch != now.num_prefetch) add("--num-prefetch " + std::to_string(wanted.num_prefetch));
    if (wanted.num_slots != now.num_slots) add("--num-slots " + std::to_string(wanted.num_slots));
    // Offloading changes the default of --recompute, so it is named then.
    if (wanted.recompute != now.recompute || newly_offloading)
        add(wanted.recompute == Recompute::block ? "--recompute block" : "--recompute none");
    if (wanted.B != now.B) add("--micro-batch-size " + std::to_string(wanted.B));
    if (wanted.T != now.T) add("--sequence-len " + std::to_string(wanted.T));
    if (wanted.resident_layers != now.resident_layers) add("without --resident-layers");
    if (wanted.B != now.B) {
        const int common = std::gcd(now.B, wanted.B);
        add("(and " + std::to_string(now.B / common) +
            (wanted.B == common ? "" : "/" + std::to_string(wanted.B / common)) +
            " times the --gradient-accumulation-steps)");
    }
    return flags;
}

// The account's name for trained memory is "adapters". Without LoRA the plan says "trained weights".
const char* label_of(MemoryCategory category, const ModelLayout& layout) {
    return category == MemoryCategory::trained && !layout.settings.lora ? "trained weights" : name_of(category);
}

// The largest of step, 2 step, ... below `limit` that fits, found by bisection; 0 if none does. The result was tried.
int largest_fitting(int step, int limit, const std::function<bool(int)>& fits) {
    int most = 0, above = (limit + step - 1) / step;  // in steps: most fits (or is 0), above does not
    while (above - most > 1) {
        const int middle = most + (above - most) / 2;
        (fits(middle * step) ? most : above) = middle;
    }
    return most * step;
}

// Changes of flags, one at a time and then together, that bring the plan under the budget.
std::string advice(const ModelLayout& layout, size_t reserved_bytes, size_t budget_bytes) {
    struct Change {
        std::string flags;
        size_t bytes;
    };
    const ModelSettings& now = layout.settings;
    std::vector<Change> changes;
    const auto bytes_of = [&](const ModelSettings& wanted) {
        return reserved_bytes + planned_bytes(layout.config, wanted);
    };
    const auto add = [&](const ModelSettings& wanted) {
        const std::string flags = flags_between(now, wanted);
        const auto same = [&](const Change& change) { return change.flags == flags; };
        if (flags.empty() || std::any_of(changes.begin(), changes.end(), same)) return;
        changes.push_back({flags, bytes_of(wanted)});
    };
    const auto fits = [&](const ModelSettings& wanted) { return bytes_of(wanted) <= budget_bytes; };
    // Settings that do not fit, made to fit by the largest micro-batch or the longest rows.
    const auto add_smaller_batch = [&](ModelSettings wanted) {
        if (fits(wanted)) return;
        const auto fits_with = [&](int B) { return wanted.B = B, fits(wanted); };
        wanted.B = std::max(1, largest_fitting(1, now.B, fits_with));
        add(wanted);
    };
    const auto add_shorter_rows = [&](ModelSettings wanted) {
        if (fits(wanted)) return;
        const auto fits_with = [&](int T) { return wanted.T = T, fits(wanted); };
        int T = largest_fitting(kAdvisedStep, now.T, fits_with);
        if (T == 0) T = largest_fitting(kShortestAdvised, now.T, fits_with);
        wanted.T = std::max(T, kShortestAdvised);
        if (wanted.T < now.T) add(wanted);
    };
    ModelSettings offloading = now;
    if (layout.ring.streamed().size() + layout.resident_frozen.size() > 2) {
        offloading.layer_offloading = true;
        offloading.num_prefetch = 1;
        offloading.num_slots = 2;
        offloading.resident_layers.clear();
    }
    ModelSettings changed = now;
    changed.recompute = Recompute::block;
    add(changed);
    add(offloading);
    add_smaller_batch(now);
    changed = offloading;
    changed.recompute = Recompute::block;
    add(changed);
    add_smaller_batch(changed);
    changed.B = 1;
    add_shorter_rows(changed);
    std::string text;
    int found = 0;
    for (const auto& change : changes) {
        if (change.bytes > budget_bytes) continue;
        text += "\n  " + change.flags + "  would need " + memory_text(change.bytes);
        if (++found == 3) break;
    }
    if (found != 0) return "It would fit with:" + text;
    text = "No choice of --layer-offloading, --recompute, --micro-batch-size and --sequence-len makes it fit";
    if (changes.empty()) return text + ".";
    return text + "; the least is " + memory_text(changes.back().bytes) + " (" + changes.back().flags + ").";
}

}  // namespace

std::string describe_plan(const ModelLayout& layout, size_t reserved_bytes, size_t budget_bytes) {
    std::string text = "device memory\n";
    const auto line = [&](const std::string& label, const std::string& what, size_t bytes) {
        text += format_text("  %-17s %-40s %12s\n", label.c_str(), what.c_str(), memory_text(bytes).c_str());
    };
    size_t total = reserved_bytes;
    for (const auto& item : layout.device_items()) {
        line(label_of(item.category, layout), item.what, item.bytes);
        total += item.bytes;
    }
    if (reserved_bytes != 0) line("driver", "driver and libraries", reserved_bytes);
    text += format_text("  %-58s %12s  (%s)\n", "in all", memory_text(total).c_str(), bytes_text(total).c_str());
    if (budget_bytes != 0)
        text += format_text("  %-58s %12s\n", total <= budget_bytes ? "budget: fits" : "budget: DOES NOT FIT",
                            memory_text(budget_bytes).c_str());
    if (budget_bytes != 0 && total > budget_bytes) text += advice(layout, reserved_bytes, budget_bytes) + "\n";
    text += "host memory\n";
    for (const auto& [what, bytes] : layout.host_items()) line("", what, bytes);
    return text + format_text("  %-58s %12s\n", "in all", memory_text(layout.host_bytes()).c_str());
}

void check_budget(const ModelLayout& layout, size_t reserved_bytes, size_t budget_bytes) {
    const size_t needed = reserved_bytes + layout.device_bytes();
    if (budget_bytes == 0 || needed <= budget_bytes) return;
    const auto items = layout.device_items();
    const auto largest =
        std::max_element(items.begin(), items.end(), [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
    throw data::UserError("the plan needs " + memory_text(needed) + " of device memory and the budget is " +
                          memory_text(budget_bytes) + " (" + bytes_text(needed - budget_bytes) +
                          " too much). Largest item: " + label_of(largest->category, layout) + ", " + largest->what +
                          ", " + memory_text(largest->bytes) + ". " + advice(layout, reserved_bytes, budget_bytes));
}

void check_available(const ModelLayout& layout, size_t reserved_bytes, size_t available_bytes) {
    const size_t needed = reserved_bytes + layout.device_bytes();
    if (available_bytes == 0 || needed <= available_bytes) return;
    throw data::UserError(
        "the plan needs " + memory_text(needed) + " of device memory and " + memory_text(available_bytes) +
        " are free. Hint: give no larger --vram-budget (left out, it is what is free less 5%), or end what else "
        "uses the GPU. " +
        advice(layout, reserved_bytes, available_bytes));
}

void check_host_memory(const ModelLayout& layout, size_t available_bytes) {
    const size_t device_bytes = kBackend == Backend::cpu ? layout.device_bytes() : 0;
    const size_t needed = layout.host_bytes() + device_bytes;
    if (needed <= available_bytes) return;
    std::string parts;
    for (const auto& [what, bytes] : layout.host_items()) parts += memory_text(bytes) + " for " + what + ", ";
    if (device_bytes != 0) parts += memory_text(device_bytes) + " standing in for device memory, ";
    throw data::UserError("the plan needs " + memory_text(needed) + " of host memory (" +
                          parts.substr(0, parts.size() - 2) + ") and " + memory_text(available_bytes) +
                          " are available. Hint: close other programs, or raise the container's limit" +
                          (device_bytes != 0 ? "; a smaller --micro-batch-size or --sequence-len needs less" : ""));
}

void check_host_memory_of_ranks(const ModelLayout& layout, size_t available_bytes) {
    const size_t ranks = static_cast<size_t>(layout.settings.ranks);
    const size_t each_bytes = kBackend == Backend::cpu ? layout.device_bytes() : 0;
    const size_t needed = layout.host_bytes() + ranks * each_bytes;
    if (needed <= available_bytes) return;
    throw data::UserError("the plan needs " + memory_text(needed) + " of host memory (" +
                          memory_text(layout.host_bytes()) + " for all ranks, " + memory_text(each_bytes) +
                          " standing in for the device memory of each of " + std::to_string(ranks) + ") and " +
                          memory_text(available_bytes) + " are available. Hint: fewer ranks (--gpus)");
}

void check_address_space(const ModelLayout& layout, size_t free_bytes, int threads) {
    const size_t plan_bytes = layout.host_bytes() + (kBackend == Backend::cpu ? layout.device_bytes() : 0);
    const size_t product_bytes = matmul_address_bytes(threads);
    if (plan_bytes + product_bytes <= free_bytes) return;
    throw data::UserError("the plan needs " + memory_text(plan_bytes) + " of host memory and matrix products on " +
                          std::to_string(threads) + " threads " + memory_text(product_bytes) +
                          " of address space, and the limit on address space (ulimit -v, or -d) leaves " +
                          memory_text(free_bytes) + ". Hint: lift the limit, or give a smaller --threads");
}

}  // namespace slab::train
