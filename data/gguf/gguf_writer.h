// GGUF files (v3) written: metadata, then float32 tensors one at a time (format: github.com/ggml-org/ggml,
// docs/gguf.md).
//
// What was added first comes first. Tensors begin at multiples of 32 bytes, the format's default.
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

    // shape: slowest dimension first, as everywhere here; GGUF has it the other way round. fill puts the values into
    // dst [product of shape]; write() calls it once, when the tensor's turn has come.
    void add(std::string name, std::vector<size_t> shape, std::function<void(float* dst)> fill);

    // Whole or not at all (AtomicFile); errors are std::runtime_error naming the file.
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
