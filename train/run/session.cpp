// The steps from an open device to a model that can train, the same for every program.
#include "train/run/session.h"

#include <utility>

#include "kernels/runtime/host_memory.h"
#include "train/files/adapter_files.h"
#include "train/model/memory_plan.h"

namespace slab::train {

std::unique_ptr<Device> open_device(int threads, const OffloadFlags& flags, int gpu, int sharing) {
    return std::make_unique<Device>(
        DeviceOptions{.index = gpu, .threads = threads, .budget_bytes = flags.budget_bytes(), .sharing = sharing});
}

ModelLayout plan_layout(Device& device, const ModelConfig& config, const ModelSettings& settings,
                        const OffloadFlags& flags) {
    const MemoryAccount& account = device.memory();
    return make_layout(config, settings, flags, account.reserved_bytes(), account.budget_bytes());
}

size_t planned_bytes(Device& device, const ModelLayout& layout) {
    return device.memory().reserved_bytes() + layout.device_bytes();
}

bool fits_budget(Device& device, const ModelLayout& layout) {
    const size_t budget_bytes = device.memory().budget_bytes();
    return budget_bytes == 0 || planned_bytes(device, layout) <= budget_bytes;
}

void check_memory(Device& device, const ModelLayout& layout) {
    const MemoryAccount& account = device.memory();
    check_budget(layout, account.reserved_bytes(), account.budget_bytes());
    check_available(layout, account.reserved_bytes(), device.available_bytes());
    check_host_memory(layout, available_host_bytes());
    check_address_space(layout, free_address_bytes(), device.pool().size());
}

Session open_session(std::unique_ptr<Device> device, const ModelLayout& layout, BaseWeights& weights,
                     const Model::Options& options, const std::filesystem::path& adapter_in, Comm* comm) {
    auto model = std::make_unique<Model>(*device, layout, weights, options);
    if (!adapter_in.empty())
        model->trained().write_weights(read_trained(adapter_weights_file(adapter_in), layout.trained),
                                       model->compute());
    auto loop = std::make_unique<StepLoop>(*model, comm);
    return {.device = std::move(device), .model = std::move(model), .loop = std::move(loop)};
}

}  // namespace slab::train
