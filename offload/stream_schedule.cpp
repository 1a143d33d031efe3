// The ring's policy and its simulation. Next uses are found by walking the visiting order from the present position.
// An order is some hundred visits long and a walk is made once per load, which costs nothing beside the copy.
#include "offload/stream_schedule.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace slab::offload {

StreamSchedule::StreamSchedule(const RingPlan& plan)
    : num_prefetch_(plan.prefetch()), num_streamed_(plan.streamed_layers()) {
    for (int layer = 0; layer < plan.layers(); ++layer) streamed_.push_back(plan.streams(layer));
    ring_.assign(plan.slots(), kEmpty);
    last_use_.assign(plan.slots(), 0);
    const int most_loads = std::min(num_prefetch_, num_streamed_) + 1;
    window_.reserve(most_loads);
    loads_.reserve(most_loads);
}

const std::vector<SlabLoad>& StreamSchedule::start(std::vector<int> visits) {
    if (open_layer_ >= 0)
        throw std::logic_error("schedule: start while layer " + std::to_string(open_layer_) + " is open");
    for (int layer : visits)
        if (layer < 0 || layer >= layers())
            throw std::logic_error("schedule: layer " + std::to_string(layer) + " of " + std::to_string(layers()) +
                                   " in the visiting order");
    visits_ = std::move(visits);
    next_ = 0;
    loads_.clear();
    keep_window();
    return loads_;
}

StreamSchedule::Visit StreamSchedule::begin(int layer) {
    if (layer < 0 || layer >= layers())
        throw std::logic_error("schedule: begin of layer " + std::to_string(layer) + " of " + std::to_string(layers()));
    if (open_layer_ >= 0)
        throw std::logic_error("schedule: begin of layer " + std::to_string(layer) + " while layer " +
                               std::to_string(open_layer_) + " is open");
    const bool announced = !visits_.empty() && visits_[next_] == layer;
    if (announced) next_ = (next_ + 1) % visits_.size();
    open_layer_ = layer;
    let_go_ = false;
    ++visit_count_;
    loads_.clear();
    bool in_ring = true;
    if (streamed(layer)) {
        in_ring = slot_of(layer) >= 0;
        if (!in_ring) load(layer);
        open_slot_ = slot_of(layer);
        last_use_[open_slot_] = visit_count_;
    }
    keep_window();
    return {announced, in_ring, open_slot_, loads_};
}

void StreamSchedule::end(int layer) {
    if (layer != open_layer_)
        throw std::logic_error("schedule: end of layer " + std::to_string(layer) + " while " +
                               (open_layer_ < 0 ? "none" : "layer " + std::to_string(open_layer_)) + " is open");
    open_layer_ = open_slot_ = -1;
}

void StreamSchedule::let_go(int layer) {
    if (layer != open_layer_ || let_go_)
        throw std::logic_error("schedule: layer " + std::to_string(layer) + " let go while " +
                               (layer == open_layer_ ? "its slot was let go already"
                                : open_layer_ < 0    ? "none is open"
                                                     : "layer " + std::to_string(open_layer_) + " is open"));
    let_go_ = true;
    open_slot_ = -1;
}

int StreamSchedule::slots_in_use() const {
    return slots() - static_cast<int>(std::count(ring_.begin(), ring_.end(), kEmpty));
}

int StreamSchedule::slot_of(int layer) const {
    const auto found = std::find(ring_.begin(), ring_.end(), layer);
    return found == ring_.end() ? -1 : static_cast<int>(found - ring_.begin());
}

void StreamSchedule::load(int layer) {
    const int slot = victim();
    ring_[slot] = layer;
    loads_.push_back({layer, slot});
}

// Loads what is missing of the next P streamed visits. One walk round the order sees every layer in it, so the walk
// ends there even when fewer than P visits are streamed.
void StreamSchedule::keep_window() {
    window_.clear();
    const size_t most = std::min(static_cast<size_t>(num_prefetch_), visits_.size());
    for (size_t ahead = 0; ahead < visits_.size() && window_.size() < most; ++ahead) {
        const int layer = visits_[(next_ + ahead) % visits_.size()];
        if (streamed(layer)) window_.push_back(layer);
    }
    for (int layer : window_)
        if (slot_of(layer) < 0) load(layer);
}

// The slot to overwrite: not the open one, an empty one first, then the one whose layer is visited last from here on. A
// layer of the window is visited within P streamed visits and the ring has a slot more than that, so the farthest one
// is never in the window.
int StreamSchedule::victim() const {
    int best = -1;
    size_t best_distance = 0;
    for (int slot = 0; slot < slots(); ++slot) {
        if (slot == open_slot_) continue;
        const int layer = ring_[slot];
        size_t distance = visits_.size() + 1;  // empty
        if (layer != kEmpty)
            for (distance = 0; distance < visits_.size(); ++distance)  // equals visits_.size() when not in the order
                if (visits_[(next_ + distance) % visits_.size()] == layer) break;
        const bool older = best >= 0 && distance == best_distance && last_use_[slot] < last_use_[best];
        if (best < 0 || distance > best_distance || older) {
            best = slot;
            best_distance = distance;
        }
    }
    if (best < 0) throw std::logic_error("schedule: no slot to load into");
    return best;
}

size_t Simulation::loads() const {
    size_t count = at_start.size();
    for (const SimulatedVisit& visit : visits) count += visit.loads.size();
    return count;
}

size_t Simulation::load_bytes(const std::vector<size_t>& slab_bytes) const {
    size_t bytes = 0;
    for (const SlabLoad& load : at_start) bytes += slab_bytes.at(load.layer);
    for (const SimulatedVisit& visit : visits)
        for (const SlabLoad& load : visit.loads) bytes += slab_bytes.at(load.layer);
    return bytes;
}

Simulation simulate(StreamSchedule schedule, const std::vector<int>& order, const std::vector<int>& made) {
    Simulation result;
    result.at_start = schedule.start(order);
    result.visits.reserve(made.size());
    for (int layer : made) {
        const StreamSchedule::Visit visit = schedule.begin(layer);
        result.visits.push_back({layer, visit.slot, visit.loads});
        schedule.let_go(layer);
        schedule.end(layer);
    }
    result.after = std::move(schedule);
    return result;
}

std::vector<double> round_ms(StreamSchedule schedule, const std::vector<int>& order, const VisitTimes& times,
                             int rounds) {
    if (times.visit_ms.size() != order.size() || (!times.then_ms.empty() && times.then_ms.size() != order.size()) ||
        times.copy_ms.size() != static_cast<size_t>(schedule.layers()) ||
        (!times.decode_ms.empty() && times.decode_ms.size() != times.copy_ms.size()))
        throw std::logic_error("round_ms: times must name every visit and every layer");
    std::vector<double> ready_ms(schedule.slots(), 0), free_ms(ready_ms.size(), 0);
    double transfer_ms = 0, compute_ms = 0;  // when each stream has done what was enqueued so far
    const auto copy = [&](const std::vector<SlabLoad>& loads) {
        for (const SlabLoad& load : loads) {
            const int slot = load.slot;
            transfer_ms = std::max(transfer_ms, free_ms[slot]) + times.copy_ms[load.layer];
            ready_ms[slot] = transfer_ms;
        }
    };
    int decoded = -1;  // the layer in the work slab
    const auto decode = [&](int layer, int slot) {
        if (decoded == layer || times.decode_ms[layer] == 0) return;
        if (slot >= 0) compute_ms = std::max(compute_ms, ready_ms[slot]);
        compute_ms += times.decode_ms[layer];
        if (slot >= 0) free_ms[slot] = compute_ms;
        decoded = layer;
    };
    const bool decodes = !times.decode_ms.empty();
    std::vector<double> result;
    for (int round = 0; round < rounds; ++round) {
        const double began_ms = compute_ms;
        copy(schedule.start(order));
        for (size_t v = 0; v < order.size(); ++v) {
            const StreamSchedule::Visit visit = schedule.begin(order[v]);
            copy(visit.loads);
            if (decodes)
                decode(order[v], visit.slot);
            else if (visit.slot >= 0)
                compute_ms = std::max(compute_ms, ready_ms[visit.slot]);
            compute_ms += times.visit_ms[v];
            if (!decodes && visit.slot >= 0) free_ms[visit.slot] = compute_ms;
            schedule.let_go(order[v]);
            if (!times.then_ms.empty()) compute_ms += times.then_ms[v];
            schedule.end(order[v]);
        }
        result.push_back(compute_ms - began_ms);
    }
    return result;
}

namespace {

double decoded_floor_ms(const PassTimes& t, int streamed_layers, int slots) {
    const double d = t.decode_ms, decodes_ms = t.pass_decode_ms - d;
    double forward_ms = t.backward_last_ms + t.optimizer_ms + t.forward_ms - t.forward_last_ms + decodes_ms;
    double backward_ms = t.forward_last_ms + t.head_ms + t.backward_ms - t.backward_last_ms + decodes_ms;
    if (streamed_layers > slots) {
        const double copies_ms = (streamed_layers - slots) * t.copy_ms, later_ms = copies_ms - t.copy_ms + 2 * d;
        forward_ms =
            std::max({forward_ms, copies_ms + d, t.backward_last_ms + t.optimizer_ms + t.forward_first_ms + later_ms});
        backward_ms =
            std::max({backward_ms, copies_ms + d, t.forward_last_ms + t.head_ms + t.backward_first_ms + later_ms});
    }
    return forward_ms + backward_ms;
}

}  // namespace

double floor_ms(const PassTimes& times, int streamed_layers, int slots) {
    if (times.decode_ms > 0) return decoded_floor_ms(times, streamed_layers, slots);
    double forward_ms = times.forward_ms, backward_ms = times.backward_ms;
    if (streamed_layers > slots) {
        const double copies_ms = (streamed_layers - slots) * times.copy_ms;
        forward_ms = std::max(forward_ms, copies_ms + times.forward_first_ms + times.forward_last_ms);
        backward_ms = std::max(backward_ms, copies_ms + times.backward_first_ms + times.backward_last_ms);
    }
    return forward_ms + times.head_ms + backward_ms + times.optimizer_ms;
}

}  // namespace slab::offload
