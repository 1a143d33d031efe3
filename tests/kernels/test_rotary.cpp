// Rotary embedding against complex multiplication, and its table against what PyTorch computes.
#include <doctest/doctest.h>

#include <cmath>
#include <complex>

#include "kernels/rotary.h"
#include "tests/kernel_checks.h"

using namespace slab;
using namespace slab::test;

namespace {

struct Shape {
    int B, T_len, heads, HD;
    size_t ld, first;  // where the rotated columns lie in a row
};
const Shape kShapes[] = {
    {1, 1, 1, 2, 0, 0}, {2, 37, 3, 6, 31, 5}, {1, 70, 2, 20, 0, 0}, {3, 130, 1, 20, 60, 20}, {2, 130, 5, 32, 0, 0}};

// Documents of length 1, 2, 3, ... in every row of the batch.
std::vector<int32_t> growing_documents(int B, int T_len) {
    std::vector<int32_t> doc_start;
    for (int b = 0; b < B; ++b) {
        for (int start = 0, length = 1; start < T_len; start += length++) {
            for (int t = start; t < std::min(T_len, start + length); ++t) doc_start.push_back(start);
        }
    }
    return doc_start;
}

template <class T>
std::vector<double> rotated(const Shape& s, const std::vector<double>& x, const std::vector<float>& table,
                            const std::vector<int32_t>& doc_start, bool backward, ThreadPool& pool) {
    const size_t rows = static_cast<size_t>(s.B) * s.T_len;
    Guarded<T> m(rows, static_cast<size_t>(s.heads) * s.HD, s.ld, s.first);
    m.set(x);
    ref::rotary(Rotary<T>{.x = m.data(),
                          .table = table.data(),
                          .doc_start = doc_start.empty() ? nullptr : doc_start.data(),
                          .rows = rows,
                          .T_len = s.T_len,
                          .heads = s.heads,
                          .HD = s.HD,
                          .ld_x = m.ld(),
                          .backward = backward},
                pool);
    CHECK(m.surroundings_untouched());
    return m.doubles();
}

// Element i of the first half and i of the second are the parts of one complex number.
std::vector<double> rotated_as_complex_numbers(const Shape& s, const std::vector<double>& x, double theta,
                                               const std::vector<int32_t>& doc_start) {
    std::vector<double> y(x.size());
    const size_t head_elems = static_cast<size_t>(s.HD), half = head_elems / 2;
    for (size_t at = 0; at < x.size(); at += head_elems) {
        const size_t row = at / (static_cast<size_t>(s.heads) * s.HD);
        const size_t position = row % s.T_len - (doc_start.empty() ? 0 : doc_start[row]);
        for (size_t i = 0; i < half; ++i) {
            const double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / s.HD);
            const std::complex<double> turned = std::complex<double>(x[at + i], x[at + half + i]) *
                                                std::polar(1.0, static_cast<double>(position) * frequency);
            y[at + i] = turned.real();
            y[at + half + i] = turned.imag();
        }
    }
    return y;
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("rotary turns pairs by position times frequency, and backward turns them back") {
        ThreadPool pool(1);
        for (const Shape& s : kShapes) {
            const std::vector<float> table = rotary_table(s.T_len, s.HD, 10000, {});
            const size_t n = static_cast<size_t>(s.B) * s.T_len * s.heads * s.HD;
            std::vector<double> x = random_values(n, 1);
            const std::vector<double> dy = random_values(n, 2);
            for (const std::vector<int32_t>& doc_start : {std::vector<int32_t>{}, growing_documents(s.B, s.T_len)}) {
                const std::vector<double> y = rotated<double>(s, x, table, doc_start, false, pool);
                // the table is float32: angles up to 130 are off by up to 1e-5
                CHECK(norm_error(y, rotated_as_complex_numbers(s, x, 10000, doc_start)) < 1e-5);
                CHECK(norm_error(rotated<double>(s, y, table, doc_start, true, pool), x) < 3e-7);
                CHECK(norm_error(rotated<float>(s, x, table, doc_start, false, pool), y) < 3e-7);
                const std::vector<double> dx = rotated<double>(s, dy, table, doc_start, true, pool);
                const auto loss = [&] { return dot(rotated<double>(s, x, table, doc_start, false, pool), dy); };
                CHECK(gradient_error(x, dx, loss, 12) < 1e-8);
            }
        }
    }

    TEST_CASE("rotary table: PyTorch's cosines and sines, plain and with llama3 scaling") {
        // 1 / theta ** (arange(0, HD, 2).float() / HD), scaled as transformers does, times a float position
        const auto check = [](int position, int HD, float theta, const RotaryScalingParams& scaling,
                              const std::vector<double>& cosines, const std::vector<double>& sines) {
            const std::vector<float> table = rotary_table(position + 1, HD, theta, scaling);
            REQUIRE(table.size() == static_cast<size_t>(position + 1) * HD);
            for (size_t i = 0; i < cosines.size(); ++i) {
                const float* entry = &table[(static_cast<size_t>(position) * HD / 2 + i) * 2];
                CHECK(std::abs(entry[0] - cosines[i]) < 1e-6);
                CHECK(std::abs(entry[1] - sines[i]) < 1e-6);
            }
        };
        check(777, 20, 10000, {},
              {-0.517718196, 0.117320895, -0.811496019, 0.324698597, 0.785185337, 0.0838829651, -0.998833716,
               0.332859337, 0.882213354, 0.981014013},
              {-0.855551183, 0.993094027, -0.584357917, -0.94581753, 0.619260848, 0.996475637, 0.0482821167,
               0.942976475, 0.470849842, 0.19393687});
        // wavelengths below 8 are kept, above 32 divided by 4: the second one, 15.8, is in between
        check(100, 20, 10000,
              {.llama3 = true,
               .factor = 4,
               .low_freq_factor = 1,
               .high_freq_factor = 4,
               .original_max_position_embeddings = 32},
              {0.862318873, 0.238544613, -0.68175298, -0.00659679947, 0.80922085, 0.968912423, 0.995051265, 0.999215126,
               0.999875605, 0.999980271},
              {-0.506365657, 0.971131563, -0.731582403, 0.999978244, 0.587504566, 0.247403964, 0.0993625298,
               0.0396119654, 0.0157732796, 0.00627967622});
    }

    TEST_CASE("rotary: bits do not depend on the number of threads, and a stream computes the reference's") {
        const Shape s{3, 130, 5, 20, 120, 10};
        const std::vector<float> table = rotary_table(s.T_len, s.HD, 10000, {});
        const std::vector<double> x = random_values(static_cast<size_t>(s.B) * s.T_len * s.heads * s.HD, 3);
        const std::vector<int32_t> doc_start = growing_documents(s.B, s.T_len);
        CHECK(same_bits_for_all_pools(
            [&](ThreadPool& pool) { return rotated<float>(s, x, table, doc_start, false, pool); }));
#if !defined(SLABSTREAM_CUDA)
        const size_t rows = static_cast<size_t>(s.B) * s.T_len;
        Guarded<float> m(rows, static_cast<size_t>(s.heads) * s.HD, s.ld, s.first);
        m.set(x);
        Device device({.threads = 2});
        Stream stream(device, "compute");
        rotary({.x = m.data(),
                .table = table.data(),
                .doc_start = doc_start.data(),
                .rows = rows,
                .T_len = s.T_len,
                .heads = s.heads,
                .HD = s.HD,
                .ld_x = m.ld(),
                .backward = true},
               stream);
        stream.synchronize();
        ThreadPool pool(1);
        CHECK(same_bits(m.doubles(), rotated<float>(s, x, table, doc_start, true, pool)));
#endif
    }
}
