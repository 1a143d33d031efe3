// Streams the frozen slabs of decoder layers through a ring of device slots.
//
// The trainer calls begin_layer / end_layer around each block, in any order; the manager decides which slab goes where
// and when, and expresses every ordering as an event wait between two streams. Invariants: the host never blocks in
// begin_layer / end_layer; nothing is allocated on the device after attach; slabs never travel back to the host. Used
// by one host thread at a time. Calls out of turn (begin twice, end of another layer) throw std::logic_error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/runtime/runtime.h"
#include "offload/offload_trace.h"
#include "offload/slab_source.h"

namespace slab::offload {

// Device memory of one layer's slab, valid until end_layer. base is null for a layer without a slab (trained in full).
struct LayerView {
    const std::byte* base = nullptr;
    const SlabLayout* layout = nullptr;
};

struct OffloadOptions {
    int num_prefetch = 1;  // P: slabs are fetched at most this many streamed visits ahead
    int num_slots = 2;     // R: slots in the ring, at least P + 1; never more are made than layers stream
    std::vector<int> resident_layers = {};  // these stay on the device; the rest is streamed
    bool trace = false;                     // as set_trace(true) in attach()
    // Tests only: called with each stream before the manager's own work on it, to inject delays.
    std::function<void(Stream&)> disturb = {};
};

struct OffloadStats {
    uint64_t slabs_in = 0, bytes_in = 0;    // host to device, into the ring
    uint64_t slabs_out = 0, bytes_out = 0;  // device to host: zero, always; counted so that it can be asserted
    uint64_t hits = 0;                      // announced visits that found their slab in the ring or on its way
    uint64_t misses = 0;                    // visits of streamed layers that were not announced
    int peak_slots = 0;                     // slots ever holding a slab at once
    double wait_ms = 0;                     // compute stood still for the link
    std::vector<double> stall_ms;           // [L] the same per layer
    uint64_t untimed = 0;  // waits and boxes without a time: every pair of timed events was under way (never blocks)
};

class LayerOffloadManager {
  public:
    // Throws std::runtime_error when the options do not fit the source (P < 1, R < P + 1, layers out of range).
    // Nothing is allocated yet. Source, streams and device must outlive the manager.
    LayerOffloadManager(SlabSource& source, OffloadOptions options, Stream& compute, Stream& transfer, Device& device);
    ~LayerOffloadManager();

    // Allocates the ring and the resident layers' memory, loads the resident layers. From here on the other layers are
    // streamed, through a ring that is empty and an order that is yet to be announced. Throws OutOfBudget when the
    // budget does not hold them; all is then as it was before.
    void attach();
    // Brings every layer back to the device and stops streaming; training goes on with the same bits. Ring and layers
    // lie side by side for a moment. Throws OutOfBudget, naming the bytes missing, when the budget does not hold that;
    // streaming then stays attached and correct.
    void detach();
    bool attached() const;

    // The coming visiting order, layer numbers, taken as cyclic; starts at its beginning. Enqueues the first copies.
    void pre_step(const std::vector<int>& visits);
    // Checks that the bytes moved since pre_step are what the schedule says (std::logic_error otherwise).
    void post_step();

    // One visit: at most one layer is open at a time.
    LayerView begin_layer(int layer);
    void end_layer(int layer);

    // Since attach or reset_stats. Times of visits whose kernels are not done yet come later.
    const OffloadStats& stats();
    void reset_stats();

    int streamed_layers() const;    // N
    int slots() const;              // min(R, N)
    size_t slot_bytes() const;      // the largest streamed slab
    size_t ring_bytes() const;      // slots() * slot_bytes()
    size_t streamed_bytes() const;  // slabs of streamed layers
    size_t resident_bytes() const;  // slabs of resident layers
    // "streams 12 of 16 layers through 3 slots of 201 MiB (prefetch 1), ..., frees 1.77 GiB of device memory".
    std::string report() const;

    using TraceBox = offload::TraceBox;
    // Boxes of all visits, copies and waits since tracing was switched on; both calls synchronise both streams.
    void set_trace(bool on);
    std::vector<TraceBox> trace();
    // What is enqueued from here on belongs to this step, as its boxes will say; 0: to none.
    void set_trace_step(int64_t step);

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace slab::offload
