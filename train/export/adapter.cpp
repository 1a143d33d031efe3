// The tensors are read by the names that PEFT gives them, module by module.
#include "train/export/adapter.h"

#include "train/files/adapter_config.h"
#include "train/files/adapter_files.h"
#include "train/files/model_directory.h"
#include "train/spec/trained_table.h"

namespace slab::train {

Adapter::Adapter(const std::filesystem::path& directory, const ModelConfig& config)
    : lora(read_adapter_config(directory / kAdapterConfigFile, config)) {
    TrainedTable table;
    const auto add = [&](const LinearModule& module, char which, size_t rows, size_t cols) {
        table.add({.key = peft_key(module.path, which),
                   .kind = which == 'A' ? TrainedKind::lora_A : TrainedKind::lora_B,
                   .rows = rows,
                   .cols = cols,
                   .matrix = true,
                   .decay = true,
                   .transposed = false,
                   .joined = false,
                   .layer = -1});
    };
    const size_t r = static_cast<size_t>(lora.r);
    for (int l = 0; l < config.L; ++l)
        for (const LinearModule& module : adapted_modules(config, lora, l)) {
            add(module, 'A', r, module.in);
            add(module, 'B', module.out, r);
            modules.push_back({module, nullptr, nullptr});
        }
    packed = read_trained(adapter_weights_file(directory), table);
    const float* next = packed.data();
    for (AdapterModule& m : modules) {
        m.A = next;
        m.B = next + r * m.module.in;
        next = m.B + m.module.out * r;
    }
}

}  // namespace slab::train
