// Parsing from front to end. Every count is compared with the bytes left, by division, before it sizes anything. So the
// memory used is a small multiple of the file's size.
#include "data/gguf/gguf.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "data/base/display.h"
#include "data/base/error.h"
#include "data/gguf/gguf_cursor.h"
#include "data/gguf/gguf_value.h"

namespace slab::data {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is little-endian and its bytes are used as they are");

constexpr char kMagic[] = {'G', 'G', 'U', 'F'};
constexpr size_t kMaxNameBytes = 65535;  // of a key, by the format; used for tensors' names too
constexpr size_t kMaxRank = 4;
// The fewest bytes of one entry in the file: a count is checked with them before the entries are read.
constexpr size_t kLeastValueBytes = 8 + 4 + 1;       // empty key, type, one byte
constexpr size_t kLeastTensorBytes = 8 + 4 + 4 + 8;  // empty name, no dimension, type, offset
constexpr uint64_t kDefaultAlignment = 32;

constexpr GgmlTypeInfo kTypes[] = {
    {GgmlType::f32, "F32", 1, 4},       {GgmlType::f16, "F16", 1, 2},       {GgmlType::bf16, "BF16", 1, 2},
    {GgmlType::q8_0, "Q8_0", 32, 34},   {GgmlType::q4_0, "Q4_0", 32, 18},   {GgmlType::q4_1, "Q4_1", 32, 20},
    {GgmlType::q5_0, "Q5_0", 32, 22},   {GgmlType::q5_1, "Q5_1", 32, 24},   {GgmlType::q4_k, "Q4_K", 256, 144},
    {GgmlType::q5_k, "Q5_K", 256, 176}, {GgmlType::q6_k, "Q6_K", 256, 210},
};

// ggml's other types, which are refused by name.
constexpr std::pair<uint32_t, const char*> kOtherTypes[] = {
    {9, "Q8_1"},   {10, "Q2_K"},   {11, "Q3_K"},  {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"},
    {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"}, {23, "IQ4_XS"},  {24, "I8"},     {25, "I16"},
    {26, "I32"},   {27, "I64"},    {28, "F64"},   {29, "IQ1_M"}, {34, "TQ1_0"},   {35, "TQ2_0"},  {39, "MXFP4"},
};

GgmlType read_type(GgufCursor& cursor, const std::string& what) {
    const size_t at = cursor.offset();
    const auto number = cursor.number<uint32_t>([&] { return "the type of " + what; });
    std::string readable;
    for (const GgmlTypeInfo& info : kTypes) {
        if (static_cast<uint32_t>(info.type) == number) return info.type;
        readable += (readable.empty() ? "" : ", ") + std::string(info.name);
    }
    std::string given = "type " + std::to_string(number);
    for (const auto& [other, name] : kOtherTypes) {
        if (other == number) given = name;
    }
    cursor.fail(
        at, {.given = what + " is stored as " + given + ", which is not implemented", .wanted = "one of " + readable});
}

// Checks everything but the offset. offset_bytes still counts from the beginning of the data.
GgufTensor read_tensor(GgufCursor& cursor, uint64_t index) {
    const size_t begin = cursor.offset();
    GgufTensor tensor{};
    tensor.name =
        cursor.text(kMaxNameBytes, [&] { return "the name of tensor " + std::to_string(index) + " (from 0)"; });
    const std::string what = "tensor " + quote(tensor.name);
    const auto rank = cursor.number<uint32_t>([&] { return "the number of dimensions of " + what; });
    if (rank < 1 || rank > kMaxRank) {
        cursor.fail(begin, {.given = what + " has " + std::to_string(rank) + " dimensions",
                            .wanted = "1 to " + std::to_string(kMaxRank)});
    }
    tensor.elems = 1;
    for (uint32_t i = 0; i < rank; ++i) {
        const auto size = cursor.number<uint64_t>([&] { return "a dimension of " + what; });
        // 16: more than any type's bytes for one element, so that no product below overflows.
        if (size == 0 || size > SIZE_MAX / 16 / tensor.elems) {
            cursor.fail(begin, {.given = what + " has a dimension of " + std::to_string(size),
                                .wanted = "sizes above 0 whose product fits 64 bits"});
        }
        tensor.elems *= size;
        tensor.shape.insert(tensor.shape.begin(), size);
    }
    tensor.type = read_type(cursor, what);
    const GgmlTypeInfo& info = info_of(tensor.type);
    if (tensor.shape.back() % info.block_elems != 0) {
        cursor.fail(
            begin, {.given = what + " is stored as " + info.name + " in rows of " + std::to_string(tensor.shape.back()),
                    .wanted = "rows of whole blocks of " + std::to_string(info.block_elems)});
    }
    tensor.bytes = tensor.elems / info.block_elems * info.block_bytes;
    tensor.offset_bytes = cursor.number<uint64_t>([&] { return "the offset of " + what; });
    return tensor;
}

// Checks that all of the tensor is in the file, then makes offset_bytes count from the file's beginning.
void place_tensor(const InputFile& file, GgufTensor& tensor, size_t data_begin_bytes, uint64_t alignment) {
    const std::string subject = file.path().string() + ": tensor " + quote(tensor.name);
    const std::string place = "offset " + std::to_string(tensor.offset_bytes) + " after the header's end at " +
                              std::to_string(data_begin_bytes);
    if (tensor.offset_bytes % alignment != 0)
        throw UserError({.subject = subject,
                         .given = place,
                         .wanted = "a multiple of the alignment, " + std::to_string(alignment)});
    const size_t data_bytes = file.size_bytes() > data_begin_bytes ? file.size_bytes() - data_begin_bytes : 0;
    if (tensor.offset_bytes > data_bytes || tensor.bytes > data_bytes - tensor.offset_bytes) {
        throw UserError({.subject = subject,
                         .given = place + ": its " + std::to_string(tensor.bytes) +
                                  " bytes reach beyond the file's end at " + std::to_string(file.size_bytes()),
                         .hint = kCutShortHint});
    }
    tensor.offset_bytes += data_begin_bytes;
}

void refuse_overlaps(const InputFile& file, const std::vector<GgufTensor>& tensors) {
    std::vector<const GgufTensor*> by_place;
    for (const GgufTensor& tensor : tensors) by_place.push_back(&tensor);
    std::sort(by_place.begin(), by_place.end(),
              [](const GgufTensor* a, const GgufTensor* b) { return a->offset_bytes < b->offset_bytes; });
    for (size_t i = 1; i < by_place.size(); ++i) {
        const GgufTensor &before = *by_place[i - 1], &after = *by_place[i];
        if (after.offset_bytes - before.offset_bytes >= before.bytes) continue;
        throw UserError({.subject = file.path().string(),
                         .given = "tensor " + quote(after.name) + " begins at offset " +
                                  std::to_string(after.offset_bytes) + ", inside of tensor " + quote(before.name) +
                                  ", which ends at " + std::to_string(before.offset_bytes + before.bytes),
                         .wanted = "tensors that do not overlap"});
    }
}

// Magic and version.
void read_preamble(GgufCursor& cursor) {
    char magic[sizeof kMagic] = {};
    if (cursor.left() >= sizeof magic) cursor.read(magic, sizeof magic, [] { return std::string("the magic"); });
    if (std::memcmp(magic, kMagic, sizeof kMagic) != 0) {
        const bool pointer = std::string_view(magic, sizeof magic) == "vers";
        cursor.fail(0, {.wanted = "a GGUF file, which begins with \"GGUF\"", .hint = pointer ? kGitLfsHint : ""});
    }
    const auto version = cursor.number<uint32_t>([] { return std::string("the version"); });
    if (version == 2 || version == 3) return;
    const bool swapped = version == 2u << 24 || version == 3u << 24;
    if (swapped)
        cursor.fail(sizeof kMagic, {.given = "this is a big-endian GGUF file", .wanted = "a little-endian one"});
    cursor.fail(sizeof kMagic, {.given = "GGUF version " + std::to_string(version),
                                .wanted = "2 or 3",
                                .hint = "convert the model again with a current tool"});
}

const char* kind_name(const GgufValue& value) {
    constexpr const char* names[] = {"a bool",         "a whole number",          "a float",
                                     "a text",         "a list of whole numbers", "a list of floats",
                                     "a list of texts"};
    return names[value.index()];
}

}  // namespace

const GgmlTypeInfo& info_of(GgmlType type) {
    const auto* info =
        std::find_if(std::begin(kTypes), std::end(kTypes), [&](const GgmlTypeInfo& i) { return i.type == type; });
    assert(info != std::end(kTypes));
    return *info;
}

bool is_gguf_file(const std::filesystem::path& path) {
    try {
        const InputFile file(path);
        if (path.extension() == ".gguf") return true;
        char magic[sizeof kMagic] = {};
        if (file.size_bytes() < sizeof magic) return false;
        file.read(0, magic, sizeof magic, "magic");
        return std::memcmp(magic, kMagic, sizeof kMagic) == 0;
    } catch (const IoError&) {
        return false;
    } catch (const UserError&) {  // no regular file
        return false;
    }
}

GgufFile::GgufFile(const std::filesystem::path& path) : file_(path) {
    GgufCursor cursor(file_);
    read_preamble(cursor);
    size_t at = cursor.offset();
    const auto tensor_count = cursor.number<uint64_t>([] { return std::string("the number of tensors"); });
    if (tensor_count > cursor.left() / kLeastTensorBytes)
        cursor.fail(at, {.given = std::to_string(tensor_count) + " tensors are more than the file can hold"});
    at = cursor.offset();
    const auto value_count = cursor.number<uint64_t>([] { return std::string("the number of metadata values"); });
    if (value_count > cursor.left() / kLeastValueBytes)
        cursor.fail(at, {.given = std::to_string(value_count) + " metadata values are more than the file can hold"});

    for (uint64_t i = 0; i < value_count; ++i) {
        at = cursor.offset();
        std::string key =
            cursor.text(kMaxNameBytes, [&] { return "the key of metadata value " + std::to_string(i) + " (from 0)"; });
        GgufValue value = read_gguf_value(cursor, key);
        if (has(key)) cursor.fail(at, {.given = "the key " + quote(key) + " is there twice"});
        metadata_.emplace(std::move(key), std::move(value));
    }
    const int64_t alignment = integer("general.alignment", kDefaultAlignment);
    if (alignment < 1 || alignment > UINT32_MAX || !std::has_single_bit(static_cast<uint64_t>(alignment))) {
        throw UserError({.subject = path.string(),
                         .given = "general.alignment is " + std::to_string(alignment),
                         .wanted = "a power of two below 2^32"});
    }
    for (uint64_t i = 0; i < tensor_count; ++i) {
        at = cursor.offset();
        GgufTensor tensor = read_tensor(cursor, i);
        if (!index_of_name_.emplace(tensor.name, tensors_.size()).second)
            cursor.fail(at, {.given = "tensor " + quote(tensor.name) + " is there twice"});
        tensors_.push_back(std::move(tensor));
    }
    const auto step = static_cast<size_t>(alignment);
    const size_t data_begin_bytes = (cursor.offset() + step - 1) / step * step;
    for (GgufTensor& tensor : tensors_) place_tensor(file_, tensor, data_begin_bytes, step);
    refuse_overlaps(file_, tensors_);
}

namespace {

// The value of one of the variant's kinds, or null when the key is absent.
template <class T>
const T* get(const GgufFile& file, std::string_view key, const char* wanted) {
    const auto found = file.metadata().find(key);
    if (found == file.metadata().end()) return nullptr;
    if (const T* value = std::get_if<T>(&found->second)) return value;
    throw UserError(
        {.subject = file.path().string(), .given = quote(key) + " is " + kind_name(found->second), .wanted = wanted});
}

[[noreturn]] void absent(const GgufFile& file, std::string_view key, const char* wanted) {
    throw UserError({.subject = file.path().string(), .given = "the metadata has no " + quote(key), .wanted = wanted});
}

template <class T>
T get_or(const GgufFile& file, std::string_view key, const char* wanted, const std::optional<T>& fallback) {
    if (const T* value = get<T>(file, key, wanted)) return *value;
    if (!fallback) absent(file, key, wanted);
    return *fallback;
}

}  // namespace

int64_t GgufFile::integer(std::string_view key, std::optional<int64_t> fallback) const {
    return get_or<int64_t>(*this, key, "a whole number", fallback);
}

double GgufFile::number(std::string_view key, std::optional<double> fallback) const {
    return get_or<double>(*this, key, "a float", fallback);
}

bool GgufFile::boolean(std::string_view key, std::optional<bool> fallback) const {
    return get_or<bool>(*this, key, "a bool", fallback);
}

const std::string& GgufFile::text(std::string_view key) const {
    const auto* value = get<std::string>(*this, key, "a text");
    if (!value) absent(*this, key, "a text");
    return *value;
}

std::string GgufFile::text(std::string_view key, std::string_view fallback) const {
    const auto* value = get<std::string>(*this, key, "a text");
    return value ? *value : std::string(fallback);
}

const std::vector<std::string>* GgufFile::texts(std::string_view key) const {
    return get<std::vector<std::string>>(*this, key, "a list of texts");
}

const std::vector<int64_t>* GgufFile::integers(std::string_view key) const {
    return get<std::vector<int64_t>>(*this, key, "a list of whole numbers");
}

const GgufTensor* GgufFile::find(std::string_view name) const {
    const auto found = index_of_name_.find(name);
    return found == index_of_name_.end() ? nullptr : &tensors_[found->second];
}

void GgufFile::read(const GgufTensor& tensor, size_t first_byte, void* dst, size_t bytes) const {
    if (first_byte > tensor.bytes || bytes > tensor.bytes - first_byte)
        throw std::out_of_range("GGUF tensor " + quote(tensor.name) + ": bytes " + std::to_string(first_byte) + " + " +
                                std::to_string(bytes) + " of " + std::to_string(tensor.bytes));
    file_.read(tensor.offset_bytes + first_byte, dst, bytes, "tensor " + quote(tensor.name));
}

}  // namespace slab::data
