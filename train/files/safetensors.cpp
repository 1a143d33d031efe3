// Header checks first, in the order in which a number is first used; then reading with conversion; then the writer.
// Every size below was compared with the file's size, or divided instead of multiplied, before it is relied upon.
#include "train/files/safetensors.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <tuple>

#include "data/base/atomic_file.h"
#include "data/base/display.h"
#include "data/base/json_file.h"
#include "train/files/stored_number.h"

namespace slab::train {
namespace {

static_assert(std::endian::native == std::endian::little, "tensor bytes are little-endian and used as they are");

struct DTypeInfo {
    DType dtype;
    const char* name;
    size_t bytes;
};
constexpr DTypeInfo kDTypes[] = {
    {DType::boolean, "BOOL", 1},    {DType::u8, "U8", 1},   {DType::i8, "I8", 1},   {DType::f8_e4m3, "F8_E4M3", 1},
    {DType::f8_e5m2, "F8_E5M2", 1}, {DType::u16, "U16", 2}, {DType::i16, "I16", 2}, {DType::f16, "F16", 2},
    {DType::bf16, "BF16", 2},       {DType::u32, "U32", 4}, {DType::i32, "I32", 4}, {DType::f32, "F32", 4},
    {DType::u64, "U64", 8},         {DType::i64, "I64", 8}, {DType::f64, "F64", 8},
};

const DTypeInfo& info_of(DType dtype) {
    const DTypeInfo& info = kDTypes[static_cast<size_t>(dtype)];
    assert(info.dtype == dtype);
    return info;
}

constexpr size_t kLengthBytes = 8;
constexpr size_t kMaxRank = 8;
constexpr size_t kChunkElems = size_t{32} << 10;    // 128 KiB of float: stays in the cache between read and conversion
constexpr size_t kDirectBytes = size_t{512} << 10;  // read into place in one call, checked while in the cache

// Reads the header's text, having checked its length against the file's.
std::string read_header(const data::InputFile& file) {
    const std::string where = file.path().string();
    const size_t size_bytes = file.size_bytes();
    if (size_bytes < kLengthBytes) {
        throw std::runtime_error(where + ": has " + std::to_string(size_bytes) +
                                 " bytes, wanted a safetensors file, which begins with 8 bytes of header length; was "
                                 "the download cut short?");
    }
    char first[kLengthBytes];
    file.read(0, first, kLengthBytes, "header length");
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, first, kLengthBytes);
    if (header_bytes > size_bytes - kLengthBytes) {
        const std::string_view start(first, kLengthBytes);
        std::string hint = "; was the download cut short?";
        if (start == "version ") hint = "; this looks like a Git LFS pointer: `git lfs pull` fetches the file itself";
        if (start.starts_with("PK")) hint = "; this looks like a PyTorch .bin file: save it as safetensors";
        if (start.starts_with("GGUF")) hint = "; this is a GGUF file, wanted a safetensors one";
        throw std::runtime_error(where + ": the length at offset 0 says a header of " + std::to_string(header_bytes) +
                                 " bytes, but the file has " + std::to_string(size_bytes) + " bytes in all" + hint);
    }
    if (header_bytes > data::kMaxJsonBytes) {
        throw std::runtime_error(where + ": the length at offset 0 says a header of " + std::to_string(header_bytes) +
                                 " bytes, wanted at most " + std::to_string(data::kMaxJsonBytes));
    }
    std::string text(header_bytes, '\0');
    file.read(kLengthBytes, text.data(), text.size(), "header");
    return text;
}

// One "name": {...} of the header. data_bytes is what the file has after its header.
SafetensorsEntry parse_entry(const std::string& where, const std::string& name, const nlohmann::json& value,
                             size_t data_begin_bytes, size_t data_bytes) {
    const auto refuse = [&](const std::string& given, const std::string& wanted) {
        throw std::runtime_error(where + ": tensor " + data::quote(name) + ": " + given + ", wanted " + wanted);
    };
    if (!value.is_object())
        refuse("is described by " + data::shown(value), "an object with dtype, shape and data_offsets");
    for (const auto& [key, unused] : value.items()) {
        if (key != "dtype" && key != "shape" && key != "data_offsets") {
            refuse("has a key " + data::quote(key), "dtype, shape and data_offsets only");
        }
    }
    for (const char* key : {"dtype", "shape", "data_offsets"}) {
        if (!value.contains(key)) refuse("lacks " + data::quote(key), "dtype, shape and data_offsets");
    }

    SafetensorsEntry entry{};
    entry.name = name;
    const auto* known = std::find_if(std::begin(kDTypes), std::end(kDTypes),
                                     [&](const DTypeInfo& info) { return value["dtype"] == info.name; });
    if (known == std::end(kDTypes)) {
        std::string all;
        for (const DTypeInfo& info : kDTypes) all += std::string(all.empty() ? "" : ", ") + info.name;
        refuse("has dtype " + data::shown(value["dtype"]), "one of " + all);
    }
    entry.dtype = known->dtype;

    const nlohmann::json& shape = value["shape"];
    if (!shape.is_array() || shape.size() > kMaxRank) {
        refuse("has shape " + data::shown(shape), "a list of at most " + std::to_string(kMaxRank) + " sizes");
    }
    entry.elems = 1;
    bool overflows = false;
    for (const auto& size : shape) {
        if (!size.is_number_unsigned()) refuse("has shape " + data::shown(shape), "whole numbers, none negative");
        entry.shape.push_back(size.get<size_t>());
        overflows |= entry.shape.back() != 0 && entry.elems > SIZE_MAX / known->bytes / entry.shape.back();
        entry.elems *= entry.shape.back();
    }
    // A zero further on would make the true product zero; no such tensor is worth having.
    if (overflows) refuse("has shape " + data::shown(shape), "a number of elements that fits 64 bits");

    const nlohmann::json& offsets = value["data_offsets"];
    if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
        !offsets[1].is_number_unsigned()) {
        refuse("has data_offsets " + data::shown(offsets), "[begin, end]");
    }
    const size_t begin = offsets[0].get<size_t>();
    const size_t end = offsets[1].get<size_t>();
    if (begin > end || end > data_bytes) {
        refuse("has data_offsets " + data::shown(offsets), "begin <= end <= " + std::to_string(data_bytes) +
                                                               ", the bytes the file has after its header at offset " +
                                                               std::to_string(data_begin_bytes) +
                                                               "; was the download cut short?");
    }
    entry.bytes = entry.elems * known->bytes;
    if (entry.bytes != end - begin) {
        refuse("has data_offsets " + data::shown(offsets) + ", " + std::to_string(end - begin) + " bytes",
               std::to_string(entry.bytes) + " bytes for " + known->name + " " + shape_text(entry.shape));
    }
    entry.offset_bytes = data_begin_bytes + begin;
    return entry;
}

// Sorts entries by their place and demands that they cover data_begin_bytes .. file_bytes exactly.
void check_coverage(const std::string& where, std::vector<SafetensorsEntry>& entries, size_t data_begin_bytes,
                    size_t file_bytes) {
    std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
        return std::tie(a.offset_bytes, a.bytes, a.name) < std::tie(b.offset_bytes, b.bytes, b.name);
    });
    size_t covered_bytes = data_begin_bytes;
    const SafetensorsEntry* previous = nullptr;
    for (const SafetensorsEntry& entry : entries) {
        if (entry.offset_bytes != covered_bytes) {
            const std::string before =
                previous ? "tensor " + data::quote(previous->name) + " ends at offset " : "the header ends at offset ";
            throw std::runtime_error(where + ": tensor " + data::quote(entry.name) + " begins at offset " +
                                     std::to_string(entry.offset_bytes) + ", but " + before +
                                     std::to_string(covered_bytes) +
                                     "; wanted tensors that neither overlap nor leave a hole");
        }
        covered_bytes += entry.bytes;
        previous = &entry;
    }
    if (covered_bytes != file_bytes) {
        throw std::runtime_error(where + ": has " + std::to_string(file_bytes) +
                                 " bytes, but its tensors end at offset " + std::to_string(covered_bytes) +
                                 "; wanted nothing after them");
    }
}

// Float to F16, to nearest even. Beyond the range it becomes an infinity; NaN stays NaN.
uint16_t narrow_f16(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude >= 0x7f800000u) return sign | (magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u);
    if (magnitude < 0x38800000u) {  // below 2^-14: in steps of 2^-24, to which adding 0.5 rounds (its steps are 2^-24)
        const float rounded = std::bit_cast<float>(magnitude) + 0.5f;
        return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(rounded) - 0x3f000000u);
    }
    const uint32_t even = magnitude >> 13 & 1u;  // a carry goes on into the exponent, as it shall
    const uint32_t half = (magnitude - 0x38000000u + 0xfffu + even) >> 13;
    return sign | static_cast<uint16_t>(std::min(half, 0x7c00u));
}

// src [count] to dst [count].
template <class T, class Convert>
void convert_all(const std::byte* src, float* dst, size_t count, Convert convert) {
    for (size_t i = 0; i < count; ++i) {
        T value;
        std::memcpy(&value, src + i * sizeof(T), sizeof(T));
        dst[i] = convert(value);
    }
}

}  // namespace

size_t dtype_bytes(DType dtype) {
    return info_of(dtype).bytes;
}

const char* dtype_name(DType dtype) {
    return info_of(dtype).name;
}

std::string shape_text(const std::vector<size_t>& shape) {
    std::string text = "[";
    for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
    return text + "]";
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) {
    const std::string where = path.string();
    const std::string text = read_header(file_);
    const nlohmann::json header = data::parse_json(text, where, {.offset_bytes = kLengthBytes});
    if (!header.is_object()) throw std::runtime_error(where + ": the header is no JSON object, wanted one at offset 8");

    const size_t data_begin_bytes = kLengthBytes + text.size();
    for (const auto& [name, value] : header.items()) {
        if (name != "__metadata__") {
            entries_.push_back(
                parse_entry(where, name, value, data_begin_bytes, file_.size_bytes() - data_begin_bytes));
            continue;
        }
        if (!value.is_object() ||
            !std::all_of(value.begin(), value.end(), [](const auto& v) { return v.is_string(); })) {
            throw std::runtime_error(where + ": \"__metadata__\" is " + data::shown(value) +
                                     ", wanted an object of text values");
        }
    }
    check_coverage(where, entries_, data_begin_bytes, file_.size_bytes());
    for (size_t i = 0; i < entries_.size(); ++i) index_of_name_.emplace(entries_[i].name, i);
}

std::vector<std::string> SafetensorsFile::names() const {
    std::vector<std::string> all;
    for (const SafetensorsEntry& entry : entries_) all.push_back(entry.name);
    return all;
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
    const auto found = index_of_name_.find(name);
    return found == index_of_name_.end() ? nullptr : &entries_[found->second];
}

const SafetensorsEntry& SafetensorsFile::at(std::string_view name) const {
    if (const SafetensorsEntry* entry = find(name)) return *entry;
    throw std::runtime_error(path().string() + ": has no tensor " + data::quote(name) + " among its " +
                             std::to_string(entries_.size()));
}

void SafetensorsFile::load_elems(const SafetensorsEntry& entry, size_t first_elem, size_t count, float* wide) const {
    const size_t elem_bytes = dtype_bytes(entry.dtype);
    const size_t offset_bytes = entry.offset_bytes + first_elem * elem_bytes;
    const std::string what = "tensor " + data::quote(entry.name);
    if (entry.dtype == DType::f32) {
        file_.read(offset_bytes, wide, count * sizeof(float), what);
    } else {
        std::vector<std::byte> raw(count * elem_bytes);
        file_.read(offset_bytes, raw.data(), raw.size(), what);
        if (entry.dtype == DType::f16) convert_all<uint16_t>(raw.data(), wide, count, widen_f16);
        if (entry.dtype == DType::bf16) {
            convert_all<bf16>(raw.data(), wide, count, [](bf16 value) { return to_float(value); });
        }
    }
    bool finite = true;
    for (size_t i = 0; i < count; ++i) finite &= is_finite(wide[i]);
    if (finite) return;
    const size_t i = std::find_if_not(wide, wide + count, is_finite) - wide;
    throw std::runtime_error(
        path().string() + ": " + what + " (" + dtype_name(entry.dtype) + " " + shape_text(entry.shape) +
        "): weights contain " + (wide[i] != wide[i] ? "NaN" : "an infinity") + " at element " +
        std::to_string(first_elem + i) + ", offset " + std::to_string(offset_bytes + i * elem_bytes) +
        "; wanted finite numbers: the file is damaged, or the run that wrote it had diverged");
}

template <class T>
ReadReport SafetensorsFile::read_as(std::string_view name, T* dst, ReadRange range) const {
    const SafetensorsEntry& entry = at(name);
    const std::string what = path().string() + ": tensor " + data::quote(name);
    if (entry.dtype != DType::f32 && entry.dtype != DType::f16 && entry.dtype != DType::bf16) {
        throw std::runtime_error(what + " is " + dtype_name(entry.dtype) + ", wanted F32, F16 or BF16 weights");
    }
    if (range.transposed && entry.shape.size() != 2) {
        throw std::runtime_error(what + " has shape " + shape_text(entry.shape) + ", wanted a matrix to transpose");
    }
    const size_t stored_rows = entry.shape.empty() ? 1 : entry.shape[0];
    const size_t stored_cols = stored_rows == 0 ? 0 : entry.elems / stored_rows;
    const size_t all_rows = range.transposed ? entry.shape[1] : stored_rows;
    if (range.first_row > all_rows) throw std::out_of_range(what + ": first row beyond the tensor");
    const size_t rows = range.rows == ReadRange::kAllRows ? all_rows - range.first_row : range.rows;
    if (rows > all_rows - range.first_row) throw std::out_of_range(what + ": rows beyond the tensor");
    if (entry.elems == 0) return {};  // its other size may be any number: nothing below may loop over it

    if (entry.dtype == dtype_of<T>() && !range.transposed) {
        const size_t begin = range.first_row * stored_cols;
        const size_t count = rows * stored_cols;
        for (size_t done = 0; done < count; done += kDirectBytes / sizeof(T)) {
            const size_t n = std::min(kDirectBytes / sizeof(T), count - done);
            file_.read(entry.offset_bytes + (begin + done) * sizeof(T), dst + done, n * sizeof(T),
                       "tensor " + data::quote(name));
            if (all_finite(dst + done, n)) continue;
            std::vector<float> wide(n);
            load_elems(entry, begin + done, n, wide.data());  // throws, naming the element
        }
        return {count, 0};
    }

    NumberStore store;
    std::vector<float> wide(std::min(kChunkElems, entry.elems));
    const auto check_range = [&](size_t first_elem) {
        if (!store.beyond_range) return;
        throw std::runtime_error(what + " (" + dtype_name(entry.dtype) + "): a value at or after element " +
                                 std::to_string(first_elem) + " is too large for BF16, wanted at most 3.39e38");
    };
    if (!range.transposed) {
        const size_t begin = range.first_row * stored_cols;
        const size_t count = rows * stored_cols;
        for (size_t done = 0; done < count; done += kChunkElems) {
            const size_t n = std::min(kChunkElems, count - done);
            if constexpr (std::is_same_v<T, float>) {
                load_elems(entry, begin + done, n, dst + done);
            } else {
                load_elems(entry, begin + done, n, wide.data());
                for (size_t i = 0; i < n; ++i) store.put(wide[i], dst + done + i);
                check_range(begin + done);
            }
        }
        return {count, store.inexact_elems};
    }

    // In blocks of whole stored rows while one fits the buffer, else in pieces of one row. Stored element (r, c) goes
    // to dst[c - first_row][r]; the inner loop runs along dst's rows, so that the writes are contiguous.
    const size_t block_cols = std::max<size_t>(1, std::min(stored_cols, kChunkElems));
    const size_t block_rows = block_cols < stored_cols ? 1 : kChunkElems / block_cols;
    for (size_t r0 = 0; r0 < stored_rows; r0 += block_rows) {
        const size_t nr = std::min(block_rows, stored_rows - r0);
        for (size_t c0 = 0; c0 < stored_cols; c0 += block_cols) {
            const size_t nc = std::min(block_cols, stored_cols - c0);
            load_elems(entry, r0 * stored_cols + c0, nr * nc, wide.data());
            const size_t c_begin = std::max(c0, range.first_row);
            const size_t c_end = std::min(c0 + nc, range.first_row + rows);
            for (size_t c = c_begin; c < c_end; ++c) {
                T* to = dst + (c - range.first_row) * stored_rows + r0;
                for (size_t r = 0; r < nr; ++r) store.put(wide[r * nc + (c - c0)], to + r);
            }
            check_range(r0 * stored_cols + c0);
        }
    }
    return {rows * stored_rows, store.inexact_elems};
}

template ReadReport SafetensorsFile::read_as<float>(std::string_view, float*, ReadRange) const;
template ReadReport SafetensorsFile::read_as<bf16>(std::string_view, bf16*, ReadRange) const;

void SafetensorsFile::read_raw(std::string_view name, DType dtype, void* dst) const {
    const SafetensorsEntry& entry = at(name);
    if (entry.dtype != dtype) {
        throw std::runtime_error(path().string() + ": tensor " + data::quote(name) + " is " + dtype_name(entry.dtype) +
                                 ", wanted " + dtype_name(dtype));
    }
    file_.read(entry.offset_bytes, dst, entry.bytes, "tensor " + data::quote(name));
}

void SafetensorsFile::read_bytes(std::string_view name, size_t first_byte, void* dst, size_t bytes) const {
    const SafetensorsEntry& entry = at(name);
    if (first_byte > entry.bytes || bytes > entry.bytes - first_byte)
        throw std::out_of_range(path().string() + ": bytes beyond tensor " + data::quote(name));
    file_.read(entry.offset_bytes + first_byte, dst, bytes, "tensor " + data::quote(name));
}

bool store_as(DType dtype, const float* values, size_t count, std::byte* dst) {
    if (dtype == DType::f32) {
        std::memcpy(dst, values, count * sizeof(float));
        return true;
    }
    assert(dtype == DType::f16 || dtype == DType::bf16);
    bool in_range = true;
    for (size_t i = 0; i < count; ++i) {
        const uint16_t narrow = dtype == DType::bf16 ? to_bf16(values[i]).bits : narrow_f16(values[i]);
        const uint16_t exponent = dtype == DType::bf16 ? 0x7f80u : 0x7c00u;
        in_range &= (narrow & exponent) != exponent || !is_finite(values[i]);
        std::memcpy(dst + i * sizeof narrow, &narrow, sizeof narrow);
    }
    return in_range;
}

void SafetensorsWriter::add(std::string name, DType dtype, std::vector<size_t> shape, const void* data, Fill fill) {
    if (name == "__metadata__" || !names_.insert(name).second)
        throw std::logic_error("safetensors: tensor name " + data::quote(name) + " is taken");
    const size_t elems = std::accumulate(shape.begin(), shape.end(), size_t{1}, std::multiplies<>());
    items_.push_back(
        {{std::move(name), dtype, std::move(shape), elems, 0, elems * dtype_bytes(dtype)}, data, std::move(fill)});
}

void SafetensorsWriter::add(std::string name, DType dtype, std::vector<size_t> shape, const void* data) {
    add(std::move(name), dtype, std::move(shape), data, nullptr);
}

void SafetensorsWriter::add(std::string name, DType dtype, std::vector<size_t> shape, Fill fill) {
    add(std::move(name), dtype, std::move(shape), nullptr, std::move(fill));
}

void SafetensorsWriter::write(const std::filesystem::path& path) const {
    std::vector<size_t> data_order(items_.size());
    std::iota(data_order.begin(), data_order.end(), size_t{0});
    std::stable_sort(data_order.begin(), data_order.end(), [&](size_t a, size_t b) {
        return dtype_bytes(items_[a].entry.dtype) > dtype_bytes(items_[b].entry.dtype);
    });
    std::vector<size_t> begin_bytes(items_.size());
    size_t end_bytes = 0;
    for (const size_t i : data_order) {
        begin_bytes[i] = end_bytes;
        end_bytes += items_[i].entry.bytes;
    }

    nlohmann::ordered_json header;
    header["__metadata__"] = {{"format", "pt"}};
    for (size_t i = 0; i < items_.size(); ++i) {
        const SafetensorsEntry& entry = items_[i].entry;
        header[entry.name] = {{"dtype", dtype_name(entry.dtype)},
                              {"shape", entry.shape},
                              {"data_offsets", {begin_bytes[i], begin_bytes[i] + entry.bytes}}};
    }
    std::string text = header.dump();
    text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');

    data::AtomicFile file(path);
    const uint64_t header_bytes = text.size();
    file.write(&header_bytes, sizeof header_bytes);
    file.write(text.data(), text.size());
    std::vector<std::byte> made;
    for (const size_t i : data_order) {
        const Item& item = items_[i];
        if (item.fill) {
            made.resize(item.entry.bytes);
            item.fill(made.data());
        }
        file.write(item.fill ? made.data() : item.data, item.entry.bytes);
    }
    file.commit();
}

}  // namespace slab::train
