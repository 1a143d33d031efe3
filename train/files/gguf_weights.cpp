// All tensors are checked at construction. Reading goes in pieces of whole stored rows.
#include "train/files/gguf_weights.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

#include "data/base/display.h"
#include "data/base/error.h"
#include "train/files/gguf_blocks.h"
#include "train/files/gguf_config.h"
#include "train/files/stored_number.h"
#include "train/spec/tensor_table.h"
#include "train/spec/text.h"

namespace slab::train {
namespace {

constexpr size_t kPieceElems = size_t{64} << 10;  // decoded at once: stays in the cache until it is stored

// Names outside of the layers, and inside of one (after "model.layers.N." and "blk.N."), without ".weight" or ".bias".
constexpr std::pair<const char*, const char*> kOuterNames[] = {
    {"model.embed_tokens", "token_embd"}, {"model.norm", "output_norm"},        {"lm_head", "output"},
    {"transformer.wte", "token_embd"},    {"transformer.wpe", "position_embd"}, {"transformer.ln_f", "output_norm"},
};
constexpr std::pair<const char*, const char*> kLayerNames[] = {
    {"input_layernorm", "attn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"self_attn.o_proj", "attn_output"},
    {"post_attention_layernorm", "ffn_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"ln_1", "attn_norm"},
    {"attn.c_attn", "attn_qkv"},
    {"attn.c_proj", "attn_output"},
    {"ln_2", "ffn_norm"},
    {"mlp.c_fc", "ffn_up"},
    {"mlp.c_proj", "ffn_down"},
};

template <size_t n>
const char* find_name(const std::pair<const char*, const char*> (&names)[n], std::string_view module) {
    for (const auto& [ours, theirs] : names)
        if (module == ours) return theirs;
    return nullptr;
}

// "model.layers.12.mlp.up_proj" -> "12" and "mlp.up_proj"; both empty when the module is in no layer.
std::pair<std::string_view, std::string_view> split_layer(std::string_view module) {
    for (const std::string_view prefix : {"model.layers.", "transformer.h."}) {
        if (!module.starts_with(prefix)) continue;
        const std::string_view rest = module.substr(prefix.size());
        const size_t dot = rest.find('.');
        if (dot == 0 || dot == std::string_view::npos) return {};
        return {rest.substr(0, dot), rest.substr(dot + 1)};
    }
    return {};
}

// The shape in the file of a tensor of the table.
std::vector<size_t> gguf_shape(const TensorSpec& spec, const TensorPart& part) {
    return spec.matrix ? std::vector<size_t>{part.rows, spec.cols} : std::vector<size_t>{part.rows};
}

}  // namespace

std::string gguf_name(const std::string& key) {
    const size_t dot = key.rfind('.');
    if (dot == std::string::npos) return "";
    const std::string_view module = std::string_view(key).substr(0, dot);
    const std::string kind = key.substr(dot);
    if (kind != ".weight" && kind != ".bias") return "";
    if (const char* name = find_name(kOuterNames, module)) return name + kind;
    const auto [layer, inner] = split_layer(module);
    const char* name = find_name(kLayerNames, inner);
    return name ? "blk." + std::string(layer) + "." + name + kind : "";
}

bool gguf_reorders_rows(Family family, const std::string& key) {
    if (family != Family::llama && family != Family::mistral) return false;
    return key.find(".self_attn.q_proj.") != std::string::npos || key.find(".self_attn.k_proj.") != std::string::npos;
}

size_t gguf_row(size_t row, int HD) {
    const size_t size = static_cast<size_t>(HD), in_head = row % size;
    return row / size * size + in_head % (size / 2) * 2 + in_head / (size / 2);
}

GgufWeights::GgufWeights(const std::filesystem::path& path, const ModelConfig& config)
    : file_(path), family_(config.family), HD_(config.HD) {
    std::set<std::string> used;
    if (config.rotary) used.insert(kRotaryFactorsTensor);  // read_gguf_config has made it into the config
    for (const auto& spec : all_tensors(config))
        for (const auto& part : spec.parts) {
            const data::GgufTensor& tensor = tensor_of(part.key);
            used.insert(tensor.name);
            if (const auto wanted = gguf_shape(spec, part); tensor.shape != wanted)
                throw data::UserError(
                    {.subject = path.string(),
                     .given = "tensor " + data::quote(tensor.name) + " has shape " + shape_text(tensor.shape),
                     .wanted = shape_text(wanted) + " by the metadata"});
        }
    for (const auto& tensor : file_.tensors())
        if (!used.count(tensor.name))
            throw data::UserError({.subject = path.string(),
                                   .given = "tensor " + data::quote(tensor.name) + " is not part of a " +
                                            family_name(config.family) + " model as the metadata describes it"});
}

const data::GgufTensor& GgufWeights::tensor_of(const std::string& key) const {
    const std::string name = gguf_name(key);
    if (const data::GgufTensor* tensor = file_.find(name)) return *tensor;
    throw data::UserError({.subject = file_.path().string(),
                           .given = "tensor " + data::quote(name) + " is missing (" + key + " in transformers)"});
}

void GgufWeights::decode_rows(const data::GgufTensor& tensor, size_t first_row, size_t rows, float* wide) const {
    const data::GgmlTypeInfo& info = data::info_of(tensor.type);
    const size_t row_elems = tensor.shape.back(), row_bytes = row_elems / info.block_elems * info.block_bytes;
    const size_t count = rows * row_elems;
    if (tensor.type == data::GgmlType::f32) {
        file_.read(tensor, first_row * row_bytes, wide, rows * row_bytes);
    } else {
        std::vector<std::byte> raw(rows * row_bytes);
        file_.read(tensor, first_row * row_bytes, raw.data(), raw.size());
        decode_blocks(tensor.type, raw.data(), wide, count);
    }
    bool finite = true;
    for (size_t i = 0; i < count; ++i) finite &= is_finite(wide[i]);
    if (finite) return;
    const size_t i = static_cast<size_t>(std::find_if_not(wide, wide + count, is_finite) - wide);
    const size_t elem = first_row * row_elems + i;
    refuse_not_finite(subject_of(tensor), wide[i], elem,
                      tensor.offset_bytes + elem / info.block_elems * info.block_bytes);
}

// Blocks run along a row, so rows change places whole.
void GgufWeights::read_blocks(const TensorSpec& spec, const TensorPart& part, size_t first_row, size_t rows,
                              std::byte* dst) const {
    const data::GgufTensor& tensor = tensor_of(part.key);
    if (first_row > part.rows || rows > part.rows - first_row)
        throw std::out_of_range("GGUF tensor " + tensor.name + ": rows beyond the tensor");
    const data::GgmlTypeInfo& info = data::info_of(tensor.type);
    const size_t row_bytes = spec.cols / info.block_elems * info.block_bytes;
    if (!gguf_reorders_rows(family_, part.key)) {
        file_.read(tensor, first_row * row_bytes, dst, rows * row_bytes);
        check_blocks(tensor, first_row, rows, dst);
        return;
    }
    const size_t HD = static_cast<size_t>(HD_), end = first_row + rows;
    std::vector<std::byte> head(HD * row_bytes);
    for (size_t row = first_row; row < end;) {
        const size_t begin = row / HD * HD;
        file_.read(tensor, begin * row_bytes, head.data(), head.size());
        check_blocks(tensor, begin, HD, head.data());
        for (; row < std::min(begin + HD, end); ++row)
            std::copy_n(head.data() + (gguf_row(row, HD_) - begin) * row_bytes, row_bytes,
                        dst + (row - first_row) * row_bytes);
    }
}

// Refuses blocks that do not decode to finite numbers, as decode_rows refuses the numbers.
void GgufWeights::check_blocks(const data::GgufTensor& tensor, size_t first_row, size_t rows,
                               const std::byte* blocks) const {
    const BlockFormat format = block_format(tensor.type).value();
    const BlockInfo& info = block_info(format);
    const auto bad = first_block_not_finite(format, blocks, rows * tensor.shape.back());
    if (!bad) return;
    std::vector<float> wide(info.values);
    ref::decode_blocks(format, blocks + *bad * info.bytes, wide.data(), info.values);
    const size_t i = static_cast<size_t>(std::find_if_not(wide.begin(), wide.end(), is_finite) - wide.begin());
    const size_t elem = first_row * tensor.shape.back() + *bad * info.values + i;
    refuse_not_finite(subject_of(tensor), wide[i], elem, tensor.offset_bytes + elem / info.values * info.bytes);
}

std::string GgufWeights::subject_of(const data::GgufTensor& tensor) const {
    return file_.path().string() + ": tensor " + data::quote(tensor.name) + " (" + data::info_of(tensor.type).name +
           " " + shape_text(tensor.shape) + ")";
}

template <class T>
ReadReport GgufWeights::read_rows(const TensorSpec& spec, const TensorPart& part, size_t first_row, size_t rows,
                                  T* dst) const {
    const data::GgufTensor& tensor = tensor_of(part.key);
    if (first_row > part.rows || rows > part.rows - first_row)
        throw std::out_of_range("GGUF tensor " + tensor.name + ": rows beyond the tensor");
    const bool reorders = gguf_reorders_rows(family_, part.key);
    const size_t HD = static_cast<size_t>(HD_), end = first_row + rows;
    // Pieces of whole heads where rows change places within one; a vector is one stored row.
    const size_t group = !spec.matrix ? part.rows : reorders ? HD : std::max<size_t>(1, kPieceElems / spec.cols);
    std::vector<float> wide;
    NumberStore store;
    for (size_t row = first_row; row < end;) {
        const size_t begin = !spec.matrix ? 0 : reorders ? row / HD * HD : row;
        const size_t stored_rows = std::min(group, part.rows - begin), stop = std::min(begin + group, end);
        wide.resize(stored_rows * spec.cols);
        decode_rows(tensor, spec.matrix ? begin : 0, spec.matrix ? stored_rows : 1, wide.data());
        for (; row < stop; ++row) {
            const float* from = wide.data() + ((reorders ? gguf_row(row, HD_) : row) - begin) * spec.cols;
            T* to = dst + (row - first_row) * spec.cols;
            for (size_t col = 0; col < spec.cols; ++col) store.put(from[col], to + col);
        }
        if (store.beyond_range)
            throw data::UserError({.subject = file_.path().string() + ": tensor " + data::quote(tensor.name),
                                   .given = "a value before row " + std::to_string(stop) + " is too large for BF16",
                                   .wanted = "at most 3.39e38"});
    }
    return {rows * spec.cols, store.inexact_elems};
}
template ReadReport GgufWeights::read_rows<float>(const TensorSpec&, const TensorPart&, size_t, size_t, float*) const;
template ReadReport GgufWeights::read_rows<bf16>(const TensorSpec&, const TensorPart&, size_t, size_t, bf16*) const;

std::string describe_gguf(const data::GgufFile& file, const ModelConfig& config, size_t bytes_per_elem,
                          bool layers_in_blocks) {
    std::vector<std::pair<size_t, std::string>> types;  // bytes of the file in it, name
    for (const auto& tensor : file.tensors()) {
        const char* name = data::info_of(tensor.type).name;
        const auto found =
            std::find_if(types.begin(), types.end(), [&](const auto& type) { return type.second == name; });
        if (found == types.end())
            types.emplace_back(tensor.bytes, name);
        else
            found->first += tensor.bytes;
    }
    std::sort(types.rbegin(), types.rend());
    std::string names;
    for (const auto& [bytes, name] : types) names += (names.empty() ? "" : ", ") + name;
    const std::string text =
        file.path().filename().string() + ": " + memory_text(file.size_bytes()) + " on disk (" + names + "), ";
    if (layers_in_blocks) return text + "layers kept in its blocks";
    return text + memory_text(parameter_count(config) * bytes_per_elem) + " decoded to " +
           (bytes_per_elem == 4 ? "float32" : "bf16") + " in host memory";
}

}  // namespace slab::train
