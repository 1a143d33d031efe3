// Writes GGUF files (v3): metadata, then float32 tensors one at a time (format: github.com/ggml-org/ggml,
// docs/gguf.md).
//
// Values and tensors are written in the order of their addition. Tensors begin at multiples of 32 bytes, the format's
// default.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <variant>
#include <vector>

namespace slab::data {

class GgufWriter {
  public:
    void put(std::string key, std::string value) { values_.push_back({std::move(key), std::move(value)}); }
    void put(std::string key, float value) { values_.push_back({std::move(key), value}); }

    // shape: slowest dimension first, as everywhere here. The file has GGUF's order, the reverse.
    // fill puts the values into dst [product of shape]. write() calls it once, in the tensor's turn.
    void add(std::string name, std::vector<size_t> shape, std::function<void(float* dst)> fill);

    // Whole or not at all (AtomicFile). Errors are IoError naming the file.
    void write(const std::filesystem::path& path) const;

  private:
    struct Value {
        std::string key;
        std::variant<std::string, float> value;
    };
    struct Tensor {
        std::string name;
        std::vector<size_t> shape;
        size_t elems;
        std::function<void(float*)> fill;
    };
    std::vector<Value> values_;
    std::vector<Tensor> tensors_;
};

}  // namespace slab::data
