// The header is written as one string, as it is small; the tensors pass through one buffer.
#include "data/gguf/gguf_writer.h"

#include <bit>
#include <functional>
#include <numeric>

#include "data/base/atomic_file.h"
#include "data/gguf/gguf.h"

namespace slab::data {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie in memory");

constexpr uint32_t kVersion = 3;
constexpr size_t kAlignmentBytes = 32;
enum ValueType : uint32_t { kFloat32 = 6, kString = 8 };

size_t align_up(size_t bytes) {
    return (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
}

template <class T>
void append(std::string& out, T number) {
    out.append(reinterpret_cast<const char*>(&number), sizeof number);
}
void append(std::string& out, const std::string& text) {
    append<uint64_t>(out, text.size());
    out += text;
}

}  // namespace

void GgufWriter::add(std::string name, std::vector<size_t> shape, std::function<void(float*)> fill) {
    const size_t elems = std::accumulate(shape.begin(), shape.end(), size_t{1}, std::multiplies<>());
    tensors_.push_back({std::move(name), std::move(shape), elems, std::move(fill)});
}

void GgufWriter::write(const std::filesystem::path& path) const {
    std::string header = "GGUF";
    append<uint32_t>(header, kVersion);
    append<uint64_t>(header, tensors_.size());
    append<uint64_t>(header, values_.size());
    for (const Value& v : values_) {
        append(header, v.key);
        if (const auto* text = std::get_if<std::string>(&v.value)) {
            append<uint32_t>(header, kString);
            append(header, *text);
        } else {
            append<uint32_t>(header, kFloat32);
            append<float>(header, std::get<float>(v.value));
        }
    }
    size_t offset_bytes = 0;  // from where the tensors begin
    for (const Tensor& t : tensors_) {
        append(header, t.name);
        append<uint32_t>(header, static_cast<uint32_t>(t.shape.size()));
        for (size_t i = t.shape.size(); i-- > 0;) append<uint64_t>(header, t.shape[i]);
        append<uint32_t>(header, static_cast<uint32_t>(GgmlType::f32));
        append<uint64_t>(header, offset_bytes);
        offset_bytes += align_up(t.elems * sizeof(float));
    }
    header.resize(align_up(header.size()), '\0');

    AtomicFile file(path);
    file.write(header.data(), header.size());
    std::vector<float> values;
    for (const Tensor& t : tensors_) {
        const size_t bytes = t.elems * sizeof(float);
        values.assign(align_up(bytes) / sizeof(float), 0.0f);
        t.fill(values.data());
        file.write(values.data(), align_up(bytes));
    }
    file.commit();
}

}  // namespace slab::data
