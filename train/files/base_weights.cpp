// Weights are read or drawn in pieces on several threads; the result does not depend on their number.
#include "train/files/base_weights.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cinttypes>
#include <cmath>
#include <numbers>
#include <set>

#include "data/base/checksum.h"
#include "data/base/display.h"
#include "data/base/error.h"
#include "data/base/input_file.h"
#include "kernels/philox.h"
#include "train/spec/text.h"

namespace slab::train {

namespace {

void check_part(const ModelFiles& files, const TensorSpec& spec, const TensorPart& part, std::set<std::string>& used) {
    const std::string name = files.resolve(key_spellings(part.key));
    if (name.empty())
        throw data::UserError({.subject = files.directory().string(),
                               .given = "tensor " + data::quote(part.key) + " is missing",
                               .hint = "does config.json belong to these weights?"});
    used.insert(name);
    const SafetensorsEntry& entry = files.info(name);
    const std::string file = files.file_of(name).path().string(), tensor = "tensor " + data::quote(name);
    if (const auto wanted = stored_shape(spec, part); entry.shape != wanted)
        throw data::UserError({.subject = file,
                               .given = tensor + " has shape " + shape_text(entry.shape),
                               .wanted = shape_text(wanted) + " by config.json"});
    if (entry.dtype != DType::f32 && entry.dtype != DType::f16 && entry.dtype != DType::bf16)
        throw data::UserError({.subject = file,
                               .given = tensor + " is stored as " + dtype_name(entry.dtype),
                               .wanted = "F32, F16 or BF16"});
}

// Rows of a tensor are read or drawn in pieces of about this many elements, each by one thread.
constexpr size_t kPieceElems = size_t{1} << 20;

// Four normal numbers, elements 4 group .. 4 group + 3 of a tensor (Box-Muller).
std::array<float, 4> normal4(uint64_t seed, uint32_t tensor, uint64_t group) {
    const PhiloxOut out = philox(seed, static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32), tensor,
                                 philox_use::random_weights);
    std::array<float, 4> normal;
    for (int pair = 0; pair < 2; ++pair) {
        const float u = (static_cast<float>(out.v[2 * pair] >> 8) + 1) * 0x1p-24f;  // in (0, 1]
        const float angle = 2 * std::numbers::pi_v<float> * uniform01(out.v[2 * pair + 1]);
        const float radius = std::sqrt(-2 * std::log(u));
        normal[2 * pair] = radius * std::cos(angle);
        normal[2 * pair + 1] = radius * std::sin(angle);
    }
    return normal;
}

template <class T>
T stored(float value) {
    if constexpr (std::is_same_v<T, bf16>)
        return to_bf16(value);
    else
        return value;
}

// With the terminating 0, so that "ab", "c" differs from "a", "bc".
void add_text(data::Fnv1a& hash, const std::string& text) {
    hash.add(text.c_str(), text.size() + 1);
}

std::string hash_text(const data::Fnv1a& hash) {
    return format_text("%016" PRIx64, hash.value());
}

constexpr size_t kSamples = 16, kSampleBytes = 256;

// The numbers of config.json that change results and show in no tensor's shape.
std::string numbers_of(const ModelConfig& c) {
    const RotaryScaling& s = c.rope_scaling;
    std::string text = format_text("%s %d heads of %d, %d for keys and values, eps %.9g", family_name(c.family), c.NH,
                                   c.HD, c.NKV, c.norm_eps);
    if (c.rotary) text += format_text(", rotary %.9g", c.rope_theta);
    if (s.llama3)
        text += format_text(", llama3 %.9g %.9g %.9g %d", s.factor, s.low_freq_factor, s.high_freq_factor,
                            s.original_max_position_embeddings);
    return text;
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
    if (data::is_gguf_file(directory_or_file)) {
        weights.gguf_ = std::make_shared<GgufWeights>(directory_or_file, config);
        return weights;
    }
    weights.files_ = std::make_shared<ModelFiles>(directory_or_file);
    std::set<std::string> used;
    for (const auto& spec : all_tensors(config))
        for (const auto& part : spec.parts) check_part(*weights.files_, spec, part, used);
    for (const auto& name : weights.files_->names())
        if (!used.count(name) && !is_ignorable_key(config, name))
            throw data::UserError(
                {.subject = weights.files_->file_of(name).path().string(),
                 .given = "tensor " + data::quote(name) + " is not part of a " + family_name(config.family) +
                          " model as config.json describes it (or is there twice, under two spellings)"});
    return weights;
}

std::string BaseWeights::fingerprint(const ModelConfig& config) const {
    data::Fnv1a hash;
    add_text(hash, numbers_of(config));
    std::array<std::byte, kSampleBytes> sample;
    // read(first_byte, dst, bytes) gives a tensor's bytes as they are stored.
    const auto add = [&](const TensorPart& part, const std::string& type, const std::vector<size_t>& shape,
                         size_t tensor_bytes, const auto& read) {
        add_text(hash, part.key + " " + type + " " + shape_text(shape));
        const size_t bytes = std::min(tensor_bytes, kSampleBytes), last_byte = tensor_bytes - bytes;
        for (size_t i = 0; i < kSamples; ++i) {
            read(last_byte / (kSamples - 1) * i, sample.data(), bytes);
            hash.add(sample.data(), bytes);
        }
    };
    const auto add_part = [&](const TensorSpec& spec, const TensorPart& part) {
        if (!files_ && !gguf_) return add_text(hash, part.key + " " + shape_text(stored_shape(spec, part)));
        if (gguf_) {
            const data::GgufTensor& tensor = gguf_->tensor_of(part.key);
            add(part, data::info_of(tensor.type).name, tensor.shape, tensor.bytes,
                [&](size_t first, void* dst, size_t bytes) { gguf_->file().read(tensor, first, dst, bytes); });
            return;
        }
        const std::string name = files_->resolve(key_spellings(part.key));
        const SafetensorsFile& file = files_->file_of(name);
        const SafetensorsEntry& entry = file.at(name);
        add(part, dtype_name(entry.dtype), entry.shape, entry.bytes,
            [&](size_t first, void* dst, size_t bytes) { file.read_bytes(name, first, dst, bytes); });
    };
    for (const auto& spec : all_tensors(config))
        for (const auto& part : spec.parts) add_part(spec, part);
    return hash_text(hash);
}

BaseWeights BaseWeights::random(uint64_t seed, const ModelConfig& config) {
    BaseWeights weights;
    weights.seed_ = seed;
    weights.L_ = config.L;
    return weights;
}

template <class T>
ReadReport BaseWeights::read_rows(const TensorSpec& spec, const TensorPart& part, size_t first_row, size_t rows,
                                  T* dst) const {
    if (gguf_) return gguf_->read_rows(spec, part, first_row, rows, dst);
    return files_->read_as(files_->resolve(key_spellings(part.key)), dst,
                           {.transposed = spec.transposed, .first_row = first_row, .rows = rows});
}

template <class T>
void BaseWeights::read_part(const TensorSpec& spec, const TensorPart& part, T* dst, ThreadPool& pool,
                            data::StopToken stop) {
    const bool ends_branch = spec.init == Init::residual_normal, drawn = ends_branch || spec.init == Init::normal;
    const float deviation = 0.02f / (ends_branch ? std::sqrt(2.0f * static_cast<float>(L_)) : 1.0f);
    const uint32_t tensor = name_hash(part.key);
    std::atomic<size_t> inexact{0};
    // Pieces are whole rows when they come from files, whole groups of four when they are drawn. Where rows are columns
    // on disk the part is one piece: each would read all of it.
    const bool one_piece = spec.transposed && !gguf_;
    const auto read_piece = [&](size_t begin, size_t end) {
        stop.throw_if_requested();
        inexact += read_rows(spec, part, begin, end - begin, dst + begin * spec.cols).inexact_elems;
    };
    const size_t elems = part.rows * spec.cols;
    const auto draw_groups = [&](size_t begin, size_t end) {
        stop.throw_if_requested();
        for (size_t group = begin; group < end; ++group) {
            const std::array<float, 4> normal = normal4(seed_, tensor, group);
            for (size_t i = 4 * group; i < std::min(4 * group + 4, elems); ++i)
                dst[i] = stored<T>(deviation * normal[i % 4]);
        }
    };
    if (files_ || gguf_)
        pool.parallel_ranges(part.rows, one_piece ? part.rows : std::max<size_t>(1, kPieceElems / spec.cols),
                             read_piece);
    else if (drawn)
        pool.parallel_ranges((elems + 3) / 4, kPieceElems / 4, draw_groups);
    else {
        stop.throw_if_requested();
        std::fill(dst, dst + elems, stored<T>(spec.init == Init::one ? 1.0f : 0.0f));
    }
    inexact_elems_ += inexact;
}
template void BaseWeights::read_part<float>(const TensorSpec&, const TensorPart&, float*, ThreadPool&, data::StopToken);

template <class T>
void BaseWeights::read(const TensorSpec& spec, T* dst, ThreadPool& pool, data::StopToken stop) {
    for (const auto& part : spec.parts) {
        read_part(spec, part, dst, pool, stop);
        dst += part.rows * spec.cols;
    }
}
template void BaseWeights::read<float>(const TensorSpec&, float*, ThreadPool&, data::StopToken);
template void BaseWeights::read<bf16>(const TensorSpec&, bf16*, ThreadPool&, data::StopToken);

}  // namespace slab::train
