// Streams the frozen slabs of decoder layers through a ring of device slots.
//
// The trainer calls begin_layer / end_layer around each block, in any order. The manager decides which slab goes where
// and when. It expresses every ordering as an event wait between two streams. Invariants: the host never blocks in
// begin_layer / end_layer; nothing is allocated on the device after attach; slabs never travel back to the host. Used
// by one host thread at a time. Calls out of turn (begin twice, end of another layer) throw std::logic_error.
//
// With a decoder, slabs are encoded in host memory, slots and resident layers. begin_layer decodes the layer into the
// one work slab, and its slot is free from there on. At the turns between forward and backward the work slab still
// holds the layer; then it is neither waited for nor decoded again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/runtime/runtime.h"
#include "offload/offload_meter.h"
#include "offload/ring_plan.h"
#include "offload/ring_slot.h"
#include "offload/slab_decoder.h"
#include "offload/slab_source.h"
#include "offload/step_check.h"
#include "offload/stream_schedule.h"

namespace slab::offload {

// Device memory of one layer's slab as blocks read it, valid until end_layer. base is null for a layer without a slab
// (trained in full).
struct LayerView {
    const std::byte* base = nullptr;
    const SlabLayout* layout = nullptr;
};

struct OffloadOptions {
    bool trace = false;  // as set_trace(true) in attach()
    // Tests only: called with each stream before the manager's own work on it, to inject delays.
    std::function<void(Stream&)> disturb = {};
};

class LayerOffloadManager {
  public:
    // Throws std::invalid_argument when the plan does not fit the source: other layers or sizes, or a streamed layer
    // that the source cannot copy without blocking the host. Nothing is allocated yet. Source, streams, device and
    // decoder must outlive the manager. decoder: null when the source's slabs are as blocks read them.
    LayerOffloadManager(SlabSource& source, RingPlan plan, Stream& compute, Stream& transfer, Device& device,
                        OffloadOptions options = {}, SlabDecoder* decoder = nullptr);
    ~LayerOffloadManager();
    LayerOffloadManager(const LayerOffloadManager&) = delete;
    LayerOffloadManager& operator=(const LayerOffloadManager&) = delete;

    // Allocates the ring, the work slab and the resident layers' memory, loads the resident layers. From here on the
    // other layers are streamed, through a ring that is empty and an order that is yet to be announced. Throws
    // OutOfBudget when the budget does not hold them; all is then as it was before.
    void attach();
    // Brings every layer back to the device and stops streaming; training goes on with the same bits. Ring and layers
    // lie side by side for a moment. Throws OutOfBudget, naming the bytes missing, when the budget does not hold that;
    // streaming then stays attached and correct.
    void detach();
    bool attached() const { return mode_ == Mode::streaming; }

    // The coming visiting order, layer numbers, taken as cyclic; starts at its beginning. Enqueues the first copies.
    void pre_step(const std::vector<int>& visits);
    // Checks that the bytes moved since pre_step are what the schedule says (std::logic_error otherwise).
    void post_step();

    // One visit: at most one layer is open at a time.
    LayerView begin_layer(int layer);
    void end_layer(int layer);

    const RingPlan& plan() const { return plan_; }
    // The largest decoded layer, allocated with the first attach() and kept; 0 without a decoder.
    size_t work_slab_bytes() const { return work_slab_bytes_; }
    std::string report() const { return plan_.report(); }

    // Since attach or reset_stats. Times of visits whose kernels are not done yet come later.
    const OffloadStats& stats();
    void reset_stats();

    using TraceBox = offload::TraceBox;
    // Boxes of all visits, copies and waits since tracing was switched on; both calls synchronise both streams.
    void set_trace(bool on);
    std::vector<TraceBox> trace();
    // Work enqueued from here on belongs to this step, as its boxes will say; 0: to none.
    void set_trace_step(int64_t step) { meter_.set_step(step); }

  private:
    // unloaded: before the first attach(). resident: after detach().
    enum class Mode { unloaded, streaming, resident };

    int layers() const { return plan_.layers(); }
    int open_layer() const { return attached() ? schedule_.open_layer() : detached_open_layer_; }
    void require_closed(const char* call) const;
    void require_loaded(const char* call) const;
    void require_layer(const char* call, int layer) const;
    void disturb(Stream& stream) const;
    std::string synchronize_both() noexcept;
    std::vector<DeviceBuffer> load(bool streamed);
    void fill(const std::vector<SlabLoad>& loads);
    void await(int slot, int layer);
    void let_go(int layer);
    const std::byte* decode(int layer, const std::byte* encoded, int slot);

    SlabSource& source_;
    const RingPlan plan_;
    Stream& compute_;
    Stream& transfer_;
    Device& device_;
    const OffloadOptions options_;
    SlabDecoder* const decoder_;
    const size_t work_slab_bytes_;
    OffloadMeter meter_;
    MeteredSource metered_;

    Mode mode_ = Mode::unloaded;
    StreamSchedule schedule_;
    StepCheck check_;
    DeviceBuffer ring_;                      // [slots][slot_bytes]
    std::vector<RingSlot> slots_;            // [slots], over ring_
    std::vector<DeviceBuffer> layer_slabs_;  // [L] of the layers on the device for good, or while detached
    DeviceBuffer work_slab_;                 // with a decoder: the layer decoded last
    int decoded_layer_ = -1;                 // which; -1: none
    int detached_open_layer_ = -1;           // the open visit when nothing streams
    TimedSpans::Span* visit_span_ = nullptr;
};

}  // namespace slab::offload
