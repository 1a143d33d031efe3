// Matrices for tests of device kernels. Outputs start as NaN, and the memory beside them holds NaNs with bits of their
// own. So reads past an input, elements not written and writes beside an output all show.
//
// Inputs are rounded to the stored type before the reference sees them, so an error is the kernel's alone.
#pragma once

#include <doctest/doctest.h>

#include <bit>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <vector>

#include "kernels/matmul.h"
#include "kernels/runtime/real.h"
#include "kernels/runtime/runtime.h"
#include "tests/kernel_checks.h"

namespace slab::test {

inline void assign(float& x, double v) {
    x = static_cast<float>(v);
}
inline void assign(bf16& x, double v) {
    x = to_bf16(static_cast<float>(v));
}
inline void assign_guard(float& x) {
    x = std::bit_cast<float>(0x7fd5aa55u);
}
inline void assign_guard(bf16& x) {
    x = bf16{0x7fd5};
}

class DeviceArray {
  public:
    virtual ~DeviceArray() = default;
    virtual void upload() = 0;    // the values of set or fill, or NaN
    virtual void download() = 0;  // waits for the stream
    virtual std::vector<std::byte> bits() const = 0;
    virtual bool surroundings_untouched() const = 0;
};

// [rows, cols] on the device, rows cols + extra apart, `offset` elements after a 256-byte boundary.
template <class E>
class DeviceMatrix : public DeviceArray {
  public:
    DeviceMatrix(Stream& stream, size_t rows, size_t cols, size_t extra = 0, size_t offset = 0)
        : stream_(stream),
          rows_(rows),
          cols_(cols),
          ld_(cols + extra),
          first_(kBand + offset),
          given_(2 * kBand + offset + rows * ld_),
          buffer_(stream.device(), given_.size() * sizeof(E), MemoryCategory::workspace, "test matrix") {
        for (E& x : given_) assign_guard(x);
        for (size_t i = 0; i < rows_ * cols_; ++i) assign(given_[index(i)], std::numeric_limits<double>::quiet_NaN());
        got_ = given_;
        upload();
    }
    DeviceMatrix& set(const std::vector<double>& values /*[rows, cols]*/) {
        REQUIRE(values.size() == rows_ * cols_);
        for (size_t i = 0; i < values.size(); ++i) assign(given_[index(i)], values[i]);
        upload();
        return *this;
    }
    DeviceMatrix& fill(uint64_t seed, double scale = 1) { return set(random_values(rows_ * cols_, seed, scale)); }

    E* data() const { return buffer_.as<E>() + first_; }
    size_t ld() const { return ld_; }
    std::vector<double> given() const { return values(given_); }
    std::vector<double> got() const { return values(got_); }  // after download

    void upload() override {
        copy_async(buffer_.data(), given_.data(), buffer_.bytes(), CopyKind::host_to_device, stream_);
        stream_.synchronize();
    }
    void download() override {
        copy_async(got_.data(), buffer_.data(), buffer_.bytes(), CopyKind::device_to_host, stream_);
        stream_.synchronize();
    }
    std::vector<std::byte> bits() const override {
        std::vector<std::byte> out(got_.size() * sizeof(E));
        std::memcpy(out.data(), got_.data(), out.size());
        return out;
    }
    bool surroundings_untouched() const override {
        E guard;
        assign_guard(guard);
        for (size_t i = 0; i < got_.size(); ++i) {
            const bool inside = i >= first_ && i < first_ + rows_ * ld_ && (i - first_) % ld_ < cols_;
            if (!inside && std::memcmp(&got_[i], &guard, sizeof(E)) != 0) return false;
        }
        return true;
    }

  private:
    static constexpr size_t kBand = 128;  // a multiple of 256 bytes
    size_t index(size_t i) const { return first_ + i / cols_ * ld_ + i % cols_; }
    std::vector<double> values(const std::vector<E>& from) const {
        std::vector<double> out(rows_ * cols_);
        for (size_t i = 0; i < out.size(); ++i) out[i] = to_float(from[index(i)]);
        return out;
    }

    Stream& stream_;
    size_t rows_, cols_, ld_, first_;
    std::vector<E> given_, got_;
    DeviceBuffer buffer_;
};

template <class T>
DeviceBuffer to_device(Stream& stream, const std::vector<T>& values) {
    DeviceBuffer buffer(stream.device(), values.size() * sizeof(T), MemoryCategory::workspace, "test array");
    copy_async(buffer.data(), values.data(), buffer.bytes(), CopyKind::host_to_device, stream);
    stream.synchronize();
    return buffer;
}

template <class T>
T from_device(Stream& stream, const T* device) {
    T value;
    copy_async(&value, device, sizeof value, CopyKind::device_to_host, stream);
    stream.synchronize();
    return value;
}

// Runs launch() twice from the same state of the outputs and compares the bits. The results stay in the outputs. Null
// outputs are ignored.
template <class Launch>
void run_twice(std::initializer_list<DeviceArray*> outputs, const Launch& launch) {
    std::vector<std::vector<std::byte>> first;
    for (int round = 0; round < 2; ++round) {
        for (DeviceArray* o : outputs)
            if (o) o->upload();
        launch();
        for (DeviceArray* o : outputs)
            if (o) o->download();
        size_t i = 0;
        for (const DeviceArray* o : outputs) {
            if (!o) continue;
            if (round == 0)
                first.push_back(o->bits());
            else
                CHECK(first[i++] == o->bits());
        }
    }
    for (const DeviceArray* o : outputs)
        if (o) CHECK(o->surroundings_untouched());
}

using Doubles = std::vector<double>;
using Reals = DeviceMatrix<real>;
using Floats = DeviceMatrix<float>;

inline constexpr double kTolerance = kRealIsFloat32 ? 1e-5 : 1e-2;     // outputs stored as real; bf16 keeps 8 bits
inline constexpr double kSumTolerance = kRealIsFloat32 ? 1e-5 : 1e-4;  // float32 outputs of sums on tensor cores
inline constexpr double kFloatTolerance = 1e-5;                        // float32 outputs of float32 arithmetic

struct Gpu {
    Device device;
    Stream stream{device, "compute", matmul_workspace_bytes()};
    ThreadPool& pool() { return device.pool(); }
};

}  // namespace slab::test
