// What a run will do, known before it begins: flags, config, paths, layout and data. Printed for --plan and before
// every run. Planning reads files and opens the device; it writes nothing and allocates none of the layout.
#pragma once

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/base/stop_token.h"
#include "kernels/runtime/runtime.h"
#include "train/files/base_weights.h"
#include "train/files/model_directory.h"
#include "train/model/model_layout.h"
#include "train/run/data_sets.h"
#include "train/run/options.h"
#include "train/run/sample.h"
#include "train/spec/model_config.h"

namespace slab::train {

struct RunPlan {
    // Checks flags and paths, plans the layout and prints it. Throws data::UserError, data::IoError, DeviceError.
    RunPlan(const TrainOptions& options, data::StopToken stop, std::ostream& out);
    RunPlan(const RunPlan&) = delete;
    RunPlan& operator=(const RunPlan&) = delete;

    bool fits() const { return fits_; }
    // Checks memory, then opens rows and base weights. Throws as the constructor, and data::Interrupted.
    void open_inputs(data::StopToken stop, std::ostream& out);

    uint64_t samples_per_step() const {
        return static_cast<uint64_t>(flags.micro_batch_size) * static_cast<uint64_t>(flags.gradient_accumulation_steps);
    }
    bool trains_adapter() const { return layout.settings.lora.has_value(); }
    std::filesystem::path output_dir() const { return flags.output_dir; }
    // The weights of the run's result.
    std::filesystem::path result_file() const;

    int ranks() const { return static_cast<int>(gpus.size()); }
    // Whether ranks meet; else one rank does all, as if there were no ranks.
    bool in_team() const { return layout.settings.sums_in_order(); }

    const std::vector<int> gpus;  // the device of each rank
    // As they were given, but for gradient_accumulation_steps: the micro-batches of all ranks in a step.
    const TrainOptions flags;
    const std::filesystem::path base;  // where --base-model was found
    const ModelConfig config;
    const std::tm first_start;                      // of the run: a resumed one keeps its checkpoint's
    std::pair<int64_t, int64_t> trace_steps{0, 0};  // first and last, from 1
    SamplePlan sample;
    std::vector<std::unique_ptr<Device>> devices;  // of the ranks, until their sessions take them
    ModelLayout layout;

    // From open_inputs() on:
    DataSets data_sets;
    int64_t steps = 0;
    std::optional<BaseWeights> weights;
    std::string config_json;            // with --adapter none, of the model that is saved
    std::vector<Companion> companions;  // files that belong beside the result

  private:
    void open_rows(data::StopToken stop, std::ostream& out);
    void stop_where_replies_end(std::ostream& out);
    void print_layout(std::ostream& out) const;
    // The one with the least budget: the layout is the same on all.
    Device& tightest_device() const;

    bool fits_ = false;
};

}  // namespace slab::train
