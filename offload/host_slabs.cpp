// Filling and locking slabs, and the way resident layers take past them. Gaps between tensors are zeroed, so that a
// slab's bytes are a function of the model alone.
#include "offload/host_slabs.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace slab::offload {

HostSlabs::HostSlabs(Device& device, std::vector<SlabLayout> layouts, const std::vector<int>& resident_layers,
                     HostSlabsOptions options)
    : device_(device),
      layouts_(std::move(layouts)),
      resident_(layouts_.size(), false),
      options_(std::move(options)),
      slabs_(layouts_.size()) {
    for (int layer : resident_layers) {
        if (layer < 0 || layer >= layers())
            throw std::runtime_error("resident layer " + std::to_string(layer) +
                                     " given, but the model has layers 0 to " + std::to_string(layers() - 1));
        resident_[static_cast<size_t>(layer)] = true;
    }
}

void HostSlabs::load(Fill fill, const Progress& progress) {
    if (loaded_) throw std::logic_error("host slabs: loaded twice; they do not change");
    fill_ = std::move(fill);
    try {
        if (!options_.page_lock) stage_from_now_on();
        size_t done_bytes = 0;
        for (int layer = 0; layer < layers(); ++layer) {
            const size_t l = static_cast<size_t>(layer), bytes = layouts_[l].total_bytes();
            if (resident_[l] || bytes == 0) continue;
            const std::string what = "slab of layer " + std::to_string(layer);
            slabs_[l] = HostMemory(bytes, device_.numa_node(), what);
            this->fill(layer, slabs_[l].data());  // from many threads, which touch the pages
            lock_or_stage(slabs_[l], what);
            done_bytes += bytes;
            if (progress) progress(done_bytes, streamed_bytes());
        }
    } catch (...) {
        for (HostMemory& slab : slabs_) slab = {};
        staged_.reset();
        throw;
    }
    loaded_ = true;
}

void HostSlabs::fill(int layer, std::byte* dst) const {
    size_t end_bytes = 0;
    const auto zero_up_to = [&](size_t offset_bytes) { std::memset(dst + end_bytes, 0, offset_bytes - end_bytes); };
    for (const SlabTensor& tensor : layout(layer).tensors()) {
        zero_up_to(tensor.offset_bytes);
        end_bytes = tensor.offset_bytes + tensor.bytes;
    }
    zero_up_to(layout(layer).total_bytes());
    fill_(layer, dst);
}

// Once something is staged, no more is locked: the system has refused, or was not to be asked.
void HostSlabs::lock_or_stage(HostMemory& memory, const std::string& what) {
    if (staged_) return;
    try {
        memory.lock(device_, what);
    } catch (const PinnedLimit& refusal) {
        stage_from_now_on();
        const std::string text = std::string(refusal.what()) +
                                 ". What is beyond it stays pageable and is staged through " +
                                 memory_text(ring_bytes()) + " of page-locked memory: the same bits, slower";
        if (options_.warn)
            options_.warn(text);
        else
            std::fprintf(stderr, "warning: %s\n", text.c_str());
    }
}

// Makes the ring. Of what is locked an eighth, and as much more as the ring needs, is given back, the latest first:
// others lock memory after this.
void HostSlabs::stage_from_now_on() {
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
            staged_ = std::make_unique<StagedSlabs>(device_, options_.staging_chunk_bytes, options_.disturb);
            return;
        } catch (const PinnedLimit&) {
            if (!give_back()) throw;
        }
    }
}

void HostSlabs::send(const HostMemory& memory, size_t bytes, std::byte* dst, Stream& transfer) {
    if (memory.locked())
        copy_async(dst, memory.data(), bytes, CopyKind::host_to_device, transfer);
    else
        staged_->enqueue(memory.data(), dst, bytes, transfer);
}

void HostSlabs::enqueue(int layer, std::byte* dst, Stream& transfer) {
    if (!loaded_) throw std::logic_error("host slabs: asked for layer " + std::to_string(layer) + " before load()");
    const size_t l = static_cast<size_t>(layer);
    if (resident_[l])
        send_resident(layer, dst, transfer);
    else
        send(slabs_[l], layouts_[l].total_bytes(), dst, transfer);
}

void HostSlabs::send_resident(int layer, std::byte* dst, Stream& transfer) {
    try {
        pass_resident(layer, dst, transfer);
    } catch (...) {
        // The caller gives up on all of them, and may begin anew. No copy may still read the passage.
        try {
            transfer.synchronize();
        } catch (const std::exception&) {
            // The first error is on its way to the caller; nothing is copied after it.
        }
        passage_ = {};
        passed_ = 0;
        throw;
    }
}

void HostSlabs::pass_resident(int layer, std::byte* dst, Stream& transfer) {
    if (passage_.bytes() == 0) {
        transfer.synchronize();  // a refusal unlocks slabs, which must not be on their way
        const std::string what = "passage of resident layers";
        HostMemory passage(staging_bytes(), device_.numa_node(), what);
        fill(layer, passage.data());
        lock_or_stage(passage, what);
        passage_ = std::move(passage);
    } else {
        fill(layer, passage_.data());
    }
    send(passage_, layout(layer).total_bytes(), dst, transfer);
    transfer.synchronize();  // the next layer is filled into the same memory
    // Every resident layer is asked for once when streaming is attached; after the last one the passage is not needed.
    int resident_slabs = 0;
    for (size_t l = 0; l < layouts_.size(); ++l) resident_slabs += resident_[l] && layouts_[l].total_bytes() > 0;
    if (++passed_ < resident_slabs) return;
    passage_ = {};
    passed_ = 0;
}

size_t HostSlabs::streamed_bytes() const {
    size_t bytes = 0;
    for (size_t l = 0; l < layouts_.size(); ++l)
        if (!resident_[l]) bytes += layouts_[l].total_bytes();
    return bytes;
}

size_t HostSlabs::locked_bytes() const {
    size_t bytes = 0;
    for (const HostMemory& slab : slabs_)
        if (slab.locked()) bytes += slab.bytes();
    return bytes;
}

size_t HostSlabs::ring_bytes() const {
    return staged_ ? staged_->ring_bytes() : 0;
}

std::string HostSlabs::report() const {
    const auto slabs =
        std::count_if(slabs_.begin(), slabs_.end(), [](const HostMemory& slab) { return slab.bytes() > 0; });
    const size_t staged_bytes = streamed_bytes() - locked_bytes();
    // The CPU backend stands in for page-locking without doing it.
    std::string text = std::to_string(slabs) + (slabs == 1 ? " slab, " : " slabs, ") + memory_text(locked_bytes()) +
                       (kBackend == Backend::cuda ? " page-locked" : " ready for the transfer stream");
    if (device_.numa_node() >= 0) text += " near NUMA node " + std::to_string(device_.numa_node());
    if (staged_bytes > 0) text += ", " + memory_text(staged_bytes) + " staged through " + memory_text(ring_bytes());
    return text;
}

size_t HostSlabs::staging_bytes() const {
    size_t bytes = 0;
    for (size_t l = 0; l < layouts_.size(); ++l)
        if (resident_[l]) bytes = std::max(bytes, layouts_[l].total_bytes());
    return bytes;
}

uint64_t HostSlabs::checksum(int layer) const {
    const std::byte* bytes = host(layer);
    if (bytes == nullptr) throw std::logic_error("host slabs: layer " + std::to_string(layer) + " has no host copy");
    uint64_t sum = 0;
    for (size_t i = 0; i < layout(layer).total_bytes(); i += sizeof(uint64_t)) {
        uint64_t word;
        std::memcpy(&word, bytes + i, sizeof word);
        sum = std::rotl(sum ^ word, 23) * 0x9e3779b97f4a7c15u;  // odd, so each step keeps differences
    }
    return sum;
}

}  // namespace slab::offload
