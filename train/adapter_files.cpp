// Trained tensors to and from safetensors files. See adapter_files.h.
#include "train/adapter_files.h"

#include <cmath>
#include <set>
#include <stdexcept>

#include "kernels/philox.h"
#include "train/safetensors.h"

namespace slab::train {

namespace {

std::vector<size_t> file_shape(const TrainedTensor& t) {
    if (!t.matrix) return {t.rows};
    return t.transposed ? std::vector<size_t>{t.cols, t.rows} : std::vector<size_t>{t.rows, t.cols};
}

}  // namespace

std::vector<float> initial_adapter(const TrainedTable& table, uint64_t seed) {
    std::vector<float> packed;
    packed.reserve(table.parameter_count());
    for (size_t index = 0; index < table.tensors().size(); ++index) {
        const TrainedTensor& t = table.at(index);
        const bool is_a = t.key.find(".lora_A.") != std::string::npos;
        const float bound = 1.0f / std::sqrt(static_cast<float>(t.cols));
        for (size_t i = 0; i < t.elems(); ++i) {
            const PhiloxOut out = philox(seed, static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32),
                                         static_cast<uint32_t>(index), 0x10fau);
            packed.push_back(is_a ? bound * (2 * uniform01(out.v[0]) - 1) : 0.0f);
        }
    }
    return packed;
}

std::vector<float> read_trained(const std::filesystem::path& file, const TrainedTable& table,
                                const std::string& key_prefix, bool others_allowed) {
    const SafetensorsFile tensors(file);
    std::set<std::string> known;
    std::vector<float> packed(table.parameter_count());
    size_t at = 0;
    for (const auto& t : table.tensors()) {
        const std::string key = key_prefix + t.key;
        known.insert(key);
        const SafetensorsEntry* entry = tensors.find(key);
        if (!entry)
            throw std::runtime_error(file.string() + ": tensor \"" + key +
                                     "\" is missing; was this written for another model or other target modules?");
        if (entry->shape != file_shape(t))
            throw std::runtime_error(file.string() + ": tensor \"" + key + "\" has shape " + shape_text(entry->shape) +
                                     "; wanted " + shape_text(file_shape(t)));
        tensors.read_as(key, packed.data() + at, {.transposed = t.transposed});
        at += t.elems();
    }
    if (!others_allowed)
        for (const auto& name : tensors.names())
            if (name.starts_with(key_prefix) && !known.count(name))
                throw std::runtime_error(file.string() + ": tensor \"" + name +
                                         "\" has no place in this model with these target modules");
    return packed;
}

void write_trained(const std::filesystem::path& file, const TrainedTable& table,
                   const std::vector<NamedWeights>& sets) {
    SafetensorsWriter writer;
    std::vector<std::vector<float>> transposed;  // keeps turned copies alive until write()
    for (const auto& set : sets) {
        if (set.packed->size() != table.parameter_count())
            throw std::logic_error("trained tensors to write have the wrong size");
        const float* src = set.packed->data();
        for (const auto& t : table.tensors()) {
            const float* data = src;
            if (t.transposed) {
                std::vector<float>& turned = transposed.emplace_back(t.elems());
                for (size_t row = 0; row < t.rows; ++row)
                    for (size_t col = 0; col < t.cols; ++col) turned[col * t.rows + row] = src[row * t.cols + col];
                data = turned.data();
            }
            writer.add(set.key_prefix + t.key, file_shape(t), data);
            src += t.elems();
        }
    }
    writer.write(file);
}

}  // namespace slab::train
