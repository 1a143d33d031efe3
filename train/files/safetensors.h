// Reads safetensors files (format: github.com/huggingface/safetensors, README.md).
//
//     8 bytes   length H of the header, little-endian
//     H bytes   JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
//     rest      the tensors' bytes; offsets count from here
//
// Files are taken as hostile. Opening one checks every number in the header against the file's size, and that the
// tensors cover the data exactly, with no overlap and no hole. Invariant: an entry that exists can be read. Tensors go
// straight into the caller's memory, or through a small buffer; the file is never held in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "data/base/input_file.h"
#include "train/files/dtype.h"

namespace slab::train {

struct SafetensorsEntry {
    std::string name;
    DType dtype;
    std::vector<size_t> shape;
    size_t elems;         // product of shape; 1 for a scalar
    size_t offset_bytes;  // from the file's beginning
    size_t bytes;
};

// The part of a tensor to read, in rows (first dimension) of the result. With `transposed` a stored [I, O] is read as
// [O, I], and rows 0..n are the stored columns 0..n: so q, k and v are cut out of GPT-2's fused Conv1D.
struct ReadRange {
    static constexpr size_t kAllRows = SIZE_MAX;
    bool transposed = false;
    size_t first_row = 0;
    size_t rows = kAllRows;
};

// Number of elements read, and of those that the wanted type could not hold exactly and that were rounded.
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
    // Throws UserError naming file, tensor and offset. Reading afterwards is safe from several threads.
    explicit SafetensorsFile(const std::filesystem::path& path);

    const std::filesystem::path& path() const { return file_.path(); }
    const std::vector<SafetensorsEntry>& entries() const { return entries_; }  // in the order of their data
    std::vector<std::string> names() const;
    const SafetensorsEntry* find(std::string_view name) const;  // nullptr when absent
    const SafetensorsEntry& at(std::string_view name) const;    // throws when absent

    // Reads F32, F16 or BF16 as T (float or bf16) into dst [rows of the range x elements per row]. Throws UserError
    // naming file, tensor, element and offset for a NaN, an infinity or a value beyond T's range; dst is then half
    // written. A `range` outside of the tensor is a std::out_of_range.
    template <class T>
    ReadReport read_as(std::string_view name, T* dst, ReadRange range = {}) const;

    // The tensor's bytes, unchanged, into dst [at(name).bytes]. It must be stored as `dtype`.
    void read_raw(std::string_view name, DType dtype, void* dst) const;
    // Bytes [first_byte, first_byte + bytes) of the tensor, into dst [bytes].
    void read_bytes(std::string_view name, size_t first_byte, void* dst, size_t bytes) const;

    void drop_cached() const { file_.drop_cached(); }

  private:
    // A ReadRange of one tensor, checked against its shape.
    struct Part {
        const SafetensorsEntry& entry;
        size_t stored_rows, stored_cols;
        size_t first_row, rows;  // of the result
    };
    template <class T>
    ReadReport read_unchanged(const Part& part, T* dst) const;  // stored as T
    template <class T>
    ReadReport read_converted(const Part& part, T* dst) const;
    template <class T>
    ReadReport read_transposed(const Part& part, T* dst) const;
    // Elements first_elem .. +count of the entry, which must be a floating type, into wide [count]; finite or throws.
    void load_elems(const SafetensorsEntry& entry, size_t first_elem, size_t count, float* wide) const;

    data::InputFile file_;
    std::vector<SafetensorsEntry> entries_;
    std::map<std::string, size_t, std::less<>> index_of_name_;
};

}  // namespace slab::train
