// The device's attention against the reference in double precision: odd shapes, strides, documents, grouped heads.
//
// Every output starts as NaN in rows wider than it, with a band of memory before and behind: what is not written, and
// what is written beside, both show. Inputs lie between NaNs, so that a read past them shows too. The same source
// checks bf16 and float32 builds; inputs are rounded to `real` before the reference sees them, so the tolerance
// measures the kernels alone.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/attention.h"
#include "kernels/runtime.h"
#include "tests/kernel_checks.h"

using namespace slab;

namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr double kTolerance = kRealIsFloat32 ? 1e-5 : 1e-2;  // by norm; bf16 keeps 8 bits
constexpr double kLseTolerance = kRealIsFloat32 ? 1e-5 : 1e-4;
constexpr double kZeroTolerance = kRealIsFloat32 ? 1e-4 : 1e-3;  // of what is zero but for the order of float32 sums

struct Shape {
    int B, T_len, NH, NKV, HD;
    int extra = 0;           // elements between the end of a row and the next row
    int document_every = 0;  // about this many tokens a document; 0: one document
    int offset = 0;          // elements before the first of each tensor: odd ones forbid 16-byte loads
};

// A [rows, cols] matrix on the device, rows ld apart, in the middle of NaNs.
template <class E>
class DeviceMatrix {
  public:
    DeviceMatrix(Device& device, size_t rows, size_t cols, size_t ld, size_t offset)
        : rows_(rows), cols_(cols), ld_(ld), offset_(kBand + offset), host_(2 * kBand + offset + rows * ld) {
        for (E& x : host_) set_nan(x);
        buffer_ = DeviceBuffer(device, host_.size() * sizeof(E), MemoryCategory::workspace, "test matrix");
    }
    void fill(std::mt19937_64& generator, double scale) {
        std::normal_distribution<double> normal(0, scale);
        for (size_t i = 0; i < rows_ * cols_; ++i) set(at(i), static_cast<float>(normal(generator)));
    }
    void upload(Stream& stream) {
        copy_async(buffer_.data(), host_.data(), buffer_.bytes(), CopyKind::host_to_device, stream);
        stream.synchronize();
    }
    void download(Stream& stream) {
        copy_async(host_.data(), buffer_.data(), buffer_.bytes(), CopyKind::device_to_host, stream);
        stream.synchronize();
    }
    E* device() { return buffer_.as<E>() + offset_; }
    size_t ld() const { return ld_; }
    std::vector<double> values() const {
        std::vector<double> out(rows_ * cols_);
        for (size_t i = 0; i < out.size(); ++i) out[i] = to_float(host_[i / cols_ * ld_ + i % cols_ + offset_]);
        return out;
    }
    // Everything beside the matrix is the NaN it was.
    bool surroundings_untouched() const {
        E untouched;
        set_nan(untouched);
        for (size_t i = 0; i < host_.size(); ++i) {
            const bool inside = i >= offset_ && i < offset_ + rows_ * ld_ && (i - offset_) % ld_ < cols_;
            if (!inside && std::memcmp(&host_[i], &untouched, sizeof(E)) != 0) return false;
        }
        return true;
    }
    const std::vector<E>& bits() const { return host_; }

  private:
    static constexpr size_t kBand = 64;  // keeps the alignment of the buffer
    static void set(float& x, float v) { x = v; }
    static void set(bf16& x, float v) { x = to_bf16(v); }
    static void set_nan(E& x) { set(x, kNaN); }
    E& at(size_t i) { return host_[i / cols_ * ld_ + i % cols_ + offset_]; }

    size_t rows_, cols_, ld_, offset_;
    std::vector<E> host_;
    DeviceBuffer buffer_;
};

std::vector<int32_t> random_documents(const Shape& s, std::mt19937_64& generator) {
    std::vector<int32_t> start(static_cast<size_t>(s.B) * s.T_len);
    for (int b = 0; b < s.B; ++b) {
        int32_t current = 0;
        for (int t = 0; t < s.T_len; ++t) {
            if (t > 0 && generator() % static_cast<uint64_t>(s.document_every) == 0) current = t;
            start[static_cast<size_t>(b) * s.T_len + t] = current;
        }
    }
    return start;
}

// All tensors of one attention, forward and backward, on the device.
struct Problem {
    Shape s;
    size_t rows, q_cols, kv_cols, ld_q, ld_kv;
    DeviceMatrix<real> q, k, v, dout, out, dq, dk, dv;
    DeviceMatrix<float> lse, delta;
    std::vector<int32_t> documents;
    DeviceBuffer device_documents, workspace;
    float scale;

    Problem(Device& device, Stream& stream, const Shape& shape, uint64_t seed)
        : s(shape),
          rows(static_cast<size_t>(s.B) * s.T_len),
          q_cols(static_cast<size_t>(s.NH) * s.HD),
          kv_cols(static_cast<size_t>(s.NKV) * s.HD),
          ld_q(q_cols + s.extra),
          ld_kv(kv_cols + s.extra),
          q(device, rows, q_cols, ld_q, s.offset),
          k(device, rows, kv_cols, ld_kv, s.offset),
          v(device, rows, kv_cols, ld_kv, s.offset),
          dout(device, rows, q_cols, q_cols, s.offset),
          out(device, rows, q_cols, q_cols, s.offset),
          dq(device, rows, q_cols, ld_q, s.offset),
          dk(device, rows, kv_cols, ld_kv, s.offset),
          dv(device, rows, kv_cols, ld_kv, s.offset),
          lse(device, static_cast<size_t>(s.B) * s.NH, s.T_len, s.T_len, 0),
          delta(device, static_cast<size_t>(s.B) * s.NH, s.T_len, s.T_len, 0),
          scale(1.0f / std::sqrt(static_cast<float>(s.HD))) {
        std::mt19937_64 generator(seed);
        for (DeviceMatrix<real>* x : {&q, &k, &v, &dout}) x->fill(generator, 1.5);
        for (DeviceMatrix<real>* x : {&q, &k, &v, &dout, &out, &dq, &dk, &dv}) x->upload(stream);
        for (DeviceMatrix<float>* x : {&lse, &delta}) x->upload(stream);
        if (s.document_every > 0) {
            documents = random_documents(s, generator);
            device_documents = DeviceBuffer(device, documents.size() * 4, MemoryCategory::workspace, "documents");
            copy_async(device_documents.data(), documents.data(), documents.size() * 4, CopyKind::host_to_device,
                       stream);
            stream.synchronize();
        }
        const size_t bytes = attention_backward_workspace_bytes(s.B, s.T_len, s.NH, s.NKV, s.HD);
        if (bytes > 0) workspace = DeviceBuffer(device, bytes, MemoryCategory::workspace, "attention");
    }

    void run(Stream& stream) {
        const int32_t* starts = documents.empty() ? nullptr : device_documents.as<int32_t>();
        attention_forward({.out = out.device(),
                           .lse = lse.device(),
                           .q = q.device(),
                           .k = k.device(),
                           .v = v.device(),
                           .doc_start = starts,
                           .B = s.B,
                           .T_len = s.T_len,
                           .NH = s.NH,
                           .NKV = s.NKV,
                           .HD = s.HD,
                           .ld_q = ld_q,
                           .ld_k = ld_kv,
                           .ld_v = ld_kv,
                           .scale = scale},
                          stream);
        attention_backward({.dq = dq.device(),
                            .dk = dk.device(),
                            .dv = dv.device(),
                            .delta = delta.device(),
                            .dout = dout.device(),
                            .out = out.device(),
                            .lse = lse.device(),
                            .q = q.device(),
                            .k = k.device(),
                            .v = v.device(),
                            .doc_start = starts,
                            .B = s.B,
                            .T_len = s.T_len,
                            .NH = s.NH,
                            .NKV = s.NKV,
                            .HD = s.HD,
                            .ld_dq = ld_q,
                            .ld_dk = ld_kv,
                            .ld_dv = ld_kv,
                            .ld_q = ld_q,
                            .ld_k = ld_kv,
                            .ld_v = ld_kv,
                            .scale = scale,
                            .workspace = workspace.as<float>()},
                           stream);
        for (DeviceMatrix<real>* x : {&out, &dq, &dk, &dv}) x->download(stream);
        lse.download(stream);
        delta.download(stream);
    }
};

// The reference in double, on the inputs as the device has them.
struct Expected {
    std::vector<double> out, lse, dq, dk, dv;

    explicit Expected(const Problem& p, ThreadPool& pool)
        : out(p.rows * p.q_cols),
          lse(p.rows * p.s.NH),
          dq(p.rows * p.q_cols),
          dk(p.rows * p.kv_cols),
          dv(p.rows * p.kv_cols) {
        const std::vector<double> q = p.q.values(), k = p.k.values(), v = p.v.values(), dout = p.dout.values();
        std::vector<double> delta(lse.size());
        const int32_t* starts = p.documents.empty() ? nullptr : p.documents.data();
        const Shape& s = p.s;
        ref::attention_forward<double>({out.data(), lse.data(), q.data(), k.data(), v.data(), starts, s.B, s.T_len,
                                        s.NH, s.NKV, s.HD, p.q_cols, p.kv_cols, p.kv_cols, p.scale},
                                       pool);
        ref::attention_backward<double>(
            {dq.data(), dk.data(), dv.data(), delta.data(), dout.data(), out.data(), lse.data(), q.data(),
             k.data(),  v.data(),  starts,    s.B,          s.T_len,     s.NH,       s.NKV,      s.HD,
             p.q_cols,  p.kv_cols, p.kv_cols, p.q_cols,     p.kv_cols,   p.kv_cols,  p.scale,    nullptr},
            pool);
    }
};

const Shape kShapes[] = {
    {1, 1, 1, 1, 32},
    {2, 3, 2, 1, 8},
    {1, 64, 2, 2, 64},
    {2, 65, 3, 1, 64, 8},
    {1, 127, 2, 2, 128},
    {1, 257, 4, 2, 128, 0, 40},
    {1, 333, 6, 2, 128, 8, 100},
    {2, 200, 4, 4, 96, 0, 64},
    {1, 191, 2, 1, 80, 16},
    {1, 129, 3, 3, 32, 0, 10},
    {1, 130, 2, 1, 256, 0, 30},
    {1, 77, 1, 1, 200},
    {2, 150, 4, 2, 16, 0, 20},
    // Sizes, strides and addresses that forbid 16-byte loads.
    {2, 70, 2, 1, 6, 1, 9},
    {1, 100, 2, 2, 20, 3},
    {1, 140, 2, 1, 128, 1, 50},
    {1, 140, 2, 1, 64, 0, 50, 1},
    {1, 90, 1, 1, 250, 0, 0, 3},
    // Every token a document of its own; a document that ends inside a tile; long rows.
    {1, 200, 2, 1, 64, 0, 1},
    {1, 1000, 2, 1, 128, 0, 400},
    {1, 1500, 1, 1, 64},
};

}  // namespace

TEST_SUITE("gpu") {
    TEST_CASE("attention on the device agrees with the reference in double precision") {
        Device device;
        Stream stream(device, "compute");
        uint64_t seed = 1;
        for (const Shape& shape : kShapes) {
            CAPTURE(shape.B);
            CAPTURE(shape.T_len);
            CAPTURE(shape.NH);
            CAPTURE(shape.NKV);
            CAPTURE(shape.HD);
            CAPTURE(shape.extra);
            CAPTURE(shape.document_every);
            CAPTURE(shape.offset);
            Problem problem(device, stream, shape, seed++);
            problem.run(stream);
            const Expected expected(problem, device.pool());
            const double error = test::relative_error(problem.out.values(), expected.out);
            CHECK(error < kTolerance);
            CHECK(test::relative_error(problem.lse.values(), expected.lse) < kLseTolerance);
            // One key: `out` is that value, exactly, and dq and dk are zero.
            const bool one_key = shape.T_len == 1 || shape.document_every == 1;
            const auto check_gradient = [&](const std::vector<double>& got, const std::vector<double>& want) {
                double largest = 0;
                for (const double x : got) largest = std::isnan(x) ? INFINITY : std::max(largest, std::abs(x));
                if (one_key)
                    CHECK(largest < kZeroTolerance);
                else
                    CHECK(test::relative_error(got, want) < kTolerance);
            };
            check_gradient(problem.dq.values(), expected.dq);
            check_gradient(problem.dk.values(), expected.dk);
            CHECK(test::relative_error(problem.dv.values(), expected.dv) < kTolerance);
            for (const DeviceMatrix<real>* x : {&problem.out, &problem.dq, &problem.dk, &problem.dv})
                CHECK(x->surroundings_untouched());
            CHECK(problem.lse.surroundings_untouched());
            CHECK(problem.delta.surroundings_untouched());
        }
    }

    TEST_CASE("attention on the device gives the same bits every time") {
        Device device;
        Stream stream(device, "compute");
        for (const Shape& shape :
             {Shape{2, 700, 8, 2, 128, 0, 150}, Shape{1, 300, 4, 4, 64}, Shape{1, 200, 2, 1, 256}}) {
            CAPTURE(shape.HD);
            Problem first(device, stream, shape, 7), second(device, stream, shape, 7);
            first.run(stream);
            for (int round = 0; round < 3; ++round) {
                second.run(stream);
                const auto same = [](const DeviceMatrix<real>& a, const DeviceMatrix<real>& b) {
                    return std::memcmp(a.bits().data(), b.bits().data(), a.bits().size() * sizeof(real)) == 0;
                };
                CHECK(same(first.out, second.out));
                CHECK(same(first.dq, second.dq));
                CHECK(same(first.dk, second.dk));
                CHECK(same(first.dv, second.dv));
            }
        }
    }

    // What a document sees, and the bits it gets, do not depend on the documents before it when tiles start alike.
    TEST_CASE("documents on the device are apart") {
        Device device;
        Stream stream(device, "compute");
        const Shape both{1, 512, 2, 1, 64};
        Problem joined(device, stream, both, 3);
        joined.documents.assign(512, 0);
        for (int t = 256; t < 512; ++t) joined.documents[static_cast<size_t>(t)] = 256;
        joined.device_documents = DeviceBuffer(device, 512 * 4, MemoryCategory::workspace, "documents");
        copy_async(joined.device_documents.data(), joined.documents.data(), 512 * 4, CopyKind::host_to_device, stream);
        stream.synchronize();
        joined.run(stream);
        Problem whole(device, stream, both, 3);
        whole.run(stream);
        const auto half_equal = [&](const DeviceMatrix<real>& a, const DeviceMatrix<real>& b, bool second) {
            const std::vector<double> x = a.values(), y = b.values();
            const size_t half = x.size() / 2, from = second ? half : 0;
            return std::memcmp(x.data() + from, y.data() + from, half * sizeof(double)) == 0;
        };
        CHECK(half_equal(joined.out, whole.out, false));
        CHECK_FALSE(half_equal(joined.out, whole.out, true));
        CHECK_FALSE(half_equal(joined.dk, whole.dk, false));  // without documents the later half sees these keys
        CHECK_FALSE(half_equal(joined.dq, whole.dq, true));
    }
}
