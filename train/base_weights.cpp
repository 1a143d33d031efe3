// Reading or drawing a base model's weights. See base_weights.h.
#include "train/base_weights.h"

#include <cmath>
#include <numbers>
#include <set>
#include <stdexcept>

#include "kernels/philox.h"

namespace slab::train {

namespace {

std::vector<TensorSpec> all_tensors(const ModelConfig& config) {
    std::vector<TensorSpec> all = outer_tensors(config);
    for (int l = 0; l < config.L; ++l)
        for (auto& spec : layer_tensors(config, l)) all.push_back(std::move(spec));
    return all;
}

std::vector<size_t> stored_shape(const TensorSpec& spec, const TensorPart& part) {
    if (!spec.matrix) return {part.rows};
    return spec.transposed ? std::vector<size_t>{spec.cols, part.rows} : std::vector<size_t>{part.rows, spec.cols};
}

void check_part(const ModelFiles& files, const TensorSpec& spec, const TensorPart& part, std::set<std::string>& used) {
    const std::string name = files.resolve(key_spellings(part.key));
    if (name.empty())
        throw std::runtime_error(files.directory().string() + ": tensor \"" + part.key +
                                 "\" is missing; does config.json belong to these weights?");
    used.insert(name);
    const SafetensorsEntry& entry = files.info(name);
    const std::string where = files.file_of(name).path().string() + ": tensor \"" + name + "\"";
    if (const auto wanted = stored_shape(spec, part); entry.shape != wanted)
        throw std::runtime_error(where + " has shape " + shape_text(entry.shape) + "; config.json makes it " +
                                 shape_text(wanted));
    if (entry.dtype != DType::f32 && entry.dtype != DType::f16 && entry.dtype != DType::bf16)
        throw std::runtime_error(where + " is stored as " + dtype_name(entry.dtype) + "; wanted F32, F16 or BF16");
}

// Two normal numbers from one Philox call would do; one keeps element i a function of (seed, tensor, i) alone.
float normal(uint64_t seed, uint32_t tensor, uint64_t element) {
    const PhiloxOut out =
        philox(seed, static_cast<uint32_t>(element), static_cast<uint32_t>(element >> 32), tensor, 0x1234u);
    const double u = (static_cast<double>(out.v[0]) + 1) * 0x1p-32, v = static_cast<double>(out.v[1]) * 0x1p-32;
    return static_cast<float>(std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v));
}

// A tensor's place in the stream of random numbers, by name, so that layers can be drawn in any order.
uint32_t name_hash(const std::string& name) {
    uint32_t hash = 2166136261u;
    for (const unsigned char c : name) hash = (hash ^ c) * 16777619u;
    return hash;
}

}  // namespace

BaseWeights BaseWeights::from_files(const std::filesystem::path& directory_or_file, const ModelConfig& config) {
    BaseWeights weights;
    weights.files_ = std::make_shared<ModelFiles>(directory_or_file);
    std::set<std::string> used;
    for (const auto& spec : all_tensors(config))
        for (const auto& part : spec.parts) check_part(*weights.files_, spec, part, used);
    for (const auto& name : weights.files_->names())
        if (!used.count(name) && !is_ignorable_key(config, name))
            throw std::runtime_error(weights.files_->file_of(name).path().string() + ": tensor \"" + name +
                                     "\" is not part of a " + family_name(config.family) +
                                     " model as config.json describes it (or is there twice, under two spellings)");
    return weights;
}

BaseWeights BaseWeights::random(uint64_t seed, const ModelConfig& config) {
    BaseWeights weights;
    weights.seed_ = seed;
    weights.L_ = config.L;
    return weights;
}

template <class T>
void BaseWeights::read(const TensorSpec& spec, T* dst) {
    for (const auto& part : spec.parts) {
        const size_t elems = part.rows * spec.cols;
        if (files_) {
            const std::string name = files_->resolve(key_spellings(part.key));
            inexact_elems_ += files_->read_as(name, dst, {.transposed = spec.transposed}).inexact_elems;
        } else {
            const bool ends_branch = spec.role == Role::o_weight || spec.role == Role::down_weight;
            const bool norm = spec.name.find("norm") != std::string::npos && spec.name.ends_with(".weight");
            const float deviation = 0.02f / (ends_branch ? std::sqrt(2.0f * static_cast<float>(L_)) : 1.0f);
            const uint32_t tensor = name_hash(part.key);
            for (size_t i = 0; i < elems; ++i) {
                const float value = spec.matrix ? deviation * normal(seed_, tensor, i) : norm ? 1.0f : 0.0f;
                if constexpr (sizeof(T) == sizeof(float))
                    dst[i] = value;
                else
                    dst[i] = to_bf16(value);
            }
        }
        dst += elems;
    }
}
template void BaseWeights::read<float>(const TensorSpec&, float*);
template void BaseWeights::read<bf16>(const TensorSpec&, bf16*);

}  // namespace slab::train
