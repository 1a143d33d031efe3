// Trained tensors to and from safetensors files, transposed where the files store them so.
#include "train/files/adapter_files.h"

#include <cstring>
#include <set>

#include "data/base/display.h"
#include "data/base/error.h"
#include "train/files/model_directory.h"
#include "train/files/safetensors.h"
#include "train/files/safetensors_writer.h"
#include "train/files/transpose.h"
#include "train/spec/tensor_table.h"
#include "train/spec/trained_table.h"

namespace slab::train {

namespace {

std::vector<size_t> file_shape(const TrainedTensor& t) {
    return stored_shape(t.rows, t.cols, t.matrix, t.transposed);
}

}  // namespace

std::filesystem::path adapter_weights_file(const std::filesystem::path& directory) {
    const auto file = directory / kAdapterWeightsFile;
    if (exists(file)) return file;
    std::string hint = "give the directory that PEFT's save_pretrained() wrote";
    if (exists(directory / "adapter_model.bin"))
        hint = "adapter_model.bin is a PyTorch pickle; load it with PEFT and save_pretrained() it again";
    else if (exists(directory / kModelWeightsFile))
        hint = "model.safetensors there is a whole model and no adapter";
    throw data::UserError({.subject = file.string(), .given = "does not exist", .hint = hint});
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
            throw data::UserError({.subject = file.string(),
                                   .given = "tensor " + data::quote(key) + " is missing",
                                   .hint = "was this written for another model or other target modules?"});
        if (entry->shape != file_shape(t))
            throw data::UserError({.subject = file.string(),
                                   .given = "tensor " + data::quote(key) + " has shape " + shape_text(entry->shape),
                                   .wanted = shape_text(file_shape(t))});
        tensors.read_as(key, packed.data() + at, {.transposed = t.transposed});
        at += t.elems();
    }
    if (!others_allowed)
        for (const auto& name : tensors.names())
            if (name.starts_with(key_prefix) && !known.count(name))
                throw data::UserError(
                    {.subject = file.string(),
                     .given = "tensor " + data::quote(name) + " has no place in this model with these target modules"});
    return packed;
}

void write_trained(const std::filesystem::path& file, const TrainedTable& table,
                   const std::vector<NamedWeights>& sets) {
    SafetensorsWriter writer;
    std::vector<float> values;
    for (const auto& set : sets)
        for (size_t index = 0; index < table.tensors().size(); ++index) {
            const TrainedTensor& t = table.at(index);
            writer.add(set.key_prefix + t.key, DType::f32, file_shape(t), [&, index](std::byte* dst) {
                values.resize(t.elems());
                set.read(index, values.data());
                if (t.transposed)
                    transpose(values.data(), t.rows, t.cols, reinterpret_cast<float*>(dst));
                else
                    std::memcpy(dst, values.data(), values.size() * sizeof(float));
            });
        }
    writer.write(file);
}

}  // namespace slab::train
