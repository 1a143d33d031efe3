// States are read and checked at construction; codes and scales are read block range by block range.
#include "train/files/bnb_weights.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <stdexcept>

#include "data/base/display.h"
#include "data/base/error.h"
#include "data/base/json_file.h"
#include "data/base/json_section.h"
#include "kernels/block_formats.h"
#include "train/files/stored_number.h"

namespace slab::train {

namespace {

constexpr std::string_view kStateMark = ".quant_state.bitsandbytes__";
constexpr size_t kBlockElems = 64, kCodeBytes = kBlockElems / 2, kBlockBytes = sizeof(float) + kCodeBytes;
constexpr size_t kMaxStateBytes = size_t{64} << 10;
constexpr size_t kPieceBlocks = 1024;  // decoded at once: stays in the cache until it is stored

size_t divided_up(size_t value, size_t by) {
    return value / by + (value % by != 0);
}

[[noreturn]] void refuse(const ModelFiles& files, const std::string& name, const std::string& given,
                         const std::string& wanted, const std::string& hint = "") {
    throw data::UserError({.subject = files.file_of(name).path().string(),
                           .given = "tensor " + data::quote(name) + " " + given,
                           .wanted = wanted,
                           .hint = hint});
}

// The tensor beside the codes, which must have this type and number of elements.
const SafetensorsEntry& require_tensor(const ModelFiles& files, const std::string& codes, const std::string& name,
                                       DType dtype, size_t elems) {
    if (!files.has(name))
        refuse(files, codes, "is stored in 4 bits, and " + data::quote(name) + " is missing", "it beside the codes");
    const SafetensorsEntry& entry = files.info(name);
    if (entry.dtype != dtype || entry.elems != elems)
        refuse(files, name, std::string("is ") + dtype_name(entry.dtype) + " " + shape_text(entry.shape),
               std::to_string(elems) + " elements of " + dtype_name(dtype));
    return entry;
}

void check_code_values(const ModelFiles& files, const std::string& codes) {
    const std::string name = codes + ".quant_map";
    float values[16];
    require_tensor(files, codes, name, DType::f32, std::size(values));
    files.file_of(name).read_raw(name, DType::f32, values);
    for (size_t i = 0; i < std::size(values); ++i)
        if (!(std::fabs(values[i] - kNf4Values[i]) <= 1e-6f))
            refuse(files, name, "has " + std::to_string(values[i]) + " for code " + std::to_string(i),
                   "nf4's " + std::to_string(kNf4Values[i]));
}

}  // namespace

BnbWeights::BnbWeights(const ModelFiles& files) : files_(files) {
    for (const std::string& name : files.names()) {
        const size_t mark = name.find(kStateMark);
        if (mark == std::string::npos) continue;
        const std::string type = name.substr(mark + kStateMark.size());
        if (type != "nf4")
            refuse(files, name, "says " + data::quote(type), "\"nf4\", the 4-bit type that is implemented");
        states_.emplace(name.substr(0, mark), read_state(name.substr(0, mark)));
    }
}

BnbWeights::State BnbWeights::read_state(const std::string& codes) const {
    const std::string name = codes + std::string(kStateMark) + "nf4";
    const SafetensorsFile& file = files_.file_of(name);
    const SafetensorsEntry& entry = file.at(name);
    if (entry.dtype != DType::u8 || entry.bytes > kMaxStateBytes)
        refuse(files_, name, std::string("is ") + dtype_name(entry.dtype) + " " + shape_text(entry.shape),
               "a JSON text of at most " + std::to_string(kMaxStateBytes) + " bytes (U8)");
    std::string text(entry.bytes, '\0');
    file.read_raw(name, DType::u8, text.data());
    const std::string where = file.path().string() + ": tensor " + data::quote(name);
    const nlohmann::json json = data::parse_json(text, where, {.offset_bytes = entry.offset_bytes});
    data::JsonSection section(where, "", json);
    section.require("quant_type", "nf4");
    section.text("dtype", "the type before quantisation", "");
    if (const auto* block = section.find("blocksize"); !block || *block != kBlockElems)
        section.refuse("blocksize", std::to_string(kBlockElems) + ": other block sizes are not implemented");
    State state;
    const auto* shape = section.find("shape");
    if (!shape || !shape->is_array() || shape->size() != 2) section.refuse("shape", "[rows, columns]");
    state.elems = 1;
    for (const auto& size : *shape) {
        const auto number = data::whole_number(size);
        if (!number || *number < 1 || *number > INT32_MAX) section.refuse("shape", "[rows, columns]");
        state.elems *= static_cast<size_t>(*number);
    }
    state.nested = section.find("nested_blocksize") != nullptr;
    if (state.nested) {
        state.nested_block = static_cast<size_t>(section.integer("nested_blocksize", 1, 1 << 20));
        section.require("nested_dtype", "float32");
        state.nested_offset = section.number("nested_offset", -1e30, 1e30);
    }
    section.refuse_unread({});
    return state;
}

void BnbWeights::check(const std::string& name, size_t rows, size_t cols, std::set<std::string>& used) const {
    const State& state = states_.at(name);
    const std::string state_name = name + std::string(kStateMark) + "nf4";
    if (state.elems != rows * cols)
        refuse(files_, state_name, "is of " + std::to_string(state.elems) + " elements",
               shape_text({rows, cols}) + " by config.json");
    const size_t blocks = divided_up(state.elems, kBlockElems);
    require_tensor(files_, name, name, DType::u8, divided_up(state.elems, 2));
    require_tensor(files_, name, name + ".absmax", state.nested ? DType::u8 : DType::f32, blocks);
    check_code_values(files_, name);
    for (const char* beside : {".absmax", ".quant_map"}) used.insert(name + beside);
    used.insert(state_name);
    if (!state.nested) return;
    require_tensor(files_, name, name + ".nested_absmax", DType::f32, divided_up(blocks, state.nested_block));
    require_tensor(files_, name, name + ".nested_quant_map", DType::f32, 256);
    for (const char* beside : {".nested_absmax", ".nested_quant_map"}) used.insert(name + beside);
}

// float32 scales of the blocks, as bitsandbytes computes them: two roundings, never one.
void BnbWeights::read_scales(const std::string& name, const State& state, size_t first_block, size_t blocks,
                             float* dst) const {
    const std::string absmax = name + ".absmax";
    const SafetensorsFile& file = files_.file_of(absmax);
    if (!state.nested) return file.read_bytes(absmax, first_block * sizeof(float), dst, blocks * sizeof(float));
    std::vector<uint8_t> codes(blocks);
    file.read_bytes(absmax, first_block, codes.data(), blocks);
    std::array<float, 256> map;
    const std::string map_name = name + ".nested_quant_map", outer_name = name + ".nested_absmax";
    files_.file_of(map_name).read_raw(map_name, DType::f32, map.data());
    const size_t first_outer = first_block / state.nested_block,
                 outers = (first_block + blocks - 1) / state.nested_block - first_outer + 1;
    std::vector<float> outer(outers);
    files_.file_of(outer_name)
        .read_bytes(outer_name, first_outer * sizeof(float), outer.data(), outers * sizeof(float));
    for (size_t i = 0; i < blocks; ++i) {
        // volatile: a compiler that may fuse products and sums would round once.
        const volatile float product = map[codes[i]] * outer[(first_block + i) / state.nested_block - first_outer];
        dst[i] = product + state.nested_offset;
    }
}

void BnbWeights::read_blocks(const std::string& name, size_t first_block, size_t blocks, std::byte* dst) const {
    if (blocks == 0) return;
    const State& state = states_.at(name);
    const SafetensorsFile& file = files_.file_of(name);
    const SafetensorsEntry& entry = file.at(name);
    if (first_block + blocks > divided_up(state.elems, kBlockElems))
        throw std::out_of_range("4-bit tensor " + name + ": blocks beyond the tensor");
    std::vector<float> scales(blocks);
    read_scales(name, state, first_block, blocks, scales.data());
    const size_t first_byte = first_block * kCodeBytes, bytes = std::min(blocks * kCodeBytes, entry.bytes - first_byte);
    std::vector<std::byte> codes(blocks * kCodeBytes);
    file.read_bytes(name, first_byte, codes.data(), bytes);
    for (size_t i = 0; i < blocks; ++i) {
        std::memcpy(dst + i * kBlockBytes, &scales[i], sizeof(float));
        std::memcpy(dst + i * kBlockBytes + sizeof(float), codes.data() + i * kCodeBytes, kCodeBytes);
    }
    const auto bad = first_block_not_finite(BlockFormat::nf4, dst, blocks * kBlockElems);
    if (!bad) return;
    const SafetensorsEntry& absmax = files_.info(name + ".absmax");
    refuse_not_finite(files_.file_of(absmax.name).path().string() + ": tensor " + data::quote(name) +
                          " (NF4, scales in " + data::quote(absmax.name) + ")",
                      scales[*bad], (first_block + *bad) * kBlockElems,
                      absmax.offset_bytes + (first_block + *bad) * dtype_bytes(absmax.dtype));
}

template <class T>
ReadReport BnbWeights::read_elems(const std::string& name, size_t first_elem, size_t elems, T* dst) const {
    NumberStore store;
    std::vector<std::byte> blocks(kPieceBlocks * kBlockBytes);
    std::vector<float> wide(kPieceBlocks * kBlockElems);
    const size_t end_elem = first_elem + elems;
    for (size_t elem = first_elem; elem < end_elem;) {
        const size_t first_block = elem / kBlockElems,
                     count = std::min(kPieceBlocks, divided_up(end_elem, kBlockElems) - first_block);
        read_blocks(name, first_block, count, blocks.data());
        ref::decode_blocks(BlockFormat::nf4, blocks.data(), wide.data(), count * kBlockElems);
        const size_t stop = std::min(end_elem, (first_block + count) * kBlockElems);
        for (; elem < stop; ++elem) store.put(wide[elem - first_block * kBlockElems], dst + (elem - first_elem));
        if (store.beyond_range) refuse(files_, name, "has a value that is too large for BF16", "at most 3.39e38");
    }
    return {elems, store.inexact_elems};
}
template ReadReport BnbWeights::read_elems<float>(const std::string&, size_t, size_t, float*) const;
template ReadReport BnbWeights::read_elems<bf16>(const std::string&, size_t, size_t, bf16*) const;

}  // namespace slab::train
