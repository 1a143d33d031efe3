// The header is padded with blanks, so that the data begin at a multiple of 8 bytes.
#include "train/files/safetensors_writer.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>

#include "data/base/atomic_file.h"
#include "data/base/display.h"

namespace slab::train {
namespace {

constexpr size_t kHeaderAlignment = 8;

}  // namespace

void SafetensorsWriter::add(std::string name, DType dtype, std::vector<size_t> shape, const void* data, Fill fill) {
    if (name == "__metadata__" || !names_.insert(name).second)
        throw std::logic_error("safetensors: tensor name " + data::quote(name) + " is taken");
    const size_t elems = std::accumulate(shape.begin(), shape.end(), size_t{1}, std::multiplies<>());
    items_.push_back({std::move(name), dtype, std::move(shape), elems * dtype_bytes(dtype), data, std::move(fill)});
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
    std::stable_sort(data_order.begin(), data_order.end(),
                     [&](size_t a, size_t b) { return dtype_bytes(items_[a].dtype) > dtype_bytes(items_[b].dtype); });
    std::vector<size_t> begin_bytes(items_.size());
    size_t end_bytes = 0;
    for (const size_t i : data_order) {
        begin_bytes[i] = end_bytes;
        end_bytes += items_[i].bytes;
    }

    nlohmann::ordered_json header;
    header["__metadata__"] = {{"format", "pt"}};
    for (size_t i = 0; i < items_.size(); ++i) {
        const Item& item = items_[i];
        header[item.name] = {{"dtype", dtype_name(item.dtype)},
                             {"shape", item.shape},
                             {"data_offsets", {begin_bytes[i], begin_bytes[i] + item.bytes}}};
    }
    std::string text = header.dump();
    text.resize((text.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');

    data::AtomicFile file(path);
    const uint64_t header_bytes = text.size();
    file.write(&header_bytes, sizeof header_bytes);
    file.write(text.data(), text.size());
    std::vector<std::byte> made;
    for (const size_t i : data_order) {
        const Item& item = items_[i];
        if (item.fill) {
            made.resize(item.bytes);
            item.fill(made.data());
        }
        file.write(item.fill ? made.data() : item.data, item.bytes);
    }
    file.commit();
}

}  // namespace slab::train
