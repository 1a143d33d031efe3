// Filling and locking slabs. Gaps between tensors are zeroed, so that a slab's bytes are a function of the model alone.
//
// All decisions about page-locking fall while loading: senders copy from the slabs at any time afterwards, so nothing
// may be unlocked then.
#include "offload/host_store.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "offload/staged_slabs.h"

namespace slab::offload {

HostStore::HostStore(Device& device, std::vector<SlabLayout> layouts, const RingPlan& plan, Fill fill,
                     HostStoreOptions options)
    : device_(device),
      layouts_(std::move(layouts)),
      fill_(std::move(fill)),
      options_(std::move(options)),
      slabs_(layouts_.size()) {
    if (plan.layers() != layers())
        throw std::invalid_argument("ring plan: of " + std::to_string(plan.layers()) + " layers; wanted " +
                                    std::to_string(layers()) + ", as there are layouts");
    for (int layer = 0; layer < layers(); ++layer) {
        if (plan.stored_bytes(layer) != layout(layer).total_bytes())
            throw std::invalid_argument("ring plan: " + std::to_string(plan.stored_bytes(layer)) + " bytes for layer " +
                                        std::to_string(layer) + "; wanted " +
                                        std::to_string(layout(layer).total_bytes()) + ", as its layout has");
        streams_.push_back(plan.streams(layer));
    }
    load();
}

void HostStore::load() {
    if (!options_.page_lock) {
        staged_ = true;
        leave_room_for_staging();
    }
    size_t done_bytes = 0;
    for (int layer = 0; layer < layers(); ++layer) {
        if (!streams_[layer]) continue;
        const std::string what = "slab of layer " + std::to_string(layer);
        slabs_[layer] = HostMemory(layout(layer).total_bytes(), device_.numa_node(), what);
        read(layer, slabs_[layer].data());  // from many threads, which touch the pages
        if (!staged_) lock(slabs_[layer], what);
        done_bytes += slabs_[layer].bytes();
        if (options_.progress) options_.progress(done_bytes, streamed_bytes());
    }
    // Resident layers reach the device through memory that is locked for a while. Slabs give way to it now.
    if (staged_ || resident_staging_bytes() == 0) return;
    try {
        const PinnedBuffer room(device_, resident_staging_bytes(), "staging of resident layers");
    } catch (const PinnedLimit& refusal) {
        stage_the_rest(refusal.what());
    }
}

void HostStore::read(int layer, std::byte* dst) const {
    size_t end_bytes = 0;
    const auto zero_up_to = [&](size_t offset_bytes) { std::memset(dst + end_bytes, 0, offset_bytes - end_bytes); };
    for (const SlabTensor& tensor : layout(layer).tensors()) {
        zero_up_to(tensor.offset_bytes);
        end_bytes = tensor.offset_bytes + tensor.bytes;
    }
    zero_up_to(layout(layer).total_bytes());
    fill_(layer, dst);
}

void HostStore::lock(HostMemory& slab, const std::string& what) {
    try {
        slab.lock(device_, what);
    } catch (const PinnedLimit& refusal) {
        stage_the_rest(refusal.what());
    }
}

// From here on nothing more is locked: the system has refused.
void HostStore::stage_the_rest(const std::string& why) {
    staged_ = true;
    leave_room_for_staging();
    const std::string text = why + ". What is beyond it stays pageable and is staged through " +
                             memory_text(StagedSlabs::ring_bytes_of(options_.staging_chunk_bytes)) +
                             " of page-locked memory: the same bits, slower";
    if (options_.warn)
        options_.warn(text);
    else
        std::fprintf(stderr, "warning: %s\n", text.c_str());
}

// Of the locked slabs an eighth is given back, and as much more as a sender's ring needs, the latest first: others lock
// memory after this. Throws PinnedLimit when all of them do not make room for a ring.
void HostStore::leave_room_for_staging() {
    const size_t wanted_bytes = locked_bytes() / 8;
    size_t given_bytes = 0;
    const auto give_back = [&] {  // false when nothing is locked any more
        const auto last =
            std::find_if(slabs_.rbegin(), slabs_.rend(), [](const HostMemory& slab) { return slab.locked(); });
        if (last == slabs_.rend()) return false;
        given_bytes += last->bytes();
        last->unlock();
        return true;
    };
    while (given_bytes < wanted_bytes && give_back()) continue;
    for (;;) {
        try {
            const StagedSlabs ring(device_, options_.staging_chunk_bytes);
            return;
        } catch (const PinnedLimit&) {
            if (!give_back()) throw;
        }
    }
}

size_t HostStore::streamed_bytes() const {
    size_t bytes = 0;
    for (int layer = 0; layer < layers(); ++layer)
        if (streams_[layer]) bytes += layout(layer).total_bytes();
    return bytes;
}

size_t HostStore::locked_bytes() const {
    size_t bytes = 0;
    for (const HostMemory& slab : slabs_)
        if (slab.locked()) bytes += slab.bytes();
    return bytes;
}

size_t HostStore::resident_staging_bytes() const {
    size_t bytes = 0;
    for (int layer = 0; layer < layers(); ++layer)
        if (!streams_[layer]) bytes = std::max(bytes, layout(layer).total_bytes());
    return bytes;
}

std::string HostStore::report() const {
    const auto slabs =
        std::count_if(slabs_.begin(), slabs_.end(), [](const HostMemory& slab) { return slab.bytes() > 0; });
    const size_t staged_bytes = streamed_bytes() - locked_bytes();
    // The CPU backend stands in for page-locking without doing it.
    std::string text = std::to_string(slabs) + (slabs == 1 ? " slab, " : " slabs, ") + memory_text(locked_bytes()) +
                       (kBackend == Backend::cuda ? " page-locked" : " ready for the transfer stream");
    if (device_.numa_node() >= 0) text += " near NUMA node " + std::to_string(device_.numa_node());
    if (staged_bytes > 0)
        text += ", " + memory_text(staged_bytes) + " staged through " +
                memory_text(StagedSlabs::ring_bytes_of(options_.staging_chunk_bytes));
    return text;
}

uint64_t HostStore::checksum(int layer) const {
    const std::byte* bytes = host(layer);
    if (bytes == nullptr) throw std::logic_error("host store: layer " + std::to_string(layer) + " has no host copy");
    uint64_t sum = 0;
    for (size_t i = 0; i < layout(layer).total_bytes(); i += sizeof(uint64_t)) {
        uint64_t word;
        std::memcpy(&word, bytes + i, sizeof word);
        sum = std::rotl(sum ^ word, 23) * 0x9e3779b97f4a7c15u;  // odd, so each step keeps differences
    }
    return sum;
}

}  // namespace slab::offload
