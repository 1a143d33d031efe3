// Streams the frozen slabs of decoder layers through a ring of device slots.
//
// The trainer calls begin_layer / end_layer around each block, in any order; the manager decides which slab goes where and when,
// and expresses every ordering as an event wait between two streams. Invariants: the host never blocks in
// begin_layer / end_layer; nothing is allocated after attach; slabs never travel back to the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/runtime.h"
#include "offload/slab_source.h"

namespace slab::offload {

// Device memory of one layer's slab, valid until end_layer. base is null for a layer without a slab (trained in full).
struct LayerView {
    const std::byte* base = nullptr;
    const SlabLayout* layout = nullptr;
};

struct OffloadOptions {
    int num_prefetch = 1;               // P: slabs are fetched at most this many streamed visits ahead
    int num_slots = 2;                  // R: slots in the ring, at least P + 1
    std::vector<int> resident_layers;   // these stay on the device; the rest is streamed
    bool trace = false;                 // keep times per visit and per copy (stats().stall_ms, trace())
    // Tests only: called with each stream before the manager's own work on it, to inject delays.
    std::function<void(Stream&)> disturb;
};

struct OffloadStats {
    uint64_t slabs_in = 0, bytes_in = 0;   // host to device, streamed layers only
    uint64_t slabs_out = 0, bytes_out = 0; // device to host: zero, always; counted so that it can be asserted
    uint64_t hits = 0;      // visits of streamed layers whose slab was in the ring or on its way
    uint64_t misses = 0;    // visits that were not announced
    int peak_slots = 0;     // slots ever holding a slab at once
    double wait_ms = 0;     // compute stood still for the link
    std::vector<double> stall_ms;  // per layer, when tracing
};

class LayerOffloadManager {
 public:
    // Throws std::runtime_error when the options do not fit the source (P < 1, R < P + 1, layers out of range).
    // Nothing is allocated yet.
    LayerOffloadManager(SlabSource& source, OffloadOptions options, Stream& compute, Stream& transfer, Device& device);
    ~LayerOffloadManager();

    // Allocates the ring and the resident layers' memory, loads the resident layers. From here on the other layers are streamed.
    // Throws OutOfBudget and stays detached when the budget does not hold them.
    void attach();
    // Brings every layer back to the device and stops streaming; training goes on with the same bits. Throws OutOfBudget,
    // naming the bytes missing, when the budget does not hold it; streaming then stays attached and correct.
    void detach();
    bool attached() const;

    // The coming visiting order, layer numbers, taken as cyclic; starts at its beginning. Enqueues the first copies.
    void pre_step(const std::vector<int>& visits);
    // Checks that the bytes moved since pre_step are what the schedule says (std::logic_error otherwise).
    void post_step();

    // One visit: at most one layer is open at a time.
    LayerView begin_layer(int layer);
    void end_layer(int layer);

    const OffloadStats& stats();  // since attach or reset_stats; timings of visits whose kernels are not done yet are missing
    void reset_stats();

    int streamed_layers() const;          // N
    size_t slot_bytes() const;            // the largest streamed slab
    size_t ring_bytes() const;            // R slots
    size_t resident_bytes() const;        // slabs of resident layers
    std::string report() const;           // "streams 12 of 16 layers through 3 slots: ..., frees ... of device memory"

    struct TraceBox {
        enum class Kind { visit, copy, wait } kind;
        int layer;
        size_t bytes;  // of a copy
        double start_ms, end_ms;  // since the trace began
    };
    // Boxes of all visits and copies since tracing was switched on; synchronises both streams.
    void set_trace(bool on);
    std::vector<TraceBox> trace();

 private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace slab::offload
