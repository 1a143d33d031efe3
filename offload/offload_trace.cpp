// Pairs of timed events going round: idle, under way in the order they were opened, idle again.
#include "offload/offload_trace.h"

#include <utility>

namespace slab::offload {

void TimedSpans::reserve(Device& device, size_t spans) {
    const size_t had = under_way_.size();
    if (spans <= had) return;
    std::vector<Span>& block = blocks_.emplace_back();
    block.reserve(spans - had);
    idle_.reserve(spans);
    for (size_t i = had; i < spans; ++i) {
        block.push_back({Event(device, true), Event(device, true)});
        idle_.push_back(&block.back());
    }
    std::vector<Span*> longer(spans);
    for (size_t i = 0; i < count_; ++i) longer[i] = under_way_[(first_ + i) % had];
    under_way_ = std::move(longer);
    first_ = 0;
}

TimedSpans::Span* TimedSpans::open(TraceBox::Kind kind, int layer, size_t bytes, Stream& stream) {
    if (idle_.empty()) {
        ++left_out_;
        return nullptr;
    }
    Span* span = idle_.back();
    idle_.pop_back();
    under_way_[(first_ + count_++) % under_way_.size()] = span;
    span->kind = kind;
    span->layer = layer;
    span->bytes = bytes;
    span->step = step_;
    span->closed = false;
    span->start.record(stream);
    return span;
}

void TimedSpans::close(Span* span, Stream& stream) {
    if (span == nullptr) return;
    span->end.record(stream);
    span->closed = true;
}

const TimedSpans::Span* TimedSpans::take_finished() {
    if (count_ == 0) return nullptr;
    Span* span = under_way_[first_];
    if (!span->closed || !span->end.complete()) return nullptr;
    first_ = (first_ + 1) % under_way_.size();
    --count_;
    idle_.push_back(span);
    return span;
}

}  // namespace slab::offload
