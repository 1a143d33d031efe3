// safetensors files, read and written (format: github.com/huggingface/safetensors, README.md).
//
//     8 bytes   length H of the header, little-endian
//     H bytes   JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
//     rest      the tensors' bytes; offsets count from here
//
// The reader takes files as hostile. Opening one checks every number in the header against the file's size, and that
// the tensors cover the data exactly, with no overlap and no hole. Invariant: an entry that exists can be read.
// Tensors go straight into the caller's memory through a small buffer; the file is never held in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "data/base/input_file.h"
#include "kernels/runtime/real.h"

namespace slab::train {

enum class DType { boolean, u8, i8, f8_e4m3, f8_e5m2, u16, i16, f16, bf16, u32, i32, f32, u64, i64, f64 };
size_t dtype_bytes(DType dtype);
const char* dtype_name(DType dtype);  // as the format spells it: "F32"

template <class T>
constexpr DType dtype_of() {
    static_assert(std::is_same_v<T, float> || std::is_same_v<T, bf16> || std::is_same_v<T, int32_t>);
    if constexpr (std::is_same_v<T, float>) return DType::f32;
    if constexpr (std::is_same_v<T, bf16>) return DType::bf16;
    return DType::i32;
}

struct SafetensorsEntry {
    std::string name;
    DType dtype;
    std::vector<size_t> shape;
    size_t elems;         // product of shape; 1 for a scalar
    size_t offset_bytes;  // from the file's beginning
    size_t bytes;
};
std::string shape_text(const std::vector<size_t>& shape);  // "[2, 3]"

// Which part of a tensor to read, in rows (first dimension) of what is delivered: with `transposed` a stored [I, O]
// comes as [O, I], and rows 0..n are the stored columns 0..n. That cuts q, k, v out of GPT-2's fused Conv1D.
struct ReadRange {
    static constexpr size_t kAllRows = SIZE_MAX;
    bool transposed = false;
    size_t first_row = 0;
    size_t rows = kAllRows;
};

// What was read. inexact_elems counts values that the element type asked for could not hold exactly and rounded.
struct ReadReport {
    size_t elems = 0;
    size_t inexact_elems = 0;
    ReadReport& operator+=(const ReadReport& other) {
        elems += other.elems;
        inexact_elems += other.inexact_elems;
        return *this;
    }
};

class SafetensorsFile {
  public:
    // Throws std::runtime_error naming file, tensor and offset. Reading afterwards is safe from several threads.
    explicit SafetensorsFile(const std::filesystem::path& path);

    const std::filesystem::path& path() const { return file_.path(); }
    const std::vector<SafetensorsEntry>& entries() const { return entries_; }  // in the order of their data
    std::vector<std::string> names() const;
    const SafetensorsEntry* find(std::string_view name) const;  // nullptr when absent
    const SafetensorsEntry& at(std::string_view name) const;    // throws when absent

    // Reads F32, F16 or BF16 as T (float or bf16) into dst [rows of the range x elements per row]. A NaN, an infinity
    // or a value beyond T's range throws std::runtime_error naming file, tensor, element and offset; dst is then half
    // written. `range` outside of the tensor is a std::out_of_range.
    template <class T>
    ReadReport read_as(std::string_view name, T* dst, ReadRange range = {}) const;

    // The tensor's bytes as they are into dst [at(name).bytes]; it must be stored as `dtype`.
    void read_raw(std::string_view name, DType dtype, void* dst) const;
    // Of these bytes [first_byte, first_byte + bytes), which lie within them.
    void read_bytes(std::string_view name, size_t first_byte, void* dst, size_t bytes) const;

  private:
    // Elements first_elem .. +count of the entry, which must be a floating type, into wide [count]; finite or throws.
    void load_elems(const SafetensorsEntry& entry, size_t first_elem, size_t count, float* wide) const;

    data::InputFile file_;
    std::vector<SafetensorsEntry> entries_;
    std::map<std::string, size_t, std::less<>> index_of_name_;
};

// values [count] to dst [count x dtype_bytes(dtype)], each rounded once to nearest even; dtype is f32, f16 or bf16.
// Returns false when a finite value became an infinity, which F16 makes of all beyond 65504 and BF16 of nearly none.
bool store_as(DType dtype, const float* values, size_t count, std::byte* dst);

// Collects tensors, then writes them in one go. The header lists them in the order they were added. The data lies
// sorted by element size, largest first, so that each tensor is aligned for its type, which torch's views require.
// Tensors of one element size are written in the order in which they were added.
class SafetensorsWriter {
  public:
    // Puts a tensor's bytes into dst [bytes]; called once, by write(), when the tensor's turn has come.
    using Fill = std::function<void(std::byte* dst)>;
    // For tensors that are made when they are written: no more than one of them is in memory at a time.
    void add(std::string name, DType dtype, std::vector<size_t> shape, Fill fill);
    // data [product of shape] is not copied: it must live, unchanged, until write() returns.
    void add(std::string name, DType dtype, std::vector<size_t> shape, const void* data);
    template <class T>
    void add(std::string name, std::vector<size_t> shape, const T* data) {
        add(std::move(name), dtype_of<T>(), std::move(shape), data);
    }
    // Whole or not at all (data::AtomicFile); errors are std::runtime_error naming the file.
    void write(const std::filesystem::path& path) const;

  private:
    void add(std::string name, DType dtype, std::vector<size_t> shape, const void* data, Fill fill);

    struct Item {
        SafetensorsEntry entry;  // offset_bytes unused: it is known only when all tensors are
        const void* data;        // null: fill makes it
        Fill fill;
    };
    std::vector<Item> items_;
    std::set<std::string> names_;
};

}  // namespace slab::train
