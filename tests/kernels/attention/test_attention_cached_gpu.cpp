// Attention over a key/value cache on the device against the reference in double; twice, for the same bits.
#if defined(SLABSTREAM_CUDA)
#include <doctest/doctest.h>

#include "tests/cached_attention.h"
#include "tests/gpu_compare.h"

using namespace slab;
using namespace slab::test;

TEST_SUITE("gpu") {
    TEST_CASE("cached attention on the device") {
        const CachedShape shapes[] = {{1, 1, 1, 1, 32, 0},     {1, 31, 3, 1, 64, 1},    {1, 1000, 8, 2, 64, 0},
                                      {1, 4097, 4, 4, 128, 8}, {17, 17, 6, 2, 80, 3},   {5, 300, 4, 1, 256, 0},
                                      {64, 257, 2, 2, 96, 0},  {130, 400, 9, 3, 64, 5}, {3, 70, 2, 1, 7, 1}};
        constexpr double kTolerance = kRealIsFloat32 ? 1e-5 : 1e-2;
        Device device;
        Stream stream(device, "compute");
        for (const CachedShape& s : shapes) {
            CAPTURE(s.Tq);
            CAPTURE(s.n);
            CAPTURE(s.HD);
            const size_t QC = s.q_cols(), KC = s.kv_cols(), extra = s.padding;
            DeviceMatrix<real> q(stream, s.Tq, QC, extra), k(stream, s.n, KC, extra), v(stream, s.n, KC, extra);
            DeviceMatrix<real> k_cache(stream, s.n, KC), v_cache(stream, s.n, KC), out(stream, s.Tq, QC);
            q.fill(1, 2), k.fill(2, 2), v.fill(3);
            const auto append = [&](size_t first, size_t rows) {
                cache_append(
                    append_arguments<real>(s, k_cache.data(), v_cache.data(), k.data(), v.data(), k.ld(), first, rows),
                    stream);
            };
            run_twice({&k_cache, &v_cache, &out}, [&] {
                const size_t before = static_cast<size_t>(s.n - s.Tq);
                append(0, before);
                append(before, static_cast<size_t>(s.Tq));
                attention_cached(
                    cached_arguments<real>(s, out.data(), q.data(), q.ld(), k_cache.data(), v_cache.data()), stream);
            });
            CHECK(k_cache.got() == k.given());
            CHECK(v_cache.got() == v.given());
            const std::vector<double> gq = q.given(), gk = k.given(), gv = v.given();
            std::vector<double> want(gq.size());
            ref::attention_cached(cached_arguments<double>(s, want.data(), gq.data(), QC, gk.data(), gv.data()),
                                  device.pool());
            CHECK(norm_error(out.got(), want) < kTolerance);
        }
    }
}
#endif
