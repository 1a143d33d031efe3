// The ring's protocol: two events per chunk, each with one meaning, on two streams. tests/mutation_test.sh removes each
// marked wait and shows the tests failing.
#include "offload/staged_slabs.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace slab::offload {

namespace {

constexpr size_t kTileBytes = size_t{1} << 20;

// On a GPU the pool has nothing else to do while training, and one thread alone is slower than the link. On the CPU
// backend the pool belongs to the kernels of the compute stream: sharing it would order two streams by accident.
void copy_on_host(std::byte* to, const std::byte* from, size_t bytes, Stream& stream) {
    if constexpr (kBackend == Backend::cuda) {
        stream.enqueue("stage", [=](ThreadPool& pool) {
            pool.parallel_ranges(bytes, kTileBytes,
                                 [=](size_t begin, size_t end) { std::memcpy(to + begin, from + begin, end - begin); });
        });
    } else {
        stream.host_function("stage", [=] { std::memcpy(to, from, bytes); });
    }
}

}  // namespace

StagedSlabs::StagedSlabs(Device& device, size_t chunk_bytes, std::function<void(Stream&)> disturb)
    : chunk_bytes_(chunk_bytes),
      disturb_(std::move(disturb)),
      ring_(device, ring_bytes_of(chunk_bytes), "staging ring of slabs"),
      staging_(device, "staging") {
    if (chunk_bytes == 0) throw std::invalid_argument("staged slabs: chunks of 0 bytes; wanted more");
    for (size_t i = 0; i < kChunks; ++i) {
        filled_.emplace_back(device);
        drained_.emplace_back(device);
    }
}

void StagedSlabs::enqueue(const std::byte* src, std::byte* dst, size_t bytes, Stream& transfer) {
    for (size_t at = 0; at < bytes; at += chunk_bytes_) {
        const size_t part_bytes = std::min(chunk_bytes_, bytes - at);
        std::byte* const chunk = ring_.data() + next_ * chunk_bytes_;
        if (drained_[next_].recorded()) staging_.wait(drained_[next_]);  // guard: DRAINED
        if (disturb_) disturb_(staging_);
        copy_on_host(chunk, src + at, part_bytes, staging_);
        filled_[next_].record(staging_);
        transfer.wait(filled_[next_]);  // guard: FILLED
        copy_async(dst + at, chunk, part_bytes, CopyKind::host_to_device, transfer);
        drained_[next_].record(transfer);
        next_ = (next_ + 1) % kChunks;
    }
}

}  // namespace slab::offload
