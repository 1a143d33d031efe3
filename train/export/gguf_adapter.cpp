// Rows of q and k go into llama.cpp's rotary order where its conversion of the base reorders them.
#include "train/export/gguf_adapter.h"

#include <algorithm>
#include <string>

#include "data/gguf/gguf_writer.h"
#include "train/files/gguf_weights.h"

namespace slab::train {
namespace {

// Rows of B [out, r] of q or k from our order into llama.cpp's.
void reorder_rows(const float* src, size_t out, size_t r, int HD, float* dst) {
    for (size_t row = 0; row < out; ++row) std::copy_n(src + row * r, r, dst + gguf_row(row, HD) * r);
}

}  // namespace

void write_gguf_adapter(const std::filesystem::path& file, const ModelConfig& config, const Adapter& adapter,
                        data::StopToken stop) {
    const LoraSettings& lora = adapter.lora;
    const size_t r = static_cast<size_t>(lora.r);
    // llama.cpp converts Mistral as llama.
    const bool llama = config.family == Family::llama || config.family == Family::mistral;
    data::GgufWriter writer;
    writer.put("general.architecture", llama ? "llama" : family_name(config.family));
    writer.put("general.type", "adapter");
    writer.put("adapter.type", "lora");
    // llama.cpp's scale is alpha / r. For rsLoRA this alpha makes it ours.
    writer.put("adapter.lora.alpha", lora.rslora ? lora.scale() * static_cast<float>(lora.r) : lora.alpha);
    for (const AdapterModule& m : adapter.modules) {
        const LinearModule& module = m.module;
        const std::string key = module.path + ".weight", name = gguf_name(key) + ".lora_";
        const bool reorders = gguf_reorders_rows(config.family, key);
        writer.add(name + "a", {r, module.in}, [&m, r, stop](float* dst) {
            stop.throw_if_requested();
            std::copy_n(m.A, r * m.module.in, dst);
        });
        writer.add(name + "b", {module.out, r}, [&m, r, stop, reorders, HD = config.HD](float* dst) {
            stop.throw_if_requested();
            if (reorders)
                reorder_rows(m.B, m.module.out, r, HD, dst);
            else
                std::copy_n(m.B, m.module.out * r, dst);
        });
    }
    writer.write(file);
}

}  // namespace slab::train
