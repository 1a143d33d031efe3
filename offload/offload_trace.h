// Times of visits, copies and waits, measured on the device without ever stopping the host.
//
// A span is a pair of timed events around a piece of work. All pairs are made in reserve() and go round: a pair is used
// again once its second event has been reached. The slots' `ready` and `free` events are others, which carry the
// protocol and are not timed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/runtime/runtime.h"

namespace slab::offload {

struct TraceBox {
    enum class Kind { visit, copy, wait, decode } kind;
    int layer;
    size_t bytes;             // of a copy
    int64_t step;             // the trainer's step that it was enqueued in; 0: none
    double start_ms, end_ms;  // since the trace began
};

class TimedSpans {
  public:
    struct Span {
        Event start, end;
        TraceBox::Kind kind = TraceBox::Kind::visit;
        int layer = 0;
        size_t bytes = 0;
        int64_t step = 0;
        bool closed = false;
    };

    // Makes pairs until there are `spans`; the only call that allocates.
    void reserve(Device& device, size_t spans);

    // The number that spans opened from here on carry.
    void set_step(int64_t step) { step_ = step; }

    // Records the first event; returns the span, or nullptr when every pair is under way, which is counted in
    // left_out().
    Span* open(TraceBox::Kind kind, int layer, size_t bytes, Stream& stream);
    // Records the second event. A null span is one that was left out.
    static void close(Span* span, Stream& stream);

    // The oldest span if the device has finished it, else nullptr; good until the next call. Never blocks.
    const Span* take_finished();

    uint64_t left_out() const { return left_out_; }

  private:
    std::vector<std::vector<Span>> blocks_;  // one per reserve(): pointers to spans stay valid
    std::vector<Span*> idle_;
    std::vector<Span*> under_way_;  // circular, as long as there are spans; in the order of open()
    size_t first_ = 0, count_ = 0;
    uint64_t left_out_ = 0;
    int64_t step_ = 0;
};

}  // namespace slab::offload
