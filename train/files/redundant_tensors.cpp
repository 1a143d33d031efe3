// Tensors are read in pieces: a head can have more bytes than the memory that is left.
#include "train/files/redundant_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "data/base/display.h"
#include "data/base/error.h"
#include "data/gguf/gguf.h"
#include "kernels/rotary.h"
#include "train/files/model_files.h"
#include "train/spec/tensor_table.h"

namespace slab::train {
namespace {

constexpr size_t kPieceBytes = size_t{8} << 20;

bool is_number(DType type) {
    return type == DType::f32 || type == DType::f16 || type == DType::bf16;
}

// Whether two tensors of one shape hold the same numbers. Of two types, the numbers of both are compared as float32.
bool same_numbers(const ModelFiles& files, const std::string& a, const std::string& b) {
    const SafetensorsEntry &first = files.info(a), &second = files.info(b);
    if (first.dtype == second.dtype) {
        std::vector<std::byte> left(kPieceBytes), right(kPieceBytes);
        for (size_t at = 0; at < first.bytes; at += kPieceBytes) {
            const size_t bytes = std::min(kPieceBytes, first.bytes - at);
            files.file_of(a).read_bytes(a, at, left.data(), bytes);
            files.file_of(b).read_bytes(b, at, right.data(), bytes);
            if (!std::equal(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(bytes), right.begin()))
                return false;
        }
        return true;
    }
    const size_t rows = first.shape[0], cols = first.elems / std::max<size_t>(1, rows);
    const size_t piece = std::max<size_t>(1, kPieceBytes / sizeof(float) / std::max<size_t>(1, cols));
    std::vector<float> left(piece * cols), right(piece * cols);
    for (size_t row = 0; row < rows; row += piece) {
        const ReadRange range{.first_row = row, .rows = std::min(piece, rows - row)};
        files.read_as(a, left.data(), range);
        files.read_as(b, right.data(), range);
        const auto end = left.begin() + static_cast<std::ptrdiff_t>(range.rows * cols);
        if (!std::equal(left.begin(), end, right.begin())) return false;
    }
    return true;
}

void settle_head(const ModelFiles& files, ModelConfig& config) {
    const std::string head = "lm_head.weight";
    if (!config.tied_head || !files.has(head)) return;
    const TensorSpec embedding = outer_tensors(config).front();
    const std::string tokens = files.resolve(key_spellings(embedding.parts.front().key));
    if (tokens.empty()) return;  // refused by name where the weights are read
    const SafetensorsEntry &first = files.info(tokens), &second = files.info(head);
    const bool comparable = first.shape == second.shape && is_number(first.dtype) && is_number(second.dtype);
    if (comparable && same_numbers(files, tokens, head)) return;
    config.tied_head = false;
    config.weight_notices.push_back(
        "config.json ties the head to the embeddings (tie_word_embeddings), but the files hold "
        "another lm_head.weight: it is used, as transformers 5 does; version 4 ignores it");
}

// The relative step of a type's numbers: what rounding may have changed.
float rounding_of(DType type) {
    return type == DType::f32 ? 1e-4f : type == DType::f16 ? 2e-3f : 1.6e-2f;
}

bool is_as_configured(const ModelFiles& files, const std::string& name, const ModelConfig& config) {
    const SafetensorsEntry& entry = files.info(name);
    const size_t half = static_cast<size_t>(config.HD) / 2;
    if (!config.rotary || entry.elems != half || !is_number(entry.dtype)) return false;
    std::vector<float> stored(half);
    files.read_as(name, stored.data());
    const RotaryScaling& s = config.rope_scaling;
    const RotaryScalingParams scaling{.llama3 = s.llama3,
                                      .factor = s.factor,
                                      .low_freq_factor = s.low_freq_factor,
                                      .high_freq_factor = s.high_freq_factor,
                                      .original_max_position_embeddings = s.original_max_position_embeddings};
    constexpr float smallest_f16 = 6e-8f;
    for (size_t i = 0; i < half; ++i) {
        const float wanted = inverse_frequency(static_cast<int>(i), config.HD, config.rope_theta, scaling);
        if (!(std::abs(stored[i] - wanted) <= rounding_of(entry.dtype) * wanted + smallest_f16)) return false;
    }
    return true;
}

// A causal mask is 1 on and below the diagonal, else 0.
template <class Number>
bool is_causal(const std::vector<Number>& mask, size_t T) {
    for (size_t row = 0; row < T; ++row)
        for (size_t col = 0; col < T; ++col)
            if (mask[row * T + col] != static_cast<Number>(col <= row ? 1 : 0)) return false;
    return true;
}

bool is_causal_mask(const ModelFiles& files, const std::string& name) {
    const SafetensorsEntry& entry = files.info(name);
    const size_t T = entry.shape.empty() ? 0 : entry.shape.back();
    if (T == 0 || entry.elems != T * T) return false;
    if (is_number(entry.dtype)) {
        std::vector<float> mask(entry.elems);
        files.read_as(name, mask.data());
        return is_causal(mask, T);
    }
    if (entry.bytes != entry.elems) return false;
    std::vector<unsigned char> mask(entry.elems);
    files.file_of(name).read_bytes(name, 0, mask.data(), mask.size());
    return is_causal(mask, T);
}

// The number that old versions put in place of a masked score: so low that nothing of it is left.
bool is_masking_number(const ModelFiles& files, const std::string& name) {
    const SafetensorsEntry& entry = files.info(name);
    if (entry.elems != 1 || !is_number(entry.dtype)) return false;
    float value = 0;
    files.read_as(name, &value);
    return value <= -1e3f;
}

// What the tensor says that the config does not, or "".
std::string difference(const ModelFiles& files, const std::string& name, const ModelConfig& config) {
    if (name.ends_with(".rotary_emb.inv_freq"))
        return is_as_configured(files, name, config) ? "" : "other rotary frequencies than config.json gives";
    if (name.ends_with(".attn.masked_bias")) return is_masking_number(files, name) ? "" : "a number that masks nothing";
    if (name.ends_with(".attn.bias")) return is_causal_mask(files, name) ? "" : "another mask than the causal one";
    return "";
}

void settle_buffers(const ModelFiles& files, ModelConfig& config) {
    size_t others = 0;
    std::string first;
    for (const std::string& name : files.names()) {
        if (!is_ignorable_key(config, name)) continue;
        const std::string says = difference(files, name, config);
        if (says.empty()) continue;
        if (first.empty())
            first = "tensor " + data::quote(name) + " holds " + says;
        else
            ++others;
    }
    if (first.empty()) return;
    config.weight_notices.push_back(first +
                                    (others ? ", and so do " + std::to_string(others) + " more of its kind" : "") +
                                    ": as in transformers it is not used");
}

std::optional<ModelFiles> open_files(const std::filesystem::path& base) {
    try {
        return ModelFiles(base);
    } catch (const data::UserError&) {  // whoever needs the weights says what is wrong with them
        return {};
    }
}

}  // namespace

void settle_redundant_tensors(const std::filesystem::path& base, ModelConfig& config) {
    if (data::is_gguf_file(base)) return;
    const std::optional<ModelFiles> files = open_files(base);
    if (!files) return;
    settle_head(*files, config);
    settle_buffers(*files, config);
}

}  // namespace slab::train
