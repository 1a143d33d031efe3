// The attention kernels alone: checked against a naive double-precision GPU reference, then timed with CUDA events.
//
// Needs no other object of the project.
//
//     nvcc -std=c++20 -O3 -I. -gencode arch=compute_90a,code=sm_90a -DSLABSTREAM_BF16 -o build/attention_bench
//          dev/attention_bench.cu
//     [SLABSTREAM_GENERIC_KERNELS=1] build/attention_bench [check|time|all]
//
// `check` poisons outputs with NaN, looks at the bytes after every buffer and compares two runs bit by bit. `time`
// prints medians per layer and the time of 16 layers, forward and backward, and the same of the contenders that lost.
// FLOP are those of the 2 + 5 causal products that the operation needs, whatever a kernel spends.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/attention/attention_launch.cuh"

using namespace slab;

namespace {

void must(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return;
    std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    std::exit(1);
}

struct Shape {
    int B, T_len, NH, NKV, HD, extra = 0, document_every = 0, offset = 0;
};

constexpr size_t kBand = 64;  // NaNs before and behind each matrix

template <class E>
E from_float(float v) {
    if constexpr (sizeof(E) == 2)
        return to_bf16(v);
    else
        return v;
}

// [rows, cols] on the device, rows ld apart.
template <class E>
struct Matrix {
    size_t rows, cols, ld, offset, count;
    std::vector<E> host;
    E* memory = nullptr;

    Matrix(size_t rows_, size_t cols_, size_t ld_, size_t offset_)
        : rows(rows_), cols(cols_), ld(ld_), offset(kBand + offset_), count(2 * kBand + offset_ + rows_ * ld_) {
        must(cudaMalloc(&memory, count * sizeof(E)), "cudaMalloc");
        must(cudaMemset(memory, 0xff, count * sizeof(E)), "cudaMemset");  // a NaN in bf16 and float32
    }
    Matrix(const Matrix&) = delete;
    ~Matrix() { cudaFree(memory); }
    E* data() { return memory + offset; }

    void fill(std::mt19937_64& generator, float scale) {
        host.assign(count, from_float<E>(std::nanf("")));
        std::vector<float> pool(1 << 16);  // drawing every element would take longer than the benchmark
        std::normal_distribution<float> normal(0, scale);
        for (float& x : pool) x = normal(generator);
        for (size_t r = 0; r < rows; r++) {
            const size_t shift = generator();
            for (size_t c = 0; c < cols; c++)
                host[offset + r * ld + c] = from_float<E>(pool[(shift + c * 7) % pool.size()]);
        }
        must(cudaMemcpy(memory, host.data(), count * sizeof(E), cudaMemcpyHostToDevice), "upload");
    }
    void fetch() {
        host.resize(count);
        must(cudaMemcpy(host.data(), memory, count * sizeof(E), cudaMemcpyDeviceToHost), "download");
    }
    double value(size_t r, size_t c) const { return to_float(host[offset + r * ld + c]); }
    bool guards_kept() const {
        for (size_t i = 0; i < count; i++) {
            const bool inside = i >= offset && i < offset + rows * ld && (i - offset) % ld < cols;
            unsigned char bytes[sizeof(E)];
            std::memcpy(bytes, &host[i], sizeof(E));
            if (!inside)
                for (const unsigned char byte : bytes)
                    if (byte != 0xff) return false;
        }
        return true;
    }
};

struct Problem {
    Shape s;
    size_t rows, q_cols, kv_cols;
    Matrix<real> q, k, v, dout, out, dq, dk, dv;
    Matrix<float> lse, delta;
    std::vector<int32_t> starts;
    int32_t* device_starts = nullptr;
    float scale;

    Problem(const Shape& shape, uint64_t seed)
        : s(shape),
          rows(static_cast<size_t>(s.B) * s.T_len),
          q_cols(static_cast<size_t>(s.NH) * s.HD),
          kv_cols(static_cast<size_t>(s.NKV) * s.HD),
          q(rows, q_cols, q_cols + s.extra, s.offset),
          k(rows, kv_cols, kv_cols + s.extra, s.offset),
          v(rows, kv_cols, kv_cols + s.extra, s.offset),
          dout(rows, q_cols, q_cols, s.offset),
          out(rows, q_cols, q_cols, s.offset),
          dq(rows, q_cols, q_cols + s.extra, s.offset),
          dk(rows, kv_cols, kv_cols + s.extra, s.offset),
          dv(rows, kv_cols, kv_cols + s.extra, s.offset),
          lse(static_cast<size_t>(s.B) * s.NH, s.T_len, s.T_len, 0),
          delta(static_cast<size_t>(s.B) * s.NH, s.T_len, s.T_len, 0),
          scale(1.0f / std::sqrt(static_cast<float>(s.HD))) {
        std::mt19937_64 generator(seed);
        for (auto* x : {&q, &k, &v, &dout}) x->fill(generator, 1.2f);
        if (s.document_every > 0) {
            starts.resize(rows);
            for (size_t i = 0; i < rows; i++) {
                const int t = static_cast<int>(i % s.T_len);
                const bool cut = t == 0 || generator() % s.document_every == 0;
                starts[i] = cut ? t : starts[i - 1];
            }
            must(cudaMalloc(&device_starts, rows * 4), "cudaMalloc");
            must(cudaMemcpy(device_starts, starts.data(), rows * 4, cudaMemcpyHostToDevice), "upload");
        }
    }
    ~Problem() { cudaFree(device_starts); }

    AttentionForward<real> forward() {
        return {out.data(), lse.data(), q.data(), k.data(), v.data(), device_starts, s.B,  s.T_len,
                s.NH,       s.NKV,      s.HD,     q.ld,     k.ld,     v.ld,          scale};
    }
    AttentionBackward<real> backward() {
        return {dq.data(), dk.data(), dv.data(),     delta.data(), dout.data(), out.data(), lse.data(), q.data(),
                k.data(),  v.data(),  device_starts, s.B,          s.T_len,     s.NH,       s.NKV,      s.HD,
                dq.ld,     dk.ld,     dv.ld,         q.ld,         k.ld,        v.ld,       scale,      nullptr};
    }
    void run() {
        must(attn::forward(forward(), nullptr), "forward");
        must(attn::backward(backward(), nullptr), "backward");
        must(cudaDeviceSynchronize(), "attention");
        for (auto* x : {&out, &dq, &dk, &dv}) x->fetch();
        lse.fetch();
        delta.fetch();
    }
};

// One block per query row of one head (b, h): p and ds rows [T], and out, lse, dq of the row.
__global__ void naive_rows(AttentionBackward<real> a, const real* q, int b, int h, double* p, double* ds, double* out,
                           double* lse, double* dq) {
    extern __shared__ double scratch[];  // [T] scores, [T] dp
    const int t = blockIdx.x, first = a.doc_start ? a.doc_start[static_cast<size_t>(b) * a.T_len + t] : 0;
    const size_t row = static_cast<size_t>(b) * a.T_len, kv = static_cast<size_t>(h / (a.NH / a.NKV)) * a.HD;
    double* s = scratch;
    double* dp = scratch + a.T_len;
    for (int j = threadIdx.x; j < a.T_len; j += blockDim.x) {
        double x = 0, y = 0;
        if (j >= first && j <= t) {
            for (int c = 0; c < a.HD; c++) {
                x += double(cuda::as_float(q[(row + t) * a.ld_q + h * a.HD + c])) *
                     cuda::as_float(a.k[(row + j) * a.ld_k + kv + c]);
                y += double(cuda::as_float(a.dout[((row + t) * a.NH + h) * a.HD + c])) *
                     cuda::as_float(a.v[(row + j) * a.ld_v + kv + c]);
            }
        }
        s[j] = x * a.scale;
        dp[j] = y;
    }
    __syncthreads();
    __shared__ double top, sum, delta;
    if (threadIdx.x == 0) {
        top = -1e300, sum = 0, delta = 0;
        for (int j = first; j <= t; j++) top = fmax(top, s[j]);
        for (int j = first; j <= t; j++) {
            const double e = exp(s[j] - top);
            sum += e;
            delta += e * dp[j];
        }
        delta /= sum;
        lse[t] = top + log(sum);
    }
    __syncthreads();
    for (int j = threadIdx.x; j < a.T_len; j += blockDim.x) {
        const bool seen = j >= first && j <= t;
        s[j] = seen ? exp(s[j] - top) / sum : 0;
        dp[j] = seen ? s[j] * (dp[j] - delta) * a.scale : 0;
        p[static_cast<size_t>(t) * a.T_len + j] = s[j];
        ds[static_cast<size_t>(t) * a.T_len + j] = dp[j];
    }
    __syncthreads();
    for (int c = threadIdx.x; c < a.HD; c += blockDim.x) {
        double o = 0, g = 0;
        for (int j = first; j <= t; j++) {
            o += s[j] * cuda::as_float(a.v[(row + j) * a.ld_v + kv + c]);
            g += dp[j] * cuda::as_float(a.k[(row + j) * a.ld_k + kv + c]);
        }
        out[static_cast<size_t>(t) * a.HD + c] = o;
        dq[static_cast<size_t>(t) * a.HD + c] = g;
    }
}

// One block per key: dk and dv [T, HD] of the key/value head grow by head h's share.
__global__ void naive_columns(AttentionBackward<real> a, int b, int h, const double* p, const double* ds, double* dk,
                              double* dv) {
    const int j = blockIdx.x;
    const size_t row = static_cast<size_t>(b) * a.T_len;
    for (int c = threadIdx.x; c < a.HD; c += blockDim.x) {
        double x = 0, y = 0;
        for (int t = j; t < a.T_len; t++) {
            x += ds[static_cast<size_t>(t) * a.T_len + j] * cuda::as_float(a.q[(row + t) * a.ld_q + h * a.HD + c]);
            y += p[static_cast<size_t>(t) * a.T_len + j] * cuda::as_float(a.dout[((row + t) * a.NH + h) * a.HD + c]);
        }
        dk[static_cast<size_t>(j) * a.HD + c] += x;
        dv[static_cast<size_t>(j) * a.HD + c] += y;
    }
}

struct Error {
    double difference = 0, norm = 0;
    bool finite = true;
    void add(double got, double want) {
        finite = finite && std::isfinite(got);
        difference += (got - want) * (got - want);
        norm += want * want;
    }
    double value() const {
        return !finite ? INFINITY : norm > 1e-12 ? std::sqrt(difference / norm) : std::sqrt(difference);
    }
};

// Compares the device's results with the naive reference. Large problems compare only the heads of the first two
// key/value heads of a batch row.
bool check(const Shape& shape) {
    Problem problem(shape, 11 + shape.T_len), again(shape, 11 + shape.T_len);
    problem.run();
    again.run();
    const Shape& s = shape;
    const size_t T = s.T_len, HD = s.HD;
    double *p, *ds, *out, *lse, *dq, *dk, *dv;
    for (double** x : {&p, &ds}) must(cudaMalloc(x, T * T * 8), "cudaMalloc");
    for (double** x : {&out, &dq, &dk, &dv}) must(cudaMalloc(x, T * HD * 8), "cudaMalloc");
    must(cudaMalloc(&lse, T * 8), "cudaMalloc");
    const AttentionBackward<real> a = problem.backward();
    must(cudaFuncSetAttribute(naive_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(T * 16)),
         "shared");
    Error errors[5];
    std::vector<double> host(T * HD);
    const auto compare = [&](Error& error, const double* device, size_t cols, const auto& got) {
        host.resize(T * cols);
        must(cudaMemcpy(host.data(), device, T * cols * 8, cudaMemcpyDeviceToHost), "download");
        for (size_t t = 0; t < T; t++)
            for (size_t c = 0; c < cols; c++) error.add(got(t, c), host[t * cols + c]);
    };
    const int group = s.NH / s.NKV, kv_heads = T > 512 ? std::min(s.NKV, 2) : s.NKV;
    for (int b = 0; b < s.B; b++) {
        for (int kv = 0; kv < kv_heads; kv++) {
            for (double* x : {dk, dv}) must(cudaMemset(x, 0, T * HD * 8), "cudaMemset");
            for (int h = kv * group; h < (kv + 1) * group; h++) {
                naive_rows<<<s.T_len, 128, T * 16>>>(a, a.q, b, h, p, ds, out, lse, dq);
                naive_columns<<<s.T_len, 128>>>(a, b, h, p, ds, dk, dv);
                must(cudaDeviceSynchronize(), "reference");
                const size_t row = b * T, col = h * HD, head = static_cast<size_t>(b) * s.NH + h;
                compare(errors[0], out, HD, [&](size_t t, size_t c) { return problem.out.value(row + t, col + c); });
                compare(errors[1], lse, 1, [&](size_t t, size_t) { return problem.lse.value(head, t); });
                compare(errors[2], dq, HD, [&](size_t t, size_t c) { return problem.dq.value(row + t, col + c); });
            }
            const size_t row = b * T, col = kv * HD;
            compare(errors[3], dk, HD, [&](size_t t, size_t c) { return problem.dk.value(row + t, col + c); });
            compare(errors[4], dv, HD, [&](size_t t, size_t c) { return problem.dv.value(row + t, col + c); });
        }
    }
    for (double* x : {p, ds, out, lse, dq, dk, dv}) cudaFree(x);
    bool guards = problem.lse.guards_kept() && problem.delta.guards_kept(), same = true;
    for (auto* x : {&problem.out, &problem.dq, &problem.dk, &problem.dv}) guards = guards && x->guards_kept();
    const auto equal = [](const Matrix<real>& x, const Matrix<real>& y) {
        return std::memcmp(x.host.data(), y.host.data(), x.count * sizeof(real)) == 0;
    };
    same = equal(problem.out, again.out) && equal(problem.dq, again.dq) && equal(problem.dk, again.dk) &&
           equal(problem.dv, again.dv);
    const double tolerance = kRealIsFloat32 ? 2e-5 : 1e-2;
    bool good = guards && same;
    for (const Error& e : errors) good = good && e.value() < tolerance;
    // One key a query: dq and dk are zero but for the rounding of `out` that delta carries.
    if (s.T_len == 1 || s.document_every == 1)
        good = guards && same && errors[0].value() < tolerance && errors[4].value() < tolerance &&
               std::isfinite(errors[2].value()) && std::isfinite(errors[3].value());
    std::printf(
        "%s B %d T %d NH %d NKV %d HD %d extra %d docs %d offset %d: out %.1e lse %.1e dq %.1e dk %.1e dv %.1e%s%s\n",
        good ? "PASS" : "FAIL", s.B, s.T_len, s.NH, s.NKV, s.HD, s.extra, s.document_every, s.offset, errors[0].value(),
        errors[1].value(), errors[2].value(), errors[3].value(), errors[4].value(), guards ? "" : " GUARD",
        same ? "" : " NOT THE SAME BITS");
    return good;
}

double median_ms(const std::function<cudaError_t()>& work, int repeats) {
    for (int i = 0; i < 3; i++) must(work(), "warm-up");
    std::vector<cudaEvent_t> events(repeats + 1);
    for (cudaEvent_t& e : events) must(cudaEventCreate(&e), "event");
    must(cudaEventRecord(events[0]), "record");
    for (int i = 0; i < repeats; i++) {
        must(work(), "launch");
        must(cudaEventRecord(events[i + 1]), "record");
    }
    must(cudaDeviceSynchronize(), "timed run");
    std::vector<float> times(repeats);
    for (int i = 0; i < repeats; i++) must(cudaEventElapsedTime(&times[i], events[i], events[i + 1]), "elapsed");
    for (cudaEvent_t e : events) cudaEventDestroy(e);
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

void time_shape(const Shape& s, int repeats) {
    Problem problem(s, 5);
    const auto f = problem.forward();
    const auto g = problem.backward();
    const double forward = median_ms([&] { return attn::forward(f, nullptr); }, repeats);
    const double backward = median_ms([&] { return attn::backward(g, nullptr); }, repeats);
    const double delta = median_ms([&] { return attn::launch_delta(g, nullptr); }, repeats);
    const double product = 2.0 * s.B * s.NH * s.HD * (double(s.T_len) * s.T_len / 2);  // FLOP of one causal product
    std::printf(
        "B %d T %d NH %d NKV %d HD %d: forward %.3f ms (%.0f TFLOP/s), backward %.3f ms (%.0f TFLOP/s; delta %.3f), "
        "16 layers %.2f ms\n",
        s.B, s.T_len, s.NH, s.NKV, s.HD, forward, 2 * product / forward * 1e-9, backward, 5 * product / backward * 1e-9,
        delta, 16 * (forward + backward));
}

#if defined(SLABSTREAM_BF16)
// Tile sizes for head size 128 that were tried, per kernel.
void time_contenders(const Shape& s) {
    Problem problem(s, 5);
    const auto f = problem.forward();
    const auto g = problem.backward();
    must(attn::forward(f, nullptr), "forward");
    must(attn::backward(g, nullptr), "backward");
    const auto show = [&](const char* name, const std::function<cudaError_t()>& work) {
        std::printf("  %-44s %.3f ms\n", name, median_ms(work, 11));
    };
    using attn::Gradients, attn::ForwardTile, attn::KeyTile, attn::QueryTile;
    constexpr Gradients kBoth = Gradients::dk_and_dv;
    show("forward: 128 queries, 64 keys a step, 4 warps",
         [&] { return attn::launch_forward<ForwardTile<128, 128, 64, 4>>(f, nullptr); });
    show("forward: 128 queries, 32 keys a step, 4 warps",
         [&] { return attn::launch_forward<ForwardTile<128, 128, 32, 4>>(f, nullptr); });
    show("forward: 128 queries, 64 keys a step, 8 warps",
         [&] { return attn::launch_forward<ForwardTile<128, 128, 64, 8>>(f, nullptr); });
    show("dk, dv: 64 keys, 64 queries a step, 2 stages",
         [&] { return attn::launch_key_gradient<KeyTile<128, 64, 64, 2, kBoth>>(g, nullptr); });
    show("dk, dv: 64 keys, 32 queries a step, 2 stages",
         [&] { return attn::launch_key_gradient<KeyTile<128, 32, 64, 2, kBoth>>(g, nullptr); });
    show("dk, dv: 64 keys, 64 queries a step, 1 stage",
         [&] { return attn::launch_key_gradient<KeyTile<128, 64, 64, 1, kBoth>>(g, nullptr); });
    show("dq: 128 queries, 32 keys a step, 2 stages",
         [&] { return attn::launch_query_gradient<QueryTile<128, 128, 32, 2, 4>>(g, nullptr); });
    show("dq: 64 queries, 64 keys a step, 2 stages",
         [&] { return attn::launch_query_gradient<QueryTile<128, 64, 64, 2, 4>>(g, nullptr); });
    namespace hopper = attn::hopper;
    bool built = false;
    must(hopper::look_for(hopper::forward_kernel<hopper::ForwardTile<128>>, &built), "Hopper's kernels");
    if (!built) return;
    const auto hopper_key = [&]<class Tile>() {
        return hopper::launch_backward<Tile>(hopper::key_gradient_kernel<Tile>, g,
                                             attn::key_schedule(g, Tile::kBN, true), nullptr);
    };
    const auto hopper_query = [&]<class Tile>() {
        return hopper::launch_backward<Tile>(hopper::query_gradient_kernel<Tile>, g,
                                             attn::query_schedule(g, Tile::kBM, true), nullptr);
    };
    show("Hopper forward", [&] {
        using Tile = hopper::ForwardTile<128>;
        return hopper::launch_forward<Tile>(f, attn::query_schedule(f, Tile::kBM, true), nullptr);
    });
    show("Hopper dk, dv: 3 stages", [&] { return hopper_key.operator()<hopper::KeyTile<128, 3>>(); });
    show("Hopper dk, dv: 2 stages", [&] { return hopper_key.operator()<hopper::KeyTile<128, 2>>(); });
    show("Hopper dq: 3 stages", [&] { return hopper_query.operator()<hopper::QueryTile<128, 3>>(); });
    show("Hopper dq: 2 stages", [&] { return hopper_query.operator()<hopper::QueryTile<128, 2>>(); });
}
#endif

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
    {2, 70, 2, 1, 6, 1, 9},
    {1, 100, 2, 2, 20, 3},
    {1, 140, 2, 1, 128, 1, 50},
    {1, 140, 2, 1, 64, 0, 50, 1},
    {1, 90, 1, 1, 250, 0, 0, 3},
    {1, 200, 2, 1, 64, 0, 1},
    {1, 1000, 2, 1, 128, 0, 400},
    {1, 300, 2, 2, 256},
    {2, 1500, 4, 2, 128},
    {4, 2048, 32, 32, 128},
    {2, 2048, 32, 8, 64, 0, 300},
};

}  // namespace

int main(int argc, char** argv) {
    const std::string what = argc > 1 ? argv[1] : "all";
    cudaDeviceProp device;
    must(cudaGetDeviceProperties(&device, 0), "device");
    std::printf("%s, %s\n", device.name, kPrecision);
    int failed = 0;
    if (what != "time")
        for (const Shape& shape : kShapes) failed += !check(shape);
    if (what != "check") {
        for (const int B : {1, 2, 4, 8}) time_shape({B, 2048, 32, 32, 128}, 15);
        time_shape({2, 4096, 32, 8, 128}, 11);
        time_shape({8, 1024, 12, 12, 64}, 15);
        time_shape({1, 32768, 32, 32, 128}, 3);
#if defined(SLABSTREAM_BF16)
        std::printf("contenders at B 4, T 2048, NH 32, HD 128:\n");
        time_contenders({4, 2048, 32, 32, 128});
#endif
    }
    std::printf(failed ? "%d FAILED\n" : "all passed\n", failed);
    return failed != 0;
}
