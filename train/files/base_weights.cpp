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
#include "train/files/gguf_blocks.h"
#include "train/spec/text.h"

namespace slab::train {

namespace {

void check_part(const ModelFiles& files, const BnbWeights* bnb, const TensorSpec& spec, const TensorPart& part,
                std::set<std::string>& used) {
    const std::string name = files.resolve(key_spellings(part.key));
    if (name.empty())
        throw data::UserError({.subject = files.directory().string(),
                               .given = "tensor " + data::quote(part.key) + " is missing",
                               .hint = "does config.json belong to these weights?"});
    used.insert(name);
    if (bnb && bnb->has(name) && spec.matrix && !spec.transposed) return bnb->check(name, part.rows, spec.cols, used);
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
size_t rows_of_piece(const TensorSpec& spec) {
    return std::max<size_t>(1, kPieceElems / spec.cols);
}

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

// Encodes values [elems], whole blocks, from element first_elem of the part on, and compares the result with them.
EncodeReport encode_piece(const TensorPart& part, BlockFormat format, const float* values, size_t elems,
                          size_t first_elem, std::byte* dst) {
    const BlockInfo& info = block_info(format);
    if (const auto bad = encode_blocks(format, values, dst, elems))
        throw data::UserError({.subject = "tensor " + data::quote(part.key),
                               .given = "a value among the " + std::to_string(info.values) + " from element " +
                                        std::to_string(first_elem + *bad * info.values) + " on is too large for " +
                                        info.name,
                               .wanted = "values that a block's scale can hold",
                               .hint = "train with --slab-format bf16"});
    constexpr size_t decoded_at_once = 4096;  // a multiple of every block's values
    float decoded[decoded_at_once];
    EncodeReport report;
    for (size_t first = 0; first < elems; first += decoded_at_once) {
        const size_t count = std::min(decoded_at_once, elems - first);
        ref::decode_blocks(format, dst + first / info.values * info.bytes, decoded, count);
        // Eight sums in float each: the piece is short, and the loop stays one of vectors.
        float error[8] = {}, norm[8] = {};
        for (size_t i = 0; i < count; i += 8)
            for (size_t lane = 0; lane < 8; ++lane) {
                const float value = values[first + i + lane], lost = value - decoded[i + lane];
                error[lane] += lost * lost;
                norm[lane] += value * value;
            }
        for (size_t lane = 0; lane < 8; ++lane) {
            report.squared_error += error[lane];
            report.squared_norm += norm[lane];
        }
    }
    return report;
}

// A tensor's place in the stream of random numbers, by name, so that layers can be drawn in any order.
uint32_t name_hash(const std::string& name) {
    uint32_t hash = 2166136261u;
    for (const unsigned char c : name) hash = (hash ^ c) * 16777619u;
    return hash;
}

}  // namespace

double EncodeReport::relative_error() const {
    return squared_norm > 0 ? std::sqrt(squared_error / squared_norm) : 0;
}

StoredTypes stored_types_of(const std::filesystem::path& base, const ModelConfig& config) {
    StoredTypes types;
    const auto for_matrices = [&](const auto& add) {
        for (int l = 0; l < config.L; ++l)
            for (const TensorSpec& spec : layer_tensors(config, l))
                for (const TensorPart& part : spec.parts)
                    if (spec.matrix) add(spec, part);
    };
    if (data::is_gguf_file(base)) {
        const data::GgufFile file(base);
        for_matrices([&](const TensorSpec&, const TensorPart& part) {
            const data::GgufTensor* const tensor = file.find(gguf_name(part.key));
            if (const auto format = tensor ? block_format(tensor->type) : std::nullopt) types[part.key] = *format;
        });
    } else if (config.stored_in_4bit) {
        std::shared_ptr<ModelFiles> files;
        if (has_model_weights(base)) files = std::make_shared<ModelFiles>(base);
        const std::shared_ptr<BnbWeights> bnb = files ? std::make_shared<BnbWeights>(*files) : nullptr;
        for_matrices([&](const TensorSpec&, const TensorPart& part) {
            if (!bnb || bnb->has(files->resolve(key_spellings(part.key)))) types[part.key] = BlockFormat::nf4;
        });
    }
    return types;
}

BaseWeights BaseWeights::from_files(const std::filesystem::path& directory_or_file, const ModelConfig& config) {
    BaseWeights weights;
    if (data::is_gguf_file(directory_or_file)) {
        weights.gguf_ = std::make_shared<GgufWeights>(directory_or_file, config);
        return weights;
    }
    weights.files_ = std::make_shared<ModelFiles>(directory_or_file);
    if (config.stored_in_4bit) weights.bnb_ = std::make_shared<BnbWeights>(*weights.files_);
    std::set<std::string> used;
    for (const auto& spec : all_tensors(config))
        for (const auto& part : spec.parts) check_part(*weights.files_, weights.bnb_.get(), spec, part, used);
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
        const auto add_tensor = [&](const std::string& name) {
            const SafetensorsFile& file = files_->file_of(name);
            const SafetensorsEntry& entry = file.at(name);
            add(part, dtype_name(entry.dtype), entry.shape, entry.bytes,
                [&](size_t first, void* dst, size_t bytes) { file.read_bytes(name, first, dst, bytes); });
        };
        const std::string name = name_of(part);
        if (!bnb_ || !bnb_->has(name)) return add_tensor(name);
        for (const std::string& content : BnbWeights::content_of(name)) add_tensor(content);
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
    if (!files_) {
        draw_elems(spec, part, first_row * spec.cols, rows * spec.cols, dst);
        return {};
    }
    const std::string name = name_of(part);
    if (bnb_ && bnb_->has(name)) return bnb_->read_elems(name, first_row * spec.cols, rows * spec.cols, dst);
    return files_->read_as(name, dst, {.transposed = spec.transposed, .first_row = first_row, .rows = rows});
}

template <class T>
void BaseWeights::draw_elems(const TensorSpec& spec, const TensorPart& part, size_t first_elem, size_t elems,
                             T* dst) const {
    const bool ends_branch = spec.init == Init::residual_normal, drawn = ends_branch || spec.init == Init::normal;
    if (!drawn) {
        std::fill(dst, dst + elems, stored<T>(spec.init == Init::one ? 1.0f : 0.0f));
        return;
    }
    const float deviation = 0.02f / (ends_branch ? std::sqrt(2.0f * static_cast<float>(L_)) : 1.0f);
    const uint32_t tensor = name_hash(part.key);
    const size_t end_elem = first_elem + elems;
    for (size_t group = first_elem / 4; 4 * group < end_elem; ++group) {
        const std::array<float, 4> normal = normal4(seed_, tensor, group);
        for (size_t i = std::max(first_elem, 4 * group); i < std::min(4 * group + 4, end_elem); ++i)
            dst[i - first_elem] = stored<T>(deviation * normal[i % 4]);
    }
}

// Pieces are whole rows. Where rows are columns on disk the part is one piece: each would read all of it.
template <class T>
void BaseWeights::read_part_rows(const TensorSpec& spec, const TensorPart& part, size_t first_row, size_t rows, T* dst,
                                 ThreadPool& pool, data::StopToken stop) {
    std::atomic<size_t> inexact{0};
    const bool one_piece = spec.transposed && files_;
    pool.parallel_ranges(rows, one_piece ? rows : rows_of_piece(spec), [&](size_t begin, size_t end) {
        stop.throw_if_requested();
        inexact += read_rows(spec, part, first_row + begin, end - begin, dst + begin * spec.cols).inexact_elems;
    });
    inexact_elems_ += inexact;
}
template void BaseWeights::read_part_rows<float>(const TensorSpec&, const TensorPart&, size_t, size_t, float*,
                                                 ThreadPool&, data::StopToken);
template void BaseWeights::read_part_rows<bf16>(const TensorSpec&, const TensorPart&, size_t, size_t, bf16*,
                                                ThreadPool&, data::StopToken);

template <class T>
void BaseWeights::read_part(const TensorSpec& spec, const TensorPart& part, T* dst, ThreadPool& pool,
                            data::StopToken stop) {
    read_part_rows(spec, part, 0, part.rows, dst, pool, stop);
}
template void BaseWeights::read_part<float>(const TensorSpec&, const TensorPart&, float*, ThreadPool&, data::StopToken);
template void BaseWeights::read_part<bf16>(const TensorSpec&, const TensorPart&, bf16*, ThreadPool&, data::StopToken);

bool BaseWeights::has_blocks(const TensorPart& part, BlockFormat format) const {
    if (gguf_) return block_format(gguf_->tensor_of(part.key).type) == format;
    return bnb_ && format == BlockFormat::nf4 && bnb_->has(name_of(part));
}

void BaseWeights::read_block_rows(const TensorSpec& spec, const TensorPart& part, size_t first_row, size_t rows,
                                  std::byte* dst) const {
    if (gguf_) return gguf_->read_blocks(spec, part, first_row, rows, dst);
    const size_t row_blocks = spec.cols / block_info(BlockFormat::nf4).values;
    bnb_->read_blocks(name_of(part), first_row * row_blocks, rows * row_blocks, dst);
}

EncodeReport BaseWeights::read_encoded(const TensorSpec& spec, const TensorPart& part, BlockFormat format,
                                       std::byte* dst, ThreadPool& pool, data::StopToken stop) {
    const size_t row_bytes = encoded_bytes(format, spec.cols), piece_rows = rows_of_piece(spec);
    if (has_blocks(part, format)) {
        pool.parallel_ranges(part.rows, piece_rows, [&](size_t begin, size_t end) {
            stop.throw_if_requested();
            read_block_rows(spec, part, begin, end - begin, dst + begin * row_bytes);
        });
        return {};
    }
    std::vector<float> turned;  // all of the part, where each piece would read all of it
    if (spec.transposed && files_) {
        turned.resize(part.rows * spec.cols);
        read_rows(spec, part, 0, part.rows, turned.data());
    }
    std::vector<EncodeReport> pieces((part.rows + piece_rows - 1) / piece_rows);
    pool.parallel_ranges(part.rows, piece_rows, [&](size_t begin, size_t end) {
        stop.throw_if_requested();
        std::vector<float> read;
        const float* rows = turned.data() + begin * spec.cols;
        if (turned.empty()) {
            read.resize((end - begin) * spec.cols);
            read_rows(spec, part, begin, end - begin, read.data());
            rows = read.data();
        }
        pieces[begin / piece_rows] =
            encode_piece(part, format, rows, (end - begin) * spec.cols, begin * spec.cols, dst + begin * row_bytes);
    });
    EncodeReport report;
    for (const EncodeReport& piece : pieces) report += piece;
    return report;
}

void BaseWeights::drop_cached_files() const {
    if (gguf_) gguf_->file().drop_cached();
    if (files_)
        for (const SafetensorsFile& file : files_->files()) file.drop_cached();
}

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
