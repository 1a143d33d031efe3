// The device's attention against the reference in double precision: odd shapes, strides, documents, grouped heads.
//
// The same source checks bf16 and float32 builds. gpu_compare.h explains the checks beside the outputs.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/attention/attention.h"
#include "tests/gpu_compare.h"

using namespace slab;
using namespace slab::test;

namespace {

constexpr double kLseTolerance = kRealIsFloat32 ? 1e-5 : 1e-4;
constexpr double kZeroTolerance =
    kRealIsFloat32 ? 1e-4 : 1e-3;  // for values that are zero but for the order of float32 sums

struct Shape {
    int B, T_len, NH, NKV, HD;
    int extra = 0;           // elements between the end of a row and the next row
    int document_every = 0;  // about this many tokens a document; 0: one document
    int offset = 0;          // elements before the first of each tensor: odd ones forbid 16-byte loads
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
          q(stream, rows, q_cols, s.extra, s.offset),
          k(stream, rows, kv_cols, s.extra, s.offset),
          v(stream, rows, kv_cols, s.extra, s.offset),
          dout(stream, rows, q_cols, 0, s.offset),
          out(stream, rows, q_cols, 0, s.offset),
          dq(stream, rows, q_cols, s.extra, s.offset),
          dk(stream, rows, kv_cols, s.extra, s.offset),
          dv(stream, rows, kv_cols, s.extra, s.offset),
          lse(stream, static_cast<size_t>(s.B) * s.NH, s.T_len),
          delta(stream, static_cast<size_t>(s.B) * s.NH, s.T_len),
          scale(1.0f / std::sqrt(static_cast<float>(s.HD))) {
        std::mt19937_64 generator(seed);
        for (DeviceMatrix<real>* x : {&q, &k, &v, &dout}) x->fill(generator(), 1.5);
        if (s.document_every > 0) {
            documents = random_documents(s, generator);
            device_documents = to_device(stream, documents);
        }
        const size_t bytes = attention_backward_workspace_bytes(s.B, s.T_len, s.NH, s.NKV, s.HD);
        if (bytes > 0) workspace = DeviceBuffer(device, bytes, MemoryCategory::workspace, "attention");
    }

    std::vector<DeviceArray*> outputs() { return {&out, &dq, &dk, &dv, &lse, &delta}; }

    void run(Stream& stream) {
        const int32_t* starts = documents.empty() ? nullptr : device_documents.as<int32_t>();
        attention_forward({.out = out.data(),
                           .lse = lse.data(),
                           .q = q.data(),
                           .k = k.data(),
                           .v = v.data(),
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
        attention_backward({.dq = dq.data(),
                            .dk = dk.data(),
                            .dv = dv.data(),
                            .delta = delta.data(),
                            .dout = dout.data(),
                            .out = out.data(),
                            .lse = lse.data(),
                            .q = q.data(),
                            .k = k.data(),
                            .v = v.data(),
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
        for (DeviceArray* x : outputs()) x->download();
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
        const std::vector<double> q = p.q.given(), k = p.k.given(), v = p.v.given(), dout = p.dout.given();
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
    // More heads than fit one group of a launch's order (16 MiB of keys and values), the last group not full.
    {8, 130, 65, 65, 128},
    {6, 258, 32, 8, 256},
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
            const double error = norm_error(problem.out.got(), expected.out);
            CHECK(error < kTolerance);
            CHECK(norm_error(problem.lse.got(), expected.lse) < kLseTolerance);
            // One key: `out` is that value, exactly, and dq and dk are zero.
            const bool one_key = shape.T_len == 1 || shape.document_every == 1;
            const auto check_gradient = [&](const std::vector<double>& got, const std::vector<double>& want) {
                double largest = 0;
                for (const double x : got) largest = std::isnan(x) ? INFINITY : std::max(largest, std::abs(x));
                if (one_key)
                    CHECK(largest < kZeroTolerance);
                else
                    CHECK(norm_error(got, want) < kTolerance);
            };
            check_gradient(problem.dq.got(), expected.dq);
            check_gradient(problem.dk.got(), expected.dk);
            CHECK(norm_error(problem.dv.got(), expected.dv) < kTolerance);
            for (const DeviceArray* x : problem.outputs()) CHECK(x->surroundings_untouched());
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
                for (size_t i = 0; i < first.outputs().size(); ++i)
                    CHECK(first.outputs()[i]->bits() == second.outputs()[i]->bits());
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
        joined.device_documents = to_device(stream, joined.documents);
        joined.run(stream);
        Problem whole(device, stream, both, 3);
        whole.run(stream);
        const auto half_equal = [&](const DeviceMatrix<real>& a, const DeviceMatrix<real>& b, bool second) {
            const std::vector<double> x = a.got(), y = b.got();
            const size_t half = x.size() / 2, from = second ? half : 0;
            return std::memcmp(x.data() + from, y.data() + from, half * sizeof(double)) == 0;
        };
        CHECK(half_equal(joined.out, whole.out, false));
        CHECK_FALSE(half_equal(joined.out, whole.out, true));
        CHECK_FALSE(half_equal(joined.dk, whole.dk, false));  // without documents the later half sees these keys
        CHECK_FALSE(half_equal(joined.dq, whole.dq, true));
    }
}
