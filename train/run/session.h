// One device, the model on it and its loop over steps: whatever trains or evaluates a model opens one.
//
// Configuration, layout and base weights belong to the run. They are given to open_session(), so that sessions on
// several devices can share them.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>

#include "kernels/runtime/runtime.h"
#include "train/files/base_weights.h"
#include "train/model/model.h"
#include "train/model/model_layout.h"
#include "train/model/step_loop.h"
#include "train/run/offload_flags.h"

namespace slab::train {

struct Session {
    std::unique_ptr<Device> device;
    std::unique_ptr<Model> model;
    std::unique_ptr<StepLoop> loop;
    double link_gbps = 0;  // of copies to the device alone, once measured
};

// A device with a budget of --vram-budget. threads: 0 takes all cores. gpu: its index; sharing: ranks of this process
// on that device, which get equal parts of its budget.
std::unique_ptr<Device> open_device(int threads, const OffloadFlags& flags, int gpu = 0, int sharing = 1);
// The layout on this device: --num-slots auto takes as many slots as its budget holds. Allocates nothing.
ModelLayout plan_layout(Device& device, const ModelConfig& config, const ModelSettings& settings,
                        const OffloadFlags& flags);

// Device memory that driver, libraries and the layout take together.
size_t planned_bytes(Device& device, const ModelLayout& layout);
bool fits_budget(Device& device, const ModelLayout& layout);
// Throws an error with advice if the layout exceeds the budget, the device, host memory or the address space.
void check_memory(Device& device, const ModelLayout& layout);

// Allocates and loads the model as the layout says; check_memory() has passed. The model starts with the weights of
// adapter_in, a PEFT directory, unless it is "". A run on several ranks gives its comm, which outlives the session.
// Throws what Model and read_trained() throw.
Session open_session(std::unique_ptr<Device> device, const ModelLayout& layout, BaseWeights& weights,
                     const Model::Options& options = {}, const std::filesystem::path& adapter_in = {},
                     Comm* comm = nullptr);

}  // namespace slab::train
