// Which layers stream, and through what ring: made and validated once, read by all who must agree on it.
//
// The memory plan takes the ring's size from it. The host store keeps slabs for the layers that it streams. The
// schedule and the manager execute it, and checks replay it. Invariant: slots() <= streamed_layers().
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace slab::offload {

struct RingOptions {
    int num_prefetch = 1;                   // P: slabs are fetched at most this many streamed visits ahead
    int num_slots = 2;                      // R: at least least_slots(P)
    std::vector<int> resident_layers = {};  // these stay on the device; the others are streamed
};

// One slot is read while P others fill.
constexpr int least_slots(int num_prefetch) {
    return num_prefetch + 1;
}

class RingPlan {
  public:
    RingPlan() = default;  // of no layers

    // stored_bytes [L]: of each layer's slab in a slot; 0: the layer has no slab (trained in full) and never streams.
    // Throws std::invalid_argument when P < 1, R < least_slots(P) or a resident layer does not exist.
    RingPlan(std::vector<size_t> stored_bytes, const RingOptions& options);

    int layers() const { return static_cast<int>(stored_bytes_.size()); }       // L
    bool streams(int layer) const { return streams_[layer]; }                   // layer < L
    const std::vector<int>& streamed() const { return streamed_; }              // [N] layers, ascending
    int streamed_layers() const { return static_cast<int>(streamed_.size()); }  // N
    int prefetch() const { return prefetch_; }                                  // P
    int slots_asked() const { return slots_asked_; }                            // R as given
    int slots() const { return slots_; }                                        // R: min(slots_asked, N)
    size_t stored_bytes(int layer) const { return stored_bytes_[layer]; }       // layer < L
    size_t slot_bytes() const { return slot_bytes_; }                           // the largest streamed slab
    size_t ring_bytes() const { return slots_ * slot_bytes_; }
    size_t streamed_bytes() const { return streamed_bytes_; }  // slabs of streamed layers
    size_t resident_bytes() const { return resident_bytes_; }  // slabs of the others

    // "streams 12 of 16 layers through 3 slots of 201 MiB (prefetch 1), ..., frees 1.77 GiB of device memory".
    std::string report() const;

  private:
    std::vector<size_t> stored_bytes_;  // [L]
    std::vector<bool> streams_;         // [L]
    std::vector<int> streamed_;         // [N]
    int prefetch_ = 1, slots_asked_ = 2, slots_ = 0;
    size_t slot_bytes_ = 0, streamed_bytes_ = 0, resident_bytes_ = 0;
};

}  // namespace slab::offload
