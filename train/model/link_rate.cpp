// The best of a few copies: anything slower was disturbed.
#include "train/model/link_rate.h"

#include <algorithm>

namespace slab::train {

double measure_link_gbps(Model& model) {
    const int layer = model.layout().ring.streamed().at(0);
    const offload::HostStore& slabs = model.slabs();
    Stream& transfer = model.transfer();
    const DeviceBuffer& idle = model.idle_memory();
    const size_t slab_bytes = slabs.layout(layer).total_bytes(), bytes = std::min(slab_bytes, idle.bytes());
    Event start(transfer.device(), true), end(transfer.device(), true);
    double best_ms = 1e30;
    for (int repeat = 0; repeat < 4; ++repeat) {
        start.record(transfer);
        if (bytes == slab_bytes)
            model.sender().enqueue(layer, idle.data(), transfer);
        else
            copy_async(idle.data(), slabs.host(layer), bytes, CopyKind::host_to_device, transfer);
        end.record(transfer);
        end.synchronize();
        best_ms = std::min<double>(best_ms, elapsed_ms(start, end));
    }
    return static_cast<double>(bytes) / 1e6 / std::max(best_ms, 1e-6);
}

}  // namespace slab::train
