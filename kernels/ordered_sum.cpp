// Each element is a sum of its own, so tiles of elements may go to any thread.
#include "kernels/ordered_sum.h"

#include <atomic>
#include <cstring>

namespace slab {
namespace ref {

template <class Number>
void add_in_order(const AddInOrder<Number>& a, ThreadPool& pool) {
    constexpr size_t kTileElems = size_t{16} << 10;
    if (a.count == 0) return;
    pool.parallel_ranges(a.n, kTileElems, [&](size_t begin, size_t end) {
        const size_t n = end - begin;
        Number* const sum = a.sum + begin;
        int first = 0;
        if (!a.accumulate) std::memcpy(sum, a.terms + begin, n * sizeof(Number)), first = 1;
        for (int t = first; t < a.count; ++t) {
            const Number* const term = a.terms + static_cast<size_t>(t) * a.stride + begin;
            for (size_t i = 0; i < n; ++i) sum[i] += term[i];
        }
    });
}

template void add_in_order(const AddInOrder<float>&, ThreadPool&);
template void add_in_order(const AddInOrder<double>&, ThreadPool&);

void digest_numbers(uint64_t* digest, const float* numbers, size_t n, ThreadPool& pool) {
    constexpr size_t kTileElems = size_t{64} << 10;
    std::atomic<uint64_t> sum{0};
    pool.parallel_ranges(n, kTileElems, [&](size_t begin, size_t end) {
        uint64_t mine = 0;
        for (size_t i = begin; i < end; ++i) {
            uint32_t bits;
            std::memcpy(&bits, numbers + i, sizeof bits);
            mine += digest_term(bits, i);
        }
        sum.fetch_add(mine, std::memory_order_relaxed);
    });
    *digest = sum;
}

}  // namespace ref

#if !defined(SLABSTREAM_CUDA)
void add_in_order(const AddInOrder<float>& a, Stream& stream) {
    stream.enqueue("add_in_order", [a](ThreadPool& pool) { ref::add_in_order(a, pool); });
}

void add_in_order(const AddInOrder<double>& a, Stream& stream) {
    stream.enqueue("add_in_order", [a](ThreadPool& pool) { ref::add_in_order(a, pool); });
}

void digest_numbers(uint64_t* digest, const float* numbers, size_t n, Stream& stream) {
    stream.enqueue("digest_numbers", [=](ThreadPool& pool) { ref::digest_numbers(digest, numbers, n, pool); });
}
#endif

}  // namespace slab
