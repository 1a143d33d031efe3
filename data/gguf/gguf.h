// GGUF files, v2 and v3: named values, then a table of tensors, then the tensors' bytes
// (format: github.com/ggml-org/ggml, docs/gguf.md).
//
// The reader takes files as hostile. Every length and count is checked against the rest of the file before anything is
// allocated, every tensor's place against the file's size. Invariant: a value or tensor that exists can be read.
// Tensors stay on disk; train/files/gguf_blocks.h decodes their types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "data/base/input_file.h"

namespace slab::data {

// The types of ggml that tensors here may have, by ggml's numbers.
enum class GgmlType : uint32_t {
    f32 = 0,
    f16 = 1,
    q4_0 = 2,
    q4_1 = 3,
    q5_0 = 6,
    q5_1 = 7,
    q8_0 = 8,
    q4_k = 12,
    q5_k = 13,
    q6_k = 14,
    bf16 = 30
};

// A type's tensors are rows of blocks: block_elems values of the fastest dimension in block_bytes.
struct GgmlTypeInfo {
    GgmlType type;
    const char* name;  // as ggml writes it: "Q4_K"
    size_t block_elems;
    size_t block_bytes;
};
const GgmlTypeInfo& info_of(GgmlType type);

// Whether the file begins as GGUF files do, or is named *.gguf; false also when it cannot be opened.
bool is_gguf_file(const std::filesystem::path& path);

struct GgufTensor {
    std::string name;
    GgmlType type;
    std::vector<size_t> shape;  // slowest dimension first, as everywhere here: GGUF's order reversed
    size_t elems;               // product of shape
    size_t offset_bytes;        // from the file's beginning
    size_t bytes;               // a whole number of blocks a row; no two tensors overlap
};

// A value of the metadata. Whole numbers are int64 (a uint64 beyond its range is refused), floats are double. A list of
// bools is a list of 0 and 1. An empty list has the kind of the elements that it could have.
using GgufValue = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<double>,
                               std::vector<std::string>>;

class GgufFile {
  public:
    // Throws UserError naming file, key or tensor, and offset. Reading afterwards is safe from several threads.
    explicit GgufFile(const std::filesystem::path& path);

    const std::filesystem::path& path() const { return file_.path(); }
    size_t size_bytes() const { return file_.size_bytes(); }
    const std::map<std::string, GgufValue, std::less<>>& metadata() const { return metadata_; }
    bool has(std::string_view key) const { return metadata_.find(key) != metadata_.end(); }

    // Each throws UserError naming file and key when the value is of another kind, or absent without a fallback.
    int64_t integer(std::string_view key, std::optional<int64_t> fallback = {}) const;
    double number(std::string_view key, std::optional<double> fallback = {}) const;
    bool boolean(std::string_view key, std::optional<bool> fallback = {}) const;
    const std::string& text(std::string_view key) const;
    std::string text(std::string_view key, std::string_view fallback) const;
    // Null when absent; throws when the value is of another kind. [n]
    const std::vector<std::string>* texts(std::string_view key) const;
    const std::vector<int64_t>* integers(std::string_view key) const;

    const std::vector<GgufTensor>& tensors() const { return tensors_; }  // in the file's order
    const GgufTensor* find(std::string_view name) const;                 // nullptr when absent
    // The tensor's bytes [first_byte, first_byte + bytes) as they are.
    void read(const GgufTensor& tensor, size_t first_byte, void* dst, size_t bytes) const;

    void drop_cached() const { file_.drop_cached(); }

  private:
    InputFile file_;
    std::map<std::string, GgufValue, std::less<>> metadata_;
    std::vector<GgufTensor> tensors_;
    std::map<std::string, size_t, std::less<>> index_of_name_;
};

}  // namespace slab::data
