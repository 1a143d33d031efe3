// Counts are made when work is enqueued, times when the device has finished it.
#include "offload/offload_meter.h"

#include <algorithm>
#include <utility>

namespace slab::offload {

namespace {

// Pairs of timed events: for waits only, and when every visit, copy, wait and decoding is traced. A host that is
// further ahead than this leaves spans out rather than wait.
constexpr size_t kWaitSpans = 1024, kTraceSpans = 4096, kMostTraceSpans = 32768;
constexpr size_t kSpansPerVisit = 4, kRoundsAhead = 8;

}  // namespace

OffloadMeter::OffloadMeter(Device& device, int layers) : device_(device), trace_start_(device, true) {
    stats_.stall_ms.assign(layers, 0);
}

void OffloadMeter::reserve(size_t visits) {
    spans_.reserve(device_, tracing_ ? std::clamp(kRoundsAhead * kSpansPerVisit * visits, kTraceSpans, kMostTraceSpans)
                                     : kWaitSpans);
}

void OffloadMeter::harvest() {
    while (const TimedSpans::Span* span = spans_.take_finished()) {
        if (span->kind == TraceBox::Kind::wait) {
            const double wait_ms = elapsed_ms(span->start, span->end);
            stats_.wait_ms += wait_ms;
            stats_.stall_ms[span->layer] += wait_ms;
        }
        if (tracing_)
            boxes_.push_back({span->kind, span->layer, span->bytes, span->step, elapsed_ms(trace_start_, span->start),
                              elapsed_ms(trace_start_, span->end)});
    }
    stats_.untimed = spans_.left_out() - left_out_before_;
}

void OffloadMeter::reset(int slots_in_use) {
    harvest();
    const size_t layers = stats_.stall_ms.size();
    stats_ = {};
    stats_.stall_ms.assign(layers, 0);
    stats_.peak_slots = slots_in_use;
    left_out_before_ = spans_.left_out();
}

void OffloadMeter::set_tracing(bool on, Stream& compute) {
    tracing_ = on;
    if (!on) return;
    boxes_.clear();
    reserve();
    trace_start_.record(compute);
    trace_start_.synchronize();
}

void OffloadMeter::count_slots(int in_use) {
    stats_.peak_slots = std::max(stats_.peak_slots, in_use);
}

void OffloadMeter::enqueue(SlabSource& source, int layer, std::byte* slot, Stream& transfer) {
    TimedSpans::Span* span =
        tracing_ ? spans_.open(TraceBox::Kind::copy, layer, source.copied_bytes(layer), transfer) : nullptr;
    const Traffic before = device_.traffic();
    try {
        source.enqueue(layer, slot, transfer);
    } catch (...) {
        TimedSpans::close(span, transfer);
        throw;
    }
    const Traffic after = device_.traffic();
    TimedSpans::close(span, transfer);
    // What the runtime copied, not what the source says: StepCheck compares the two.
    const uint64_t bytes_in = after.host_to_device_bytes - before.host_to_device_bytes;
    const uint64_t bytes_out = after.device_to_host_bytes - before.device_to_host_bytes;
    ++stats_.slabs_in;
    ++moved_.slabs;
    stats_.bytes_in += bytes_in;
    moved_.bytes += bytes_in;
    stats_.slabs_out += bytes_out != 0;
    stats_.bytes_out += bytes_out;
}

TimedSpans::Span* OffloadMeter::open_wait(int layer, Stream& compute) {
    return spans_.open(TraceBox::Kind::wait, layer, 0, compute);
}

TimedSpans::Span* OffloadMeter::open_visit(int layer, Stream& compute) {
    return tracing_ ? spans_.open(TraceBox::Kind::visit, layer, 0, compute) : nullptr;
}

TimedSpans::Span* OffloadMeter::open_decode(int layer, Stream& compute) {
    ++stats_.decodes;
    return tracing_ ? spans_.open(TraceBox::Kind::decode, layer, 0, compute) : nullptr;
}

MeteredSource::MeteredSource(SlabSource& source, OffloadMeter& meter, std::function<void(Stream&)> disturb)
    : source_(source), meter_(meter), disturb_(std::move(disturb)) {}

void MeteredSource::enqueue(int layer, std::byte* slot, Stream& transfer) {
    if (disturb_) disturb_(transfer);
    meter_.enqueue(source_, layer, slot, transfer);
}

}  // namespace slab::offload
