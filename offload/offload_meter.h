// What the manager did: slabs and bytes moved, hits and misses, the time compute stood still, boxes for a trace.
//
// The meter enqueues timed events and nothing else. Without it the manager would stream the same slabs in the same
// order. It never blocks the host but in set_tracing().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/runtime/runtime.h"
#include "offload/offload_trace.h"
#include "offload/slab_source.h"
#include "offload/step_check.h"

namespace slab::offload {

struct OffloadStats {
    uint64_t slabs_in = 0, bytes_in = 0;    // host to device, into the ring
    uint64_t slabs_out = 0, bytes_out = 0;  // device to host: zero, always; counted so that it can be asserted
    uint64_t hits = 0;                      // announced visits whose slab was in the ring or on its way
    // The other visits of streamed layers: not announced, or announced and not in the ring because its load had failed.
    uint64_t misses = 0;
    uint64_t decodes = 0;          // of slabs into the work slab; visits that found it there are not counted
    int peak_slots = 0;            // slots ever holding a slab at once
    double wait_ms = 0;            // compute stood still for the link
    std::vector<double> stall_ms;  // [L] the same per layer
    uint64_t untimed = 0;          // waits and boxes left without a time: every pair of timed events was under way
};

class OffloadMeter {
  public:
    OffloadMeter(Device& device, int layers);

    // Makes the timed events that waits need; enough for a trace of `visits` visits a round while tracing.
    void reserve(size_t visits = 0);
    // Folds in the times of what the device has finished.
    void harvest();

    const OffloadStats& stats() const { return stats_; }  // as of the latest harvest()
    void reset(int slots_in_use);
    const MovedSlabs& moved() const { return moved_; }  // since the meter was made, whatever was reset

    void set_tracing(bool on, Stream& compute);  // blocks; forgets the boxes of the trace before
    const std::vector<TraceBox>& boxes() const { return boxes_; }
    void set_step(int64_t step) { spans_.set_step(step); }

    void count_visit(bool hit) { ++(hit ? stats_.hits : stats_.misses); }
    void count_slots(int in_use);
    // Enqueues the slab from `source`, timed while tracing, and counts what the runtime copied.
    void enqueue(SlabSource& source, int layer, std::byte* slot, Stream& transfer);

    // A span begins when the stream gets here and ends when it gets to close().
    TimedSpans::Span* open_wait(int layer, Stream& compute);
    TimedSpans::Span* open_visit(int layer, Stream& compute);   // null unless tracing
    TimedSpans::Span* open_decode(int layer, Stream& compute);  // likewise; counts the decoding
    static void close(TimedSpans::Span* span, Stream& stream) { TimedSpans::close(span, stream); }

  private:
    Device& device_;
    OffloadStats stats_;
    MovedSlabs moved_;
    TimedSpans spans_;
    uint64_t left_out_before_ = 0;  // spans_.left_out() at the latest reset
    bool tracing_ = false;
    Event trace_start_;
    std::vector<TraceBox> boxes_;
};

// A source as the manager's slots see it: every slab goes through the meter.
class MeteredSource final : public SlabSource {
  public:
    // disturb: tests only, called before each copy, to inject delays.
    MeteredSource(SlabSource& source, OffloadMeter& meter, std::function<void(Stream&)> disturb);
    int layers() const override { return source_.layers(); }
    const SlabLayout& layout(int layer) const override { return source_.layout(layer); }
    size_t stored_bytes(int layer) const override { return source_.stored_bytes(layer); }
    size_t copied_bytes(int layer) const override { return source_.copied_bytes(layer); }
    bool asynchronous(int layer) const override { return source_.asynchronous(layer); }
    void enqueue(int layer, std::byte* slot, Stream& transfer) override;

  private:
    SlabSource& source_;
    OffloadMeter& meter_;
    std::function<void(Stream&)> disturb_;
};

}  // namespace slab::offload
