// The only place where prefetch, slots and resident layers are checked against each other and the model.
#include "offload/ring_plan.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "kernels/runtime/memory_account.h"

namespace slab::offload {

RingPlan::RingPlan(std::vector<size_t> stored_bytes, const RingOptions& options)
    : stored_bytes_(std::move(stored_bytes)), prefetch_(options.num_prefetch), slots_asked_(options.num_slots) {
    if (prefetch_ < 1)
        throw std::invalid_argument("num_prefetch: " + std::to_string(prefetch_) +
                                    "; wanted at least 1, the next layer's slab");
    if (slots_asked_ - 1 < prefetch_)
        throw std::invalid_argument("num_slots: " + std::to_string(slots_asked_) + " with num_prefetch " +
                                    std::to_string(prefetch_) +
                                    "; wanted at least num_prefetch + 1, one slot being read while the others fill");
    streams_.assign(stored_bytes_.size(), true);
    for (int layer : options.resident_layers) {
        if (layer < 0 || layer >= layers())
            throw std::invalid_argument("resident layer: " + std::to_string(layer) + "; wanted 0 to " +
                                        std::to_string(layers() - 1) + ", the model's layers");
        streams_[layer] = false;
    }
    for (int layer = 0; layer < layers(); ++layer) {
        const size_t bytes = stored_bytes_[layer];
        if (bytes == 0) streams_[layer] = false;
        (streams_[layer] ? streamed_bytes_ : resident_bytes_) += bytes;
        if (!streams_[layer]) continue;
        streamed_.push_back(layer);
        slot_bytes_ = std::max(slot_bytes_, bytes);
    }
    slots_ = std::min(slots_asked_, streamed_layers());
}

std::string RingPlan::report() const {
    const int N = streamed_layers(), R = slots();
    if (N == 0)
        return "inactive: of " + std::to_string(layers()) + " layers none is streamed, " +
               memory_text(resident_bytes()) + " of frozen weights are resident";
    std::string text = "streams " + std::to_string(N) + " of " + std::to_string(layers()) + " layers through " +
                       std::to_string(R) + (R == 1 ? " slot of " : " slots of ") + memory_text(slot_bytes()) +
                       " (prefetch " + std::to_string(prefetch()) + "), ring " + memory_text(ring_bytes()) +
                       ", resident " + memory_text(resident_bytes());
    if (slots_asked() > N) text += ", " + std::to_string(slots_asked()) + " slots were asked for";
    if (R == N) return text + "; the ring holds every streamed layer, which saves no device memory";
    const size_t freed_bytes = streamed_bytes() > ring_bytes() ? streamed_bytes() - ring_bytes() : 0;
    return text + ", frees " + memory_text(freed_bytes) + " of device memory";
}

}  // namespace slab::offload
