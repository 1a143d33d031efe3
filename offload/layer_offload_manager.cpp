// Executes a StreamSchedule: each load fills a slot, each visit awaits its slot and lets it go (ring_slot.h). With a
// decoder that happens at the visit's beginning, else at its end.
//
// The schedule decides, the slots order the two streams, the meter watches. The host waits for the device in attach(),
// detach() and set_trace() alone. tests/mutation_test.sh removes each marked wait and shows the tests failing.
#include "offload/layer_offload_manager.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <utility>

namespace slab::offload {

namespace {

constexpr const char* kBudgetHint = "raise the budget, or keep fewer layers resident and fewer slots";

std::string layer_text(int layer) {
    return "layer " + std::to_string(layer);
}

size_t largest_decoded_bytes(const SlabDecoder* decoder, const RingPlan& plan) {
    size_t bytes = 0;
    if (decoder == nullptr) return bytes;
    for (int layer = 0; layer < plan.layers(); ++layer)
        if (plan.stored_bytes(layer) > 0) bytes = std::max(bytes, decoder->layout(layer).total_bytes());
    return bytes;
}

}  // namespace

LayerOffloadManager::LayerOffloadManager(SlabSource& source, RingPlan plan, Stream& compute, Stream& transfer,
                                         Device& device, OffloadOptions options, SlabDecoder* decoder)
    : source_(source),
      plan_(std::move(plan)),
      compute_(compute),
      transfer_(transfer),
      device_(device),
      options_(std::move(options)),
      decoder_(decoder),
      work_slab_bytes_(largest_decoded_bytes(decoder, plan_)),
      meter_(device, plan_.layers()),
      metered_(source, meter_, options_.disturb),
      schedule_(plan_),
      layer_slabs_(plan_.layers()) {
    check_plan(plan_, source);
}

LayerOffloadManager::~LayerOffloadManager() {
    if (mode_ == Mode::unloaded) return;
    const std::string error = synchronize_both();
    // An exception under way is that error, on its way to whoever reports it.
    if (!error.empty() && std::uncaught_exceptions() == 0) std::fprintf(stderr, "offload: %s\n", error.c_str());
}

void LayerOffloadManager::require_closed(const char* call) const {
    if (open_layer() >= 0) throw std::logic_error(std::string(call) + ": " + layer_text(open_layer()) + " is open");
}

void LayerOffloadManager::require_loaded(const char* call) const {
    if (mode_ == Mode::unloaded) throw std::logic_error(std::string(call) + " before attach()");
}

void LayerOffloadManager::require_layer(const char* call, int layer) const {
    if (layer >= 0 && layer < layers()) return;
    throw std::logic_error(std::string(call) + ": " + layer_text(layer) + " given, but the model has layers 0 to " +
                           std::to_string(layers() - 1));
}

void LayerOffloadManager::disturb(Stream& stream) const {
    if (options_.disturb) options_.disturb(stream);
}

// Lets both streams finish before memory goes. Returns the first error that they still had, or nothing.
std::string LayerOffloadManager::synchronize_both() noexcept {
    std::string first;
    for (Stream* stream : {&transfer_, &compute_}) {
        try {
            stream->synchronize();
        } catch (const std::exception& error) {
            if (first.empty()) first = error.what();
        }
    }
    return first;
}

// Memory of their own for the layers that stream, or for the others. Their slabs have arrived on return.
std::vector<DeviceBuffer> LayerOffloadManager::load(bool streamed) {
    std::vector<DeviceBuffer> slabs(layers());
    try {
        for (int layer = 0; layer < layers(); ++layer) {
            const size_t bytes = plan_.stored_bytes(layer);
            if (bytes == 0 || plan_.streams(layer) != streamed) continue;
            slabs[layer] =
                DeviceBuffer(device_, bytes, MemoryCategory::weights_resident, "slab of " + layer_text(layer));
        }
        for (int layer = 0; layer < layers(); ++layer) {
            if (slabs[layer].bytes() == 0) continue;
            disturb(transfer_);
            source_.enqueue(layer, slabs[layer].data(), transfer_);
        }
        transfer_.synchronize();  // guard: ARRIVED
    } catch (...) {
        synchronize_both();  // what is thrown says more
        throw;
    }
    return slabs;
}

void LayerOffloadManager::attach() {
    if (attached()) throw std::logic_error("attach: attached already");
    require_closed("attach");
    const bool first = mode_ == Mode::unloaded;
    device_.memory().require(plan_.ring_bytes() + (first ? work_slab_bytes_ + plan_.resident_bytes() : 0),
                             "layer offloading", kBudgetHint);

    DeviceBuffer ring;
    if (plan_.slots() > 0)
        ring = DeviceBuffer(device_, plan_.ring_bytes(), MemoryCategory::ring,
                            "ring of " + std::to_string(plan_.slots()) + " slots");
    DeviceBuffer work_slab;
    if (first && work_slab_bytes_ > 0)
        work_slab = DeviceBuffer(device_, work_slab_bytes_, MemoryCategory::ring, "work slab");
    std::vector<RingSlot> slots;
    for (int slot = 0; slot < plan_.slots(); ++slot)
        slots.emplace_back(device_, ring.data() + slot * plan_.slot_bytes());
    if (first) {
        layer_slabs_ = load(false);
        work_slab_ = std::move(work_slab);
    } else {
        // The last readers of the layers whose memory goes.
        compute_.synchronize();  // guard: ATTACH
        for (int layer : plan_.streamed()) layer_slabs_[layer] = {};
    }
    ring_ = std::move(ring);
    slots_ = std::move(slots);
    schedule_ = StreamSchedule(plan_);
    decoded_layer_ = -1;
    mode_ = Mode::streaming;
    meter_.reserve();
    if (first && options_.trace) set_trace(true);
    reset_stats();
}

void LayerOffloadManager::detach() {
    if (!attached()) throw std::logic_error("detach: not attached");
    require_closed("detach");
    device_.memory().require(plan_.streamed_bytes(),
                             "bringing " + std::to_string(plan_.streamed_layers()) + " streamed layers back",
                             kBudgetHint);

    std::vector<DeviceBuffer> slabs = load(true);
    // The last readers of the ring.
    compute_.synchronize();  // guard: DETACH
    meter_.harvest();
    for (int layer : plan_.streamed()) layer_slabs_[layer] = std::move(slabs[layer]);
    slots_.clear();
    ring_ = {};
    check_.drop();
    decoded_layer_ = -1;
    mode_ = Mode::resident;
}

void LayerOffloadManager::pre_step(const std::vector<int>& visits) {
    require_loaded("pre_step");
    require_closed("pre_step");
    for (int layer : visits) require_layer("pre_step", layer);
    meter_.harvest();
    meter_.reserve(visits.size());
    if (!attached()) return;
    check_.start(schedule_, visits, meter_.moved());
    fill(schedule_.start(visits));
}

void LayerOffloadManager::post_step() {
    require_loaded("post_step");
    require_closed("post_step");
    meter_.harvest();
    std::vector<size_t> copied_bytes;
    for (int layer = 0; layer < layers(); ++layer) copied_bytes.push_back(source_.copied_bytes(layer));
    check_.finish(meter_.moved(), copied_bytes);
}

LayerView LayerOffloadManager::begin_layer(int layer) {
    require_loaded("begin_layer");
    require_layer("begin_layer", layer);
    if (open_layer() >= 0)
        throw std::logic_error("begin_layer: " + layer_text(layer) + " asked for while " + layer_text(open_layer()) +
                               " is open");
    meter_.harvest();
    LayerView view{layer_slabs_[layer].data(), decoder_ ? &decoder_->layout(layer) : &source_.layout(layer)};
    if (!attached()) {
        if (decoder_) view.base = decode(layer, view.base, -1);
        detached_open_layer_ = layer;
    } else {
        const StreamSchedule::Visit visit = schedule_.begin(layer);
        try {
            fill(visit.loads);
            check_.visited(layer);
            if (visit.slot >= 0) {
                meter_.count_visit(visit.announced && visit.in_ring);
                view.base = slots_[visit.slot].memory();
                if (!decoder_) await(visit.slot, layer);
            }
            if (decoder_) view.base = decode(layer, view.base, visit.slot);
        } catch (...) {
            schedule_.end(layer);
            throw;
        }
    }
    visit_span_ = meter_.open_visit(layer, compute_);
    disturb(compute_);
    return view;
}

void LayerOffloadManager::end_layer(int layer) {
    if (layer != open_layer() || layer < 0)
        throw std::logic_error("end_layer: " + layer_text(layer) + " is not open, " +
                               (open_layer() < 0 ? std::string("no layer") : layer_text(open_layer())) + " is");
    disturb(compute_);
    OffloadMeter::close(std::exchange(visit_span_, nullptr), compute_);
    if (!attached()) {
        detached_open_layer_ = -1;
        return;
    }
    if (!decoder_) let_go(layer);
    schedule_.end(layer);
}

void LayerOffloadManager::fill(const std::vector<SlabLoad>& loads) {
    for (size_t i = 0; i < loads.size(); ++i) {
        try {
            slots_[loads[i].slot].fill(metered_, loads[i].layer, transfer_);
        } catch (...) {  // the source failed: the slots from here on hold nothing
            for (; i < loads.size(); ++i) schedule_.forget(loads[i].slot);
            decoded_layer_ = -1;
            check_.drop();
            throw;
        }
    }
    meter_.count_slots(schedule_.slots_in_use());
}

// The span covers the time that compute stands still.
void LayerOffloadManager::await(int slot, int layer) {
    TimedSpans::Span* span = meter_.open_wait(layer, compute_);
    slots_[slot].await(compute_);
    OffloadMeter::close(span, compute_);
}

// The last reader of the open layer's slab is on the compute stream: here its slot is let go.
void LayerOffloadManager::let_go(int layer) {
    if (schedule_.open_slot() >= 0) slots_[schedule_.open_slot()].let_go(compute_);
    schedule_.let_go(layer);
}

// Decodes the slab at `encoded` into the work slab, unless that holds the layer already. Returns where the layer lies;
// null for a layer without a slab. slot: where `encoded` lies, -1 for memory of the layer's own. The decoding is the
// slot's last reader. Visits before this one read the work slab earlier on the same stream.
const std::byte* LayerOffloadManager::decode(int layer, const std::byte* encoded, int slot) {
    if (encoded == nullptr) return nullptr;
    if (decoded_layer_ != layer) decoded_layer_ = -1;  // guard: TURN
    if (decoded_layer_ >= 0) {
        if (slot >= 0)
            schedule_.let_go(layer);  // `free` stays as the decoding recorded it: nobody has read the slot since
        return work_slab_.data();
    }
    if (slot >= 0) await(slot, layer);
    disturb(compute_);
    TimedSpans::Span* span = meter_.open_decode(layer, compute_);
    try {
        decoder_->enqueue(layer, encoded, work_slab_.data(), compute_);  // guard: DECODED
        if (slot >= 0) let_go(layer);
    } catch (...) {
        OffloadMeter::close(span, compute_);
        if (slot >= 0 && schedule_.open_slot() >= 0) let_go(layer);  // what was enqueued before reads the slot
        throw;
    }
    OffloadMeter::close(span, compute_);
    decoded_layer_ = layer;
    return work_slab_.data();
}

const OffloadStats& LayerOffloadManager::stats() {
    meter_.harvest();
    return meter_.stats();
}

void LayerOffloadManager::reset_stats() {
    meter_.reset(attached() ? schedule_.slots_in_use() : 0);
}

void LayerOffloadManager::set_trace(bool on) {
    require_closed("set_trace");
    transfer_.synchronize();
    compute_.synchronize();
    meter_.harvest();
    meter_.set_tracing(on, compute_);
}

std::vector<LayerOffloadManager::TraceBox> LayerOffloadManager::trace() {
    transfer_.synchronize();
    compute_.synchronize();
    meter_.harvest();
    return meter_.boxes();
}

}  // namespace slab::offload
