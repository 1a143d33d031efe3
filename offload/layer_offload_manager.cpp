// Executes a StreamSchedule with two streams and, for each slot, two events.
//
//   transfer: wait free[slot]   copy slab -> slot   record ready[slot]
//   compute:  wait ready[slot]  the visit's kernels  record free[slot]
//
// `ready` means the copy has landed and nothing else, `free` that the last reader is done, backward included. A wait
// takes the latest record at the moment it is enqueued; since slots are given away only between visits, that record is
// the one of the slab, or of the reader, in question. The two waits are what stands between this and silently wrong
// numbers: the switches SLABSTREAM_DROP_READY_WAIT and SLABSTREAM_DROP_FREE_WAIT remove one each, for the test of the
// tests.
#include "offload/layer_offload_manager.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <utility>

#include "offload/stream_schedule.h"

namespace slab::offload {

namespace {

// Pairs of timed events: for waits only, and when every visit, copy and wait is traced. A host that is further ahead
// than this leaves spans out rather than wait.
constexpr size_t kWaitSpans = 1024, kTraceSpans = 4096, kMostTraceSpans = 32768;
constexpr size_t kSpansPerVisit = 3, kRoundsAhead = 8;

std::string layer_text(int layer) {
    return "layer " + std::to_string(layer);
}

}  // namespace

struct LayerOffloadManager::State {
    enum class Mode { unloaded, streaming, resident };

    State(SlabSource& source_, OffloadOptions options_, Stream& compute_, Stream& transfer_, Device& device_)
        : source(source_), options(std::move(options_)), compute(compute_), transfer(transfer_), device(device_) {}

    SlabSource& source;
    OffloadOptions options;
    Stream& compute;
    Stream& transfer;
    Device& device;

    Mode mode = Mode::unloaded;
    StreamSchedule schedule;
    size_t slot_bytes = 0, streamed_bytes = 0, resident_bytes = 0;
    DeviceBuffer ring;                      // [slots][slot_bytes]
    std::vector<Event> ready, free;         // [slots]
    std::vector<DeviceBuffer> layer_slabs;  // [L] of the layers on the device for good, or while detached
    int detached_open_layer = -1;           // the open visit when nothing streams

    // What post_step compares: the state pre_step began from, what was announced and what was visited.
    bool checking = false;
    StreamSchedule at_pre_step;
    std::vector<int> order, made;
    uint64_t step_slabs = 0, step_bytes = 0;

    OffloadStats stats;
    TimedSpans spans;
    TimedSpans::Span* visit_span = nullptr;
    uint64_t left_out_before = 0;  // spans.left_out() at the last reset of stats
    bool tracing = false;
    Event trace_start{device, true};
    std::vector<TraceBox> boxes;

    size_t bytes_of(int layer) const { return source.layout(layer).total_bytes(); }
    int layers() const { return schedule.layers(); }
    int open_layer() const { return mode == Mode::streaming ? schedule.open_layer() : detached_open_layer; }
    std::byte* slot(int index) const { return ring.data() + static_cast<size_t>(index) * slot_bytes; }
    void disturb(Stream& stream) const {
        if (options.disturb) options.disturb(stream);
    }

    void require_closed(const char* call) const {
        if (open_layer() >= 0) throw std::logic_error(std::string(call) + ": " + layer_text(open_layer()) + " is open");
    }
    void require_loaded(const char* call) const {
        if (mode == Mode::unloaded) throw std::logic_error(std::string(call) + " before attach()");
    }
    void require_budget(size_t bytes, const std::string& action) const;
    std::string quiesce() noexcept;
    void load_resident(std::vector<DeviceBuffer>& slabs, const std::vector<bool>& wanted);
    void enqueue(const SlabLoad& load);
    void enqueue(const std::vector<SlabLoad>& loads);
    void wait_ready(int slot_index, int layer);
    void harvest();
};

// All bytes of an action at once, so that it is refused before it began.
void LayerOffloadManager::State::require_budget(size_t bytes, const std::string& action) const {
    const MemoryAccount& memory = device.memory();
    if (memory.budget_bytes() == 0) return;
    const size_t used_bytes = memory.used_bytes();
    const size_t left_bytes = memory.budget_bytes() > used_bytes ? memory.budget_bytes() - used_bytes : 0;
    if (bytes <= left_bytes) return;
    throw OutOfBudget(action + " needs " + std::to_string(bytes) + " bytes (" + memory_text(bytes) +
                      ") of device memory, " + std::to_string(left_bytes) + " are left of the budget of " +
                      std::to_string(memory.budget_bytes()) + ": " + std::to_string(bytes - left_bytes) +
                      " bytes are missing. Hint: raise the budget, or keep fewer layers resident and fewer slots");
}

// Lets both streams finish before memory goes. Returns the first error that they still had, or nothing.
std::string LayerOffloadManager::State::quiesce() noexcept {
    std::string first;
    for (Stream* stream : {&transfer, &compute}) {
        try {
            stream->synchronize();
        } catch (const std::exception& error) {
            if (first.empty()) first = error.what();
        }
    }
    return first;
}

// Allocates and fills the wanted layers; on return their bytes have arrived.
void LayerOffloadManager::State::load_resident(std::vector<DeviceBuffer>& slabs, const std::vector<bool>& wanted) {
    try {
        for (int layer = 0; layer < layers(); ++layer) {
            const size_t l = static_cast<size_t>(layer);
            if (!wanted[l] || bytes_of(layer) == 0) continue;
            slabs[l] =
                DeviceBuffer(device, bytes_of(layer), MemoryCategory::weights_resident, "slab of " + layer_text(layer));
        }
        for (int layer = 0; layer < layers(); ++layer) {
            DeviceBuffer& slab = slabs[static_cast<size_t>(layer)];
            if (slab.bytes() == 0) continue;
            disturb(transfer);
            source.enqueue(layer, slab.data(), transfer);
        }
        transfer.synchronize();
    } catch (...) {
        quiesce();  // what is thrown says more
        throw;
    }
}

void LayerOffloadManager::State::enqueue(const SlabLoad& load) {
    const size_t s = static_cast<size_t>(load.slot);
#if !defined(SLABSTREAM_DROP_FREE_WAIT)
    if (free[s].recorded()) transfer.wait(free[s]);
#endif
    disturb(transfer);
    TimedSpans::Span* span =
        tracing ? spans.open(TraceBox::Kind::copy, load.layer, bytes_of(load.layer), transfer) : nullptr;
    const Traffic before = device.traffic();
    try {
        source.enqueue(load.layer, slot(load.slot), transfer);
    } catch (...) {
        TimedSpans::close(span, transfer);
        throw;
    }
    const Traffic after = device.traffic();
    TimedSpans::close(span, transfer);
    ready[s].record(transfer);
    // What the runtime copied, not what the layout says: post_step compares the two.
    const uint64_t bytes_in = after.host_to_device_bytes - before.host_to_device_bytes;
    const uint64_t bytes_out = after.device_to_host_bytes - before.device_to_host_bytes;
    ++stats.slabs_in;
    ++step_slabs;
    stats.bytes_in += bytes_in;
    step_bytes += bytes_in;
    stats.slabs_out += bytes_out != 0;
    stats.bytes_out += bytes_out;
}

void LayerOffloadManager::State::enqueue(const std::vector<SlabLoad>& loads) {
    for (size_t i = 0; i < loads.size(); ++i) {
        try {
            enqueue(loads[i]);
        } catch (...) {  // the source failed: the slots from here on hold nothing
            for (; i < loads.size(); ++i) schedule.forget(loads[i].slot);
            checking = false;
            throw;
        }
    }
    stats.peak_slots = std::max(stats.peak_slots, schedule.slots_in_use());
}

// The span begins when the compute stream gets here and ends when the slab has landed: the time compute stood still.
void LayerOffloadManager::State::wait_ready(int slot_index, int layer) {
    TimedSpans::Span* span = spans.open(TraceBox::Kind::wait, layer, 0, compute);
#if defined(SLABSTREAM_DROP_READY_WAIT)
    (void)slot_index;
#else
    compute.wait(ready[static_cast<size_t>(slot_index)]);
#endif
    TimedSpans::close(span, compute);
}

void LayerOffloadManager::State::harvest() {
    while (const TimedSpans::Span* span = spans.take_finished()) {
        if (span->kind == TraceBox::Kind::wait) {
            const double wait_ms = elapsed_ms(span->start, span->end);
            stats.wait_ms += wait_ms;
            stats.stall_ms[static_cast<size_t>(span->layer)] += wait_ms;
        }
        if (tracing)
            boxes.push_back({span->kind, span->layer, span->bytes, span->step, elapsed_ms(trace_start, span->start),
                             elapsed_ms(trace_start, span->end)});
    }
    stats.untimed = spans.left_out() - left_out_before;
}

LayerOffloadManager::LayerOffloadManager(SlabSource& source, OffloadOptions options, Stream& compute, Stream& transfer,
                                         Device& device)
    : state_(std::make_unique<State>(source, std::move(options), compute, transfer, device)) {
    State& s = *state_;
    const int P = s.options.num_prefetch, R = s.options.num_slots;
    if (P < 1)
        throw std::runtime_error("num_prefetch is " + std::to_string(P) +
                                 "; wanted: at least 1, the next layer's slab");
    if (R - 1 < P)
        throw std::runtime_error("num_slots is " + std::to_string(R) + " with num_prefetch " + std::to_string(P) +
                                 "; wanted: at least num_prefetch + 1, one slot being read while the others fill");
    std::vector<bool> streamed(static_cast<size_t>(source.layers()), true);
    for (int layer : s.options.resident_layers) {
        if (layer < 0 || layer >= source.layers())
            throw std::runtime_error("resident layer " + std::to_string(layer) +
                                     " given, but the model has layers 0 to " + std::to_string(source.layers() - 1));
        streamed[static_cast<size_t>(layer)] = false;
    }
    for (int layer = 0; layer < source.layers(); ++layer) {
        const size_t l = static_cast<size_t>(layer), bytes = s.bytes_of(layer);
        if (bytes == 0) streamed[l] = false;
        (streamed[l] ? s.streamed_bytes : s.resident_bytes) += bytes;
        if (streamed[l]) s.slot_bytes = std::max(s.slot_bytes, bytes);
    }
    s.schedule = StreamSchedule(std::move(streamed), P, R);
    s.layer_slabs.resize(static_cast<size_t>(source.layers()));
    s.stats.stall_ms.assign(static_cast<size_t>(source.layers()), 0);
}

LayerOffloadManager::~LayerOffloadManager() {
    if (state_->mode == State::Mode::unloaded) return;
    const std::string error = state_->quiesce();
    // An exception under way is that error, on its way to whoever reports it.
    if (!error.empty() && std::uncaught_exceptions() == 0) std::fprintf(stderr, "offload: %s\n", error.c_str());
}

void LayerOffloadManager::attach() {
    State& s = *state_;
    if (attached()) throw std::logic_error("attach: attached already");
    s.require_closed("attach");
    const bool first = s.mode == State::Mode::unloaded;
    s.require_budget(ring_bytes() + (first ? s.resident_bytes : 0), "layer offloading");

    DeviceBuffer ring;
    if (slots() > 0)
        ring =
            DeviceBuffer(s.device, ring_bytes(), MemoryCategory::ring, "ring of " + std::to_string(slots()) + " slots");
    std::vector<Event> ready, free;
    for (int i = 0; i < slots(); ++i) {
        ready.emplace_back(s.device);
        free.emplace_back(s.device);
    }
    std::vector<bool> streamed(static_cast<size_t>(s.layers()));
    for (int layer = 0; layer < s.layers(); ++layer) streamed[static_cast<size_t>(layer)] = s.schedule.streamed(layer);
    if (first) {
        std::vector<bool> wanted = streamed;
        wanted.flip();
        std::vector<DeviceBuffer> slabs(streamed.size());
        s.load_resident(slabs, wanted);
        s.layer_slabs = std::move(slabs);
    } else {
        s.compute.synchronize();  // the last readers of the layers that go
        for (size_t l = 0; l < streamed.size(); ++l)
            if (streamed[l]) s.layer_slabs[l] = {};
    }
    s.ring = std::move(ring);
    s.ready = std::move(ready);
    s.free = std::move(free);
    s.schedule = StreamSchedule(std::move(streamed), s.options.num_prefetch, s.options.num_slots);
    s.mode = State::Mode::streaming;
    s.spans.reserve(s.device, kWaitSpans);
    if (first && s.options.trace) set_trace(true);
    reset_stats();
}

void LayerOffloadManager::detach() {
    State& s = *state_;
    if (!attached()) throw std::logic_error("detach: not attached");
    s.require_closed("detach");
    s.require_budget(s.streamed_bytes, "bringing " + std::to_string(streamed_layers()) + " streamed layers back");

    std::vector<DeviceBuffer> slabs(static_cast<size_t>(s.layers()));
    std::vector<bool> wanted(slabs.size());
    for (int layer = 0; layer < s.layers(); ++layer) wanted[static_cast<size_t>(layer)] = s.schedule.streamed(layer);
    s.load_resident(slabs, wanted);
    s.compute.synchronize();  // the ring's last readers
    s.harvest();
    for (size_t l = 0; l < slabs.size(); ++l)
        if (slabs[l].bytes() > 0) s.layer_slabs[l] = std::move(slabs[l]);
    s.ring = {};
    s.ready.clear();
    s.free.clear();
    s.checking = false;
    s.mode = State::Mode::resident;
}

bool LayerOffloadManager::attached() const {
    return state_->mode == State::Mode::streaming;
}

void LayerOffloadManager::pre_step(const std::vector<int>& visits) {
    State& s = *state_;
    s.require_loaded("pre_step");
    s.require_closed("pre_step");
    for (int layer : visits)
        if (layer < 0 || layer >= s.layers())
            throw std::logic_error("pre_step: " + layer_text(layer) + " announced, but the model has layers 0 to " +
                                   std::to_string(s.layers() - 1));
    s.harvest();
    if (s.tracing)
        s.spans.reserve(s.device,
                        std::clamp(kRoundsAhead * kSpansPerVisit * visits.size(), kTraceSpans, kMostTraceSpans));
    if (!attached()) return;
    s.at_pre_step = s.schedule;
    s.order = visits;
    s.made.clear();
    s.step_slabs = s.step_bytes = 0;
    s.checking = true;
    s.enqueue(s.schedule.start(visits));
}

void LayerOffloadManager::post_step() {
    State& s = *state_;
    s.require_loaded("post_step");
    s.require_closed("post_step");
    s.harvest();
    if (!s.checking) return;
    s.checking = false;
    const Simulation expected = simulate(s.at_pre_step, s.order, s.made);
    std::vector<size_t> slab_bytes(static_cast<size_t>(s.layers()));
    for (int layer = 0; layer < s.layers(); ++layer) slab_bytes[static_cast<size_t>(layer)] = s.bytes_of(layer);
    const size_t expected_bytes = expected.load_bytes(slab_bytes);
    if (s.step_slabs != expected.loads() || s.step_bytes != expected_bytes)
        throw std::logic_error("offload: " + std::to_string(s.step_slabs) + " slabs (" + std::to_string(s.step_bytes) +
                               " bytes) were moved since pre_step, the schedule says " +
                               std::to_string(expected.loads()) + " (" + std::to_string(expected_bytes) + " bytes)");
}

LayerView LayerOffloadManager::begin_layer(int layer) {
    State& s = *state_;
    s.require_loaded("begin_layer");
    if (layer < 0 || layer >= s.layers())
        throw std::logic_error("begin_layer: " + layer_text(layer) + " asked for, but the model has layers 0 to " +
                               std::to_string(s.layers() - 1));
    if (s.open_layer() >= 0)
        throw std::logic_error("begin_layer: " + layer_text(layer) + " asked for while " + layer_text(s.open_layer()) +
                               " is open");
    s.harvest();
    LayerView view{s.layer_slabs[static_cast<size_t>(layer)].data(), &s.source.layout(layer)};
    if (!attached()) {
        s.detached_open_layer = layer;
    } else {
        const StreamSchedule::Visit visit = s.schedule.begin(layer);
        try {
            s.enqueue(visit.loads);
        } catch (...) {
            s.schedule.end(layer);
            throw;
        }
        if (s.checking) s.made.push_back(layer);
        if (visit.slot >= 0) {
            ++(visit.announced && visit.in_ring ? s.stats.hits : s.stats.misses);
            s.wait_ready(visit.slot, layer);
            view.base = s.slot(visit.slot);
        }
    }
    if (s.tracing) s.visit_span = s.spans.open(TraceBox::Kind::visit, layer, 0, s.compute);
    s.disturb(s.compute);
    return view;
}

void LayerOffloadManager::end_layer(int layer) {
    State& s = *state_;
    if (layer != s.open_layer() || layer < 0)
        throw std::logic_error("end_layer: " + layer_text(layer) + " is not open, " +
                               (s.open_layer() < 0 ? std::string("no layer") : layer_text(s.open_layer())) + " is");
    s.disturb(s.compute);
    TimedSpans::close(std::exchange(s.visit_span, nullptr), s.compute);
    if (!attached()) {
        s.detached_open_layer = -1;
        return;
    }
    const int slot = s.schedule.open_slot();
    if (slot >= 0) s.free[static_cast<size_t>(slot)].record(s.compute);
    s.schedule.end(layer);
}

const OffloadStats& LayerOffloadManager::stats() {
    state_->harvest();
    return state_->stats;
}

void LayerOffloadManager::reset_stats() {
    State& s = *state_;
    s.harvest();
    s.stats = {};
    s.stats.stall_ms.assign(static_cast<size_t>(s.layers()), 0);
    s.stats.peak_slots = attached() ? s.schedule.slots_in_use() : 0;
    s.left_out_before = s.spans.left_out();
}

int LayerOffloadManager::streamed_layers() const {
    return state_->schedule.streamed_layers();
}
int LayerOffloadManager::slots() const {
    return state_->schedule.slots();
}
size_t LayerOffloadManager::slot_bytes() const {
    return state_->slot_bytes;
}
size_t LayerOffloadManager::ring_bytes() const {
    return static_cast<size_t>(slots()) * slot_bytes();
}
size_t LayerOffloadManager::streamed_bytes() const {
    return state_->streamed_bytes;
}
size_t LayerOffloadManager::resident_bytes() const {
    return state_->resident_bytes;
}

std::string LayerOffloadManager::report() const {
    const State& s = *state_;
    const int N = streamed_layers(), R = slots();
    if (N == 0)
        return "inactive: of " + std::to_string(s.layers()) + " layers none is streamed, " +
               memory_text(s.resident_bytes) + " of frozen weights are resident";
    std::string text = "streams " + std::to_string(N) + " of " + std::to_string(s.layers()) + " layers through " +
                       std::to_string(R) + (R == 1 ? " slot of " : " slots of ") + memory_text(s.slot_bytes) +
                       " (prefetch " + std::to_string(s.options.num_prefetch) + "), ring " + memory_text(ring_bytes()) +
                       ", resident " + memory_text(s.resident_bytes);
    if (s.options.num_slots > N) text += ", " + std::to_string(s.options.num_slots) + " slots were asked for";
    if (R == N) return text + "; the ring holds every streamed layer, which saves no device memory";
    const size_t freed_bytes = s.streamed_bytes > ring_bytes() ? s.streamed_bytes - ring_bytes() : 0;
    return text + ", frees " + memory_text(freed_bytes) + " of device memory";
}

void LayerOffloadManager::set_trace(bool on) {
    State& s = *state_;
    s.require_closed("set_trace");
    s.transfer.synchronize();
    s.compute.synchronize();
    s.harvest();
    s.tracing = on;
    if (!on) return;
    s.boxes.clear();
    s.spans.reserve(s.device, kTraceSpans);
    s.trace_start.record(s.compute);
    s.trace_start.synchronize();
}

void LayerOffloadManager::set_trace_step(int64_t step) {
    state_->spans.set_step(step);
}

std::vector<LayerOffloadManager::TraceBox> LayerOffloadManager::trace() {
    State& s = *state_;
    s.transfer.synchronize();
    s.compute.synchronize();
    s.harvest();
    return s.boxes;
}

}  // namespace slab::offload
