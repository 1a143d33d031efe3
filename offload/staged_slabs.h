// Pageable slabs on their way to the device, through a small page-locked ring of chunks.
//
// For machines that refuse to lock all slabs: an asynchronous copy out of pageable memory would hold the host up and
// overlap with nothing. Host functions on a stream of their own move a slab into the ring, chunk by chunk. The transfer
// stream copies each chunk out as soon as it is there. So filling one chunk overlaps with copying another, and with the
// wait for a slot to be let go. Invariants: the host never blocks; after enqueue() the order of the transfer stream
// alone implies arrival; a chunk is overwritten only after its copy out.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "kernels/runtime/runtime.h"

namespace slab::offload {

class StagedSlabs {
  public:
    // disturb: tests only, called before each chunk is filled, to inject delays. Throws PinnedLimit when not even the
    // ring can be locked.
    StagedSlabs(Device& device, size_t chunk_bytes, std::function<void(Stream&)> disturb = {});

    // src: host memory [bytes] that does not change until the copy has landed. dst: device memory [bytes].
    void enqueue(const std::byte* src, std::byte* dst, size_t bytes, Stream& transfer);

    size_t ring_bytes() const { return ring_.bytes(); }
    static size_t ring_bytes_of(size_t chunk_bytes) { return kChunks * chunk_bytes; }

  private:
    static constexpr size_t kChunks = 3;  // one being filled, one being copied, one to spare

    size_t chunk_bytes_;
    std::function<void(Stream&)> disturb_;
    PinnedBuffer ring_;           // [kChunks][chunk_bytes]
    std::vector<Event> filled_;   // [kChunks] recorded on the staging stream
    std::vector<Event> drained_;  // [kChunks] recorded on the transfer stream
    size_t next_ = 0;             // chunk to fill next
    Stream staging_;              // goes first: it waits for its host functions
};

}  // namespace slab::offload
