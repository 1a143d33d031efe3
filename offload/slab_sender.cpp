// Three ways to a slot: one copy, chunks through the staging ring, or through a buffer that the loader fills.
//
// tests/mutation_test.sh removes each marked wait and shows the tests failing.
#include "offload/slab_sender.h"

#include <exception>
#include <utility>

namespace slab::offload {

namespace {

// Waits for work that may fail, where an error is on its way to the caller already and nothing is copied after it.
void drain(Stream& stream) {
    try {
        stream.synchronize();
    } catch (const std::exception&) {
        // The first error says more.
    }
}

}  // namespace

SlabSender::SlabSender(const HostStore& store, Device& device, std::function<void(Stream&)> disturb)
    : store_(store), device_(device), disturb_(std::move(disturb)) {
    for (int layer = 0; layer < layers(); ++layer)
        resident_slabs_ += !asynchronous(layer) && store_.layout(layer).total_bytes() > 0;
    if (store_.staged()) staging_ring();
}

StagedSlabs& SlabSender::staging_ring() {
    if (!staged_) staged_ = std::make_unique<StagedSlabs>(device_, store_.staging_chunk_bytes(), disturb_);
    return *staged_;
}

void SlabSender::enqueue(int layer, std::byte* slot, Stream& transfer) {
    if (asynchronous(layer)) {
        send(store_.slab(layer), store_.layout(layer).total_bytes(), slot, transfer);
        return;
    }
    try {
        send_resident(layer, slot, transfer);
    } catch (...) {
        // The caller gives up on all resident layers, and may begin anew. No copy may still read the buffer.
        drain(transfer);  // guard: ABANDON
        resident_staging_ = {};
        resident_sent_ = 0;
        throw;
    }
}

void SlabSender::send(const HostMemory& memory, size_t bytes, std::byte* slot, Stream& transfer) {
    if (memory.locked())
        copy_async(slot, memory.data(), bytes, CopyKind::host_to_device, transfer);
    else
        staging_ring().enqueue(memory.data(), slot, bytes, transfer);
}

void SlabSender::send_resident(int layer, std::byte* slot, Stream& transfer) {
    if (resident_staging_.bytes() == 0)
        resident_staging_ =
            HostMemory(store_.resident_staging_bytes(), device_.numa_node(), "staging of resident layers");
    store_.read(layer, resident_staging_.data());
    if (resident_sent_ == 0 && !store_.staged()) lock_resident_staging();
    send(resident_staging_, store_.layout(layer).total_bytes(), slot, transfer);
    // The next layer is read into the same memory.
    transfer.synchronize();  // guard: REFILL
    // Every resident layer is asked for once when streaming is attached; after the last one the buffer goes.
    if (++resident_sent_ < resident_slabs_) return;
    resident_staging_ = {};
    resident_sent_ = 0;
}

// After its pages were touched by the loader's threads. A refusal leaves it pageable: the layers are staged.
void SlabSender::lock_resident_staging() {
    try {
        resident_staging_.lock(device_, "staging of resident layers");
    } catch (const PinnedLimit&) {
        // The store made room for it, and others took that since.
    }
}

}  // namespace slab::offload
