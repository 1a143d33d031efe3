// First the checks of the header, then reading with conversion. Every size was compared with the file's size before it
// is used. A product that could overflow is checked by a division.
#include "train/files/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <tuple>

#include "data/base/display.h"
#include "data/base/error.h"
#include "data/base/foreign_file.h"
#include "data/base/json_file.h"
#include "kernels/half.h"
#include "train/files/stored_number.h"

namespace slab::train {
namespace {

static_assert(std::endian::native == std::endian::little, "tensor bytes are little-endian and used as they are");

constexpr size_t kLengthBytes = 8;
constexpr size_t kMaxRank = 8;
constexpr size_t kChunkElems = size_t{32} << 10;    // 128 KiB of float: stays in the cache between read and conversion
constexpr size_t kDirectBytes = size_t{512} << 10;  // read into place in one call, then checked in the cache

// Checks the header's length against the file's, then reads its text.
std::string read_header(const data::InputFile& file) {
    const std::string where = file.path().string();
    const size_t size_bytes = file.size_bytes();
    if (size_bytes < kLengthBytes) {
        throw data::UserError({.subject = where,
                               .given = "has " + std::to_string(size_bytes) + " bytes",
                               .wanted = "a safetensors file, which begins with 8 bytes of header length",
                               .hint = data::kCutShortHint});
    }
    char first[kLengthBytes];
    file.read(0, first, kLengthBytes, "header length");
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, first, kLengthBytes);
    if (header_bytes > size_bytes - kLengthBytes) {
        const std::string_view start(first, kLengthBytes);
        std::string hint = data::kCutShortHint;
        // A header that begins as ours does is a damaged file of this kind.
        char begin[kLengthBytes + 1] = {};
        if (size_bytes > kLengthBytes) file.read(0, begin, sizeof begin, "header");
        if (begin[kLengthBytes] != '{' && !start.starts_with("PK") && start != "version ")
            data::refuse_foreign_content(file, "a safetensors file");
        if (start == "version ") hint = data::kGitLfsHint;
        if (start.starts_with("PK")) hint = "this looks like a PyTorch .bin file; save it as safetensors";
        if (start.starts_with("GGUF")) hint = "this is a GGUF file; its name must end in .gguf";
        throw data::UserError({.subject = where,
                               .given = "the length at offset 0 says a header of " + std::to_string(header_bytes) +
                                        " bytes, but the file has " + std::to_string(size_bytes) + " bytes in all",
                               .wanted = "a safetensors file",
                               .hint = hint});
    }
    if (header_bytes > data::kMaxJsonBytes) {
        throw data::UserError(
            {.subject = where,
             .given = "the length at offset 0 says a header of " + std::to_string(header_bytes) + " bytes",
             .wanted = "at most " + std::to_string(data::kMaxJsonBytes)});
    }
    std::string text(header_bytes, '\0');
    file.read(kLengthBytes, text.data(), text.size(), "header");
    return text;
}

// One "name": {...} of the header. data_bytes is the number of bytes after the header.
SafetensorsEntry parse_entry(const std::string& where, const std::string& name, const nlohmann::json& value,
                             size_t data_begin_bytes, size_t data_bytes) {
    const auto refuse = [&](const std::string& given, const std::string& wanted, const std::string& hint = "") {
        throw data::UserError(
            {.subject = where + ": tensor " + data::quote(name), .given = given, .wanted = wanted, .hint = hint});
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
    const nlohmann::json& dtype = value["dtype"];
    const DType* known = dtype.is_string() ? dtype_named(dtype.get_ref<const std::string&>()) : nullptr;
    if (known == nullptr) refuse("has dtype " + data::shown(dtype), "one of " + all_dtype_names());
    entry.dtype = *known;
    const size_t elem_bytes = dtype_bytes(entry.dtype);

    const nlohmann::json& shape = value["shape"];
    if (!shape.is_array() || shape.size() > kMaxRank) {
        refuse("has shape " + data::shown(shape), "a list of at most " + std::to_string(kMaxRank) + " sizes");
    }
    entry.elems = 1;
    bool overflows = false;
    for (const auto& size : shape) {
        if (!size.is_number_unsigned()) refuse("has shape " + data::shown(shape), "whole numbers, none negative");
        entry.shape.push_back(size.get<size_t>());
        overflows |= entry.shape.back() != 0 && entry.elems > SIZE_MAX / elem_bytes / entry.shape.back();
        entry.elems *= entry.shape.back();
    }
    // A later size of zero would make the true product zero; such a tensor is refused all the same.
    if (overflows) refuse("has shape " + data::shown(shape), "a number of elements that fits 64 bits");

    const nlohmann::json& offsets = value["data_offsets"];
    if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
        !offsets[1].is_number_unsigned()) {
        refuse("has data_offsets " + data::shown(offsets), "[begin, end]");
    }
    const size_t begin = offsets[0].get<size_t>();
    const size_t end = offsets[1].get<size_t>();
    if (begin > end || end > data_bytes) {
        refuse("has data_offsets " + data::shown(offsets),
               "begin <= end <= " + std::to_string(data_bytes) +
                   ", the bytes the file has after its header at offset " + std::to_string(data_begin_bytes),
               data::kCutShortHint);
    }
    entry.bytes = entry.elems * elem_bytes;
    if (entry.bytes != end - begin) {
        refuse("has data_offsets " + data::shown(offsets) + ", " + std::to_string(end - begin) + " bytes",
               std::to_string(entry.bytes) + " bytes for " + dtype_name(entry.dtype) + " " + shape_text(entry.shape));
    }
    entry.offset_bytes = data_begin_bytes + begin;
    return entry;
}

// Sorts entries by their place. Throws unless they cover data_begin_bytes .. file_bytes exactly.
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
            throw data::UserError({.subject = where,
                                   .given = "tensor " + data::quote(entry.name) + " begins at offset " +
                                            std::to_string(entry.offset_bytes) + ", but " + before +
                                            std::to_string(covered_bytes),
                                   .wanted = "tensors that neither overlap nor leave a hole"});
        }
        covered_bytes += entry.bytes;
        previous = &entry;
    }
    if (covered_bytes != file_bytes) {
        throw data::UserError({.subject = where,
                               .given = "has " + std::to_string(file_bytes) + " bytes, but its tensors end at offset " +
                                        std::to_string(covered_bytes),
                               .wanted = "nothing after them"});
    }
}

[[noreturn]] void refuse_beyond_range(const SafetensorsFile& file, const SafetensorsEntry& entry, size_t first_elem) {
    throw data::UserError(
        {.subject = file.path().string() + ": tensor " + data::quote(entry.name) + " (" + dtype_name(entry.dtype) + ")",
         .given = "a value at or after element " + std::to_string(first_elem) + " is too large for BF16",
         .wanted = "at most 3.39e38"});
}

// Converts src [count] to dst [count].
template <class T, class Convert>
void convert_all(const std::byte* src, float* dst, size_t count, Convert convert) {
    for (size_t i = 0; i < count; ++i) {
        T value;
        std::memcpy(&value, src + i * sizeof(T), sizeof(T));
        dst[i] = convert(value);
    }
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) {
    const std::string where = path.string();
    const std::string text = read_header(file_);
    const nlohmann::json header = data::parse_json(text, where, {.offset_bytes = kLengthBytes});
    if (!header.is_object())
        throw data::UserError({.subject = where, .given = "the header is no JSON object", .wanted = "one at offset 8"});

    const size_t data_begin_bytes = kLengthBytes + text.size();
    for (const auto& [name, value] : header.items()) {
        if (name != "__metadata__") {
            entries_.push_back(
                parse_entry(where, name, value, data_begin_bytes, file_.size_bytes() - data_begin_bytes));
            continue;
        }
        if (!value.is_object() ||
            !std::all_of(value.begin(), value.end(), [](const auto& v) { return v.is_string(); })) {
            throw data::UserError({.subject = where,
                                   .given = "\"__metadata__\" is " + data::shown(value),
                                   .wanted = "an object of text values"});
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
    throw data::UserError(
        {.subject = path().string(),
         .given = "has no tensor " + data::quote(name) + " among its " + std::to_string(entries_.size())});
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
    refuse_not_finite(
        path().string() + ": " + what + " (" + dtype_name(entry.dtype) + " " + shape_text(entry.shape) + ")", wide[i],
        first_elem + i, offset_bytes + i * elem_bytes);
}

template <class T>
ReadReport SafetensorsFile::read_as(std::string_view name, T* dst, ReadRange range) const {
    const SafetensorsEntry& entry = at(name);
    const std::string what = "tensor " + data::quote(name);
    const auto refuse = [&](const std::string& given, const std::string& wanted) {
        throw data::UserError({.subject = path().string(), .given = what + given, .wanted = wanted});
    };
    if (entry.dtype != DType::f32 && entry.dtype != DType::f16 && entry.dtype != DType::bf16)
        refuse(std::string(" is ") + dtype_name(entry.dtype), "F32, F16 or BF16 weights");
    if (range.transposed && entry.shape.size() != 2)
        refuse(" has shape " + shape_text(entry.shape), "a matrix to transpose");
    const size_t stored_rows = entry.shape.empty() ? 1 : entry.shape[0];
    const size_t stored_cols = stored_rows == 0 ? 0 : entry.elems / stored_rows;
    const size_t all_rows = range.transposed ? entry.shape[1] : stored_rows;
    if (range.first_row > all_rows) throw std::out_of_range(what + ": first row beyond the tensor");
    const size_t rows = range.rows == ReadRange::kAllRows ? all_rows - range.first_row : range.rows;
    if (rows > all_rows - range.first_row) throw std::out_of_range(what + ": rows beyond the tensor");
    if (entry.elems == 0) return {};  // its other size may be any number: nothing below may loop over it

    const Part part{entry, stored_rows, stored_cols, range.first_row, rows};
    if (range.transposed) return read_transposed(part, dst);
    return entry.dtype == dtype_of<T>() ? read_unchanged(part, dst) : read_converted(part, dst);
}

template <class T>
ReadReport SafetensorsFile::read_unchanged(const Part& part, T* dst) const {
    const SafetensorsEntry& entry = part.entry;
    const size_t begin = part.first_row * part.stored_cols, count = part.rows * part.stored_cols;
    for (size_t done = 0; done < count; done += kDirectBytes / sizeof(T)) {
        const size_t n = std::min(kDirectBytes / sizeof(T), count - done);
        file_.read(entry.offset_bytes + (begin + done) * sizeof(T), dst + done, n * sizeof(T),
                   "tensor " + data::quote(entry.name));
        if (all_finite(dst + done, n)) continue;
        std::vector<float> wide(n);
        load_elems(entry, begin + done, n, wide.data());  // throws, naming the element
    }
    return {count, 0};
}

template <class T>
ReadReport SafetensorsFile::read_converted(const Part& part, T* dst) const {
    const size_t begin = part.first_row * part.stored_cols, count = part.rows * part.stored_cols;
    NumberStore store;
    std::vector<float> wide(std::min(kChunkElems, part.entry.elems));
    for (size_t done = 0; done < count; done += kChunkElems) {
        const size_t n = std::min(kChunkElems, count - done);
        if constexpr (std::is_same_v<T, float>) {
            load_elems(part.entry, begin + done, n, dst + done);
        } else {
            load_elems(part.entry, begin + done, n, wide.data());
            for (size_t i = 0; i < n; ++i) store.put(wide[i], dst + done + i);
            if (store.beyond_range) refuse_beyond_range(*this, part.entry, begin + done);
        }
    }
    return {count, store.inexact_elems};
}

// In blocks of whole stored rows while one fits the buffer, else in pieces of one row. Stored element (r, c) goes to
// dst[c - first_row][r]. The inner loop runs along dst's rows, so that the writes are contiguous.
template <class T>
ReadReport SafetensorsFile::read_transposed(const Part& part, T* dst) const {
    const size_t stored_rows = part.stored_rows, stored_cols = part.stored_cols;
    const size_t block_cols = std::max<size_t>(1, std::min(stored_cols, kChunkElems));
    const size_t block_rows = block_cols < stored_cols ? 1 : kChunkElems / block_cols;
    NumberStore store;
    std::vector<float> wide(std::min(kChunkElems, part.entry.elems));
    for (size_t r0 = 0; r0 < stored_rows; r0 += block_rows) {
        const size_t nr = std::min(block_rows, stored_rows - r0);
        for (size_t c0 = 0; c0 < stored_cols; c0 += block_cols) {
            const size_t nc = std::min(block_cols, stored_cols - c0);
            load_elems(part.entry, r0 * stored_cols + c0, nr * nc, wide.data());
            const size_t c_begin = std::max(c0, part.first_row);
            const size_t c_end = std::min(c0 + nc, part.first_row + part.rows);
            for (size_t c = c_begin; c < c_end; ++c) {
                T* to = dst + (c - part.first_row) * stored_rows + r0;
                for (size_t r = 0; r < nr; ++r) store.put(wide[r * nc + (c - c0)], to + r);
            }
            if (store.beyond_range) refuse_beyond_range(*this, part.entry, r0 * stored_cols + c0);
        }
    }
    return {part.rows * stored_rows, store.inexact_elems};
}

template ReadReport SafetensorsFile::read_as<float>(std::string_view, float*, ReadRange) const;
template ReadReport SafetensorsFile::read_as<bf16>(std::string_view, bf16*, ReadRange) const;

void SafetensorsFile::read_raw(std::string_view name, DType dtype, void* dst) const {
    const SafetensorsEntry& entry = at(name);
    if (entry.dtype != dtype) {
        throw data::UserError({.subject = path().string(),
                               .given = "tensor " + data::quote(name) + " is " + dtype_name(entry.dtype),
                               .wanted = dtype_name(dtype)});
    }
    file_.read(entry.offset_bytes, dst, entry.bytes, "tensor " + data::quote(name));
}

void SafetensorsFile::read_bytes(std::string_view name, size_t first_byte, void* dst, size_t bytes) const {
    const SafetensorsEntry& entry = at(name);
    if (first_byte > entry.bytes || bytes > entry.bytes - first_byte)
        throw std::out_of_range(path().string() + ": bytes beyond tensor " + data::quote(name));
    file_.read(entry.offset_bytes + first_byte, dst, bytes, "tensor " + data::quote(name));
}

}  // namespace slab::train
