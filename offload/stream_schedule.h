// Which slab goes into which slot, and when: the policy of the ring, without streams, memory or time.
//
// The coming visits are known, so both decisions are made with the future in view. At the beginning of a visit the
// slabs of the next P streamed visits are loaded, where the ring lacks them. Each takes the slot whose next use is
// farthest away. No schedule with this prefetch needs fewer loads. Invariants: a slot is never taken between begin and
// let_go of its visit. Nothing is loaded for a visit more than P streamed visits ahead. A copy of the object goes on
// exactly as the original would; the manager's bookkeeping is checked with one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "offload/ring_plan.h"

namespace slab::offload {

struct SlabLoad {
    int layer;
    int slot;
    bool operator==(const SlabLoad&) const = default;
};

class StreamSchedule {
  public:
    StreamSchedule() = default;

    // The ring is empty and no order is announced.
    explicit StreamSchedule(const RingPlan& plan);

    // Starts a cyclic visiting order at its beginning, with the ring as it is. Returns the loads of the first P
    // streamed visits, in order; the reference is good until the next call.
    const std::vector<SlabLoad>& start(std::vector<int> visits);

    struct Visit {
        bool announced;                      // the next one of the order; only these advance it
        bool in_ring;                        // the slab was there, or on its way
        int slot;                            // -1: a layer that is not streamed
        const std::vector<SlabLoad>& loads;  // to enqueue now, in this order; good until the next call
    };
    // One visit at a time (std::logic_error otherwise). From let_go on the visit's slot may be taken, which happens at
    // the next begin or start; end lets it go where the caller has not.
    Visit begin(int layer);
    void let_go(int layer);
    void end(int layer);

    // The slot's slab is not there after all (its load failed).
    void forget(int slot) { ring_[slot] = kEmpty; }

    int layers() const { return static_cast<int>(streamed_.size()); }
    int streamed_layers() const { return num_streamed_; }         // N
    int slots() const { return static_cast<int>(ring_.size()); }  // min(R, N)
    bool streamed(int layer) const { return streamed_[layer]; }
    int open_layer() const { return open_layer_; }          // -1 when none is open
    int open_slot() const { return open_slot_; }            // -1 likewise, when not streamed, and after let_go
    const std::vector<int>& ring() const { return ring_; }  // [slots] layer in each slot, -1 when empty
    int slots_in_use() const;

  private:
    static constexpr int kEmpty = -1;

    int slot_of(int layer) const;  // -1 when not in the ring
    void load(int layer);
    void keep_window();
    int victim() const;

    std::vector<bool> streamed_;      // [L]
    std::vector<int> ring_;           // [slots]
    std::vector<uint64_t> last_use_;  // [slots] number of the last visit there; breaks ties, oldest first
    std::vector<int> visits_;         // cyclic
    std::vector<int> window_;         // layers of the coming P streamed visits
    std::vector<SlabLoad> loads_;     // of the latest call
    size_t next_ = 0;                 // position in visits_ of the next announced visit
    uint64_t visit_count_ = 0;
    int num_prefetch_ = 1, num_streamed_ = 0;
    int open_layer_ = -1, open_slot_ = -1;
    bool let_go_ = false;  // the open visit's slot
};

// What a schedule would do, visit by visit. Works on a copy: the caller's schedule stays where it is.
struct SimulatedVisit {
    int layer;
    int slot;  // -1: not streamed
    std::vector<SlabLoad> loads;
};
struct Simulation {
    std::vector<SlabLoad> at_start;  // before the first visit
    std::vector<SimulatedVisit> visits;
    StreamSchedule after;  // the state this ends in

    size_t loads() const;                                            // slabs
    size_t load_bytes(const std::vector<size_t>& slab_bytes) const;  // slab_bytes [L]
};
// order: as announced. made: the visits as they come, announced or not.
Simulation simulate(StreamSchedule schedule, const std::vector<int>& order, const std::vector<int>& made);

// Times of one round of a visiting order.
struct VisitTimes {
    std::vector<double> visit_ms;  // [visits] kernels of each visit
    std::vector<double> then_ms;   // [visits] other work on the compute stream after it (head, optimizer); empty: none
    std::vector<double> copy_ms;   // [L] the copy of each layer's slab
    // [L] its decoding into the work slab, or 0 for a layer without a slab; empty: slabs are not encoded.
    std::vector<double> decode_ms = {};
};
// Length of each of `rounds` rounds of the order, one after another: two streams in first-in-first-out order, copies
// waiting for `free`, visits for `ready`, the host ahead of both. A slot is free after its visit or, with decoding,
// after that; a layer that the work slab still holds is neither waited for nor decoded. The last round of three or more
// is the steady state.
std::vector<double> round_ms(StreamSchedule schedule, const std::vector<int>& order, const VisitTimes& times,
                             int rounds);

// A lower bound of a streamed training pass, with N layers streamed through R slots, each slab copied in c.
//
// Without decoding, the next copy at each turn has to wait until a slot is let go. The last copy must have landed
// before the last visit begins.
//
//   max(N f, (N-R) c + f_first + f_last) + head + max(N b, (N-R) c + b_last + b_first) + optimizer
//
// With decoding in d, slots are let go before their visits, and the turns skip one decoding each. So the link works on
// through head and optimizer. The first copy after a turn can start at once, the second one after the next decoding.
// The floor is the sum of two parts, each from the last decoding before one turn to that before the other.
//
//   forward:   max((N-R) c + d, b_last + optimizer + max(f_first + (N-R-1) c + 2 d, N f - f_last + (N-1) d))
//   backward:  max((N-R) c + d, f_last + head + max(b_first + (N-R-1) c + 2 d, N b - b_last + (N-1) d))
//
// Resident layers must lie between streamed ones for it; their visits and decodings are part of N f and (N-1) d.
struct PassTimes {
    double forward_ms, forward_first_ms, forward_last_ms;     // all visits, the first, the last streamed one
    double backward_ms, backward_first_ms, backward_last_ms;  // likewise
    double copy_ms;                                           // c, of one slab
    double head_ms = 0, optimizer_ms = 0;
    double decode_ms = 0;       // d, of one slab; 0: slabs are not encoded
    double pass_decode_ms = 0;  // of all layers, once: N d when all stream
};
double floor_ms(const PassTimes& times, int streamed_layers, int slots);

}  // namespace slab::offload
