// Writes safetensors files (format: safetensors.h).
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "train/files/dtype.h"

namespace slab::train {

// Collects tensors, then writes them in one go. The header lists them in the order of their addition. The data are
// sorted by element size, largest first: so each tensor is aligned for its type, which torch's views require. Tensors
// of one element size keep the order of their addition.
class SafetensorsWriter {
  public:
    // Puts a tensor's bytes into dst [bytes]. write() calls it once, in the tensor's turn.
    using Fill = std::function<void(std::byte* dst)>;
    // A tensor that is made when it is written: at most one of these is in memory at a time.
    void add(std::string name, DType dtype, std::vector<size_t> shape, Fill fill);
    // data [product of shape] is not copied: it must live, unchanged, until write() returns.
    void add(std::string name, DType dtype, std::vector<size_t> shape, const void* data);
    template <class T>
    void add(std::string name, std::vector<size_t> shape, const T* data) {
        add(std::move(name), dtype_of<T>(), std::move(shape), data);
    }
    // Whole or not at all (data::AtomicFile). Errors are IoError naming the file.
    void write(const std::filesystem::path& path) const;

  private:
    void add(std::string name, DType dtype, std::vector<size_t> shape, const void* data, Fill fill);

    struct Item {
        std::string name;
        DType dtype;
        std::vector<size_t> shape;
        size_t bytes;
        const void* data;  // null: fill makes it
        Fill fill;
    };
    std::vector<Item> items_;
    std::set<std::string> names_;
};

}  // namespace slab::train
