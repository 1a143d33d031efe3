// The flags of group "Memory", which other programs have too. They decide where weights are and what is recomputed;
// none of them changes a bit of the result.
#pragma once

#include <cstddef>
#include <string>

#include "train/model/model_layout.h"

namespace CLI {
class App;
}

namespace slab::train {

struct OffloadFlags {
    bool layer_offloading = false;
    int num_prefetch = 1;
    std::string num_slots;        // "": num_prefetch + 1; "auto": what the budget holds; a number
    std::string resident_layers;  // "": none; "N": that many, spread evenly; "0,3,5": these
    std::string vram_budget;      // "": what the device has; "12G"
    std::string recompute;        // "", "none", "block"; "" is block when offloading

    // --vram-budget in bytes, 0 when it was not given. Throws data::UserError as data::parse_size does.
    size_t budget_bytes() const;
};

// Adds the flags to a program's command line.
void add_offload_flags(CLI::App& app, OffloadFlags& flags);

// The flags as settings of a model with L layers; --num-slots auto sets the least number of slots. The caller sets
// settings.freeze_layers before: a number of resident layers is spread over the frozen ones. Throws data::UserError.
void apply_offload_flags(ModelSettings& settings, const OffloadFlags& flags, int L);

// The layout of these settings; with --num-slots auto, the one with the most slots that the budget holds (0: no limit).
ModelLayout make_layout(const ModelConfig& config, const ModelSettings& settings, const OffloadFlags& flags,
                        size_t reserved_bytes, size_t budget_bytes);

}  // namespace slab::train
