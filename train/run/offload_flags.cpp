#include "train/run/offload_flags.h"

#include <limits>
#include <sstream>
#include <stdexcept>

#include "data/base/byte_size.h"
#include "data/base/display.h"
#include "offload/ring_plan.h"
#include "train/model/slots_auto.h"
#include "train/run/flag_table.h"

namespace slab::train {

namespace {

// The whole text as a number, or -1.
int whole_number(const std::string& text) {
    size_t used = 0;
    try {
        const int number = std::stoi(text, &used);
        return used == text.size() ? number : -1;
    } catch (const std::logic_error&) {  // no number, or too large
        return -1;
    }
}

// A list as it stands, or N layers spread over the `frozen` first ones.
std::vector<int> parse_layer_list(const std::string& text, int frozen) {
    std::vector<int> numbers;
    std::stringstream in(text);
    for (std::string item; std::getline(in, item, ',');) {
        numbers.push_back(whole_number(item));
        if (numbers.back() < 0) break;
    }
    if (numbers.empty() || numbers.back() < 0)
        refuse_flag("--resident-layers " + data::quote(text), "",
                    "a number of layers (N) or a list of layer numbers (0,3,5)");
    if (text.find(',') != std::string::npos) return numbers;
    const int count = numbers[0];
    if (count > frozen)
        refuse_flag("--resident-layers " + text,
                    "only " + std::to_string(frozen) + " layers are frozen and could be streamed",
                    "at most " + std::to_string(frozen));
    // Spread evenly: while compute works on a resident layer, the link gets ahead.
    std::vector<int> spread;
    for (int i = 0; i < count; ++i)
        spread.push_back(static_cast<int>(((2 * int64_t{i} + 1) * frozen) / (2 * int64_t{count})));
    return spread;
}

}  // namespace

size_t OffloadFlags::budget_bytes() const {
    return vram_budget.empty() ? 0 : data::parse_size(vram_budget, "--vram-budget");
}

void apply_offload_flags(ModelSettings& s, const OffloadFlags& f, int L) {
    s.layer_offloading = f.layer_offloading;
    s.recompute =
        f.recompute == "block" || (f.recompute.empty() && f.layer_offloading) ? Recompute::block : Recompute::none;
    check_range(flag_named("num-prefetch"), f.num_prefetch, "--num-prefetch " + std::to_string(f.num_prefetch));
    s.num_prefetch = f.num_prefetch;
    s.num_slots = offload::least_slots(f.num_prefetch);
    if (!f.num_slots.empty() && f.num_slots != "auto") {
        s.num_slots = whole_number(f.num_slots);
        if (s.num_slots < 0)
            refuse_flag("--num-slots " + data::quote(f.num_slots), "",
                        "a number up to " + std::to_string(std::numeric_limits<int>::max()) + ", or auto");
    }
    const int frozen = s.freeze_layers > 0 ? s.freeze_layers : L;
    if (!f.resident_layers.empty()) s.resident_layers = parse_layer_list(f.resident_layers, frozen);
    if (!f.layer_offloading && (!f.resident_layers.empty() || !f.num_slots.empty() || f.num_prefetch != 1))
        refuse_flag("--num-prefetch, --num-slots and --resident-layers",
                    "belong to --layer-offloading, which is not on", "--layer-offloading beside them");
}

ModelLayout make_layout(const ModelConfig& config, const ModelSettings& settings, const OffloadFlags& flags,
                        size_t reserved_bytes, size_t budget_bytes) {
    return flags.num_slots == "auto" ? make_layout_with_most_slots(config, settings, reserved_bytes, budget_bytes)
                                     : make_layout(config, settings);
}

}  // namespace slab::train
