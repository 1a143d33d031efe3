// The slot's protocol. Each marked wait is removed in turn by tests/mutation_test.sh, which shows the tests failing.
#include "offload/ring_slot.h"

namespace slab::offload {

void RingSlot::fill(SlabSource& source, int layer, Stream& transfer) {
    if (free_.recorded()) transfer.wait(free_);  // guard: FREE
    source.enqueue(layer, memory_, transfer);
    ready_.record(transfer);
}

void RingSlot::await(Stream& compute) {
    compute.wait(ready_);  // guard: READY
}

void RingSlot::let_go(Stream& compute) {
    free_.record(compute);
}

}  // namespace slab::offload
