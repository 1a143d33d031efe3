// Each tensor is read once, straight to its place; only what goes to the device whole is staged.
#include "train/model/model_loading.h"

#include <initializer_list>
#include <stdexcept>
#include <utility>
#include <vector>

#include "kernels/rotary.h"
#include "kernels/runtime/host_memory.h"
#include "train/model/initial_adapter.h"

namespace slab::train {

namespace {

std::vector<float> rotary_table_of(const ModelConfig& c, int positions) {
    const RotaryScalingParams scaling{
        .llama3 = c.rope_scaling.llama3,
        .factor = c.rope_scaling.factor,
        .low_freq_factor = c.rope_scaling.low_freq_factor,
        .high_freq_factor = c.rope_scaling.high_freq_factor,
        .original_max_position_embeddings = c.rope_scaling.original_max_position_embeddings};
    return rotary_table(positions, c.HD, c.rope_theta, scaling);
}

}  // namespace

void read_slab(const TensorGroup& group, BaseWeights& weights, std::byte* dst, ThreadPool& pool, data::StopToken stop) {
    for (const Placed& tensor : group.tensors)
        if (tensor.in_slab)
            weights.read(tensor.spec, reinterpret_cast<real*>(dst + group.slab.offset_bytes(*tensor.in_slab)), pool,
                         stop);
}

void load_outer(const ModelLayout& layout, BaseWeights& weights, ModelMemory& memory, Stream& stream,
                data::StopToken stop) {
    Device& device = stream.device();
    if (const size_t bytes = layout.outside().slab.total_bytes(); bytes != 0) {
        // One copy at the start: not worth locking pages for.
        const HostMemory staging(bytes, device.numa_node(), "embeddings, final norm, head");
        read_slab(layout.outside(), weights, staging.data(), device.pool(), stop);
        copy_async(memory.outer_weights.data(), staging.data(), staging.bytes(), CopyKind::host_to_device, stream);
        stream.synchronize();
    }
    if (layout.config.rotary) {
        const std::vector<float> table = rotary_table_of(layout.config, layout.rotary_positions);
        copy_async(memory.rotary.data(), table.data(), table.size() * sizeof(float), CopyKind::host_to_device, stream);
        stream.synchronize();
    }
}

void copy_outer(const ModelLayout& layout, const ModelMemory& from, ModelMemory& memory, Stream& stream) {
    for (const auto& [to, source] :
         {std::pair{&memory.outer_weights, &from.outer_weights}, std::pair{&memory.rotary, &from.rotary}})
        if (to->bytes() != 0) copy_async(to->data(), source->data(), to->bytes(), CopyKind::device_to_device, stream);
    if (from.outer_weights.bytes() != layout.outside().slab.total_bytes())
        throw std::logic_error("weights outside the layers of another layout");
    stream.synchronize();
}

void load_trained(const ModelLayout& layout, BaseWeights& weights, TrainedTensors& trained, uint64_t seed,
                  Stream& stream, data::StopToken stop) {
    const TrainedTable& table = layout.trained;
    std::vector<float> packed;
    if (layout.settings.lora) {
        packed = initial_adapter(table, seed);
    } else {
        packed.resize(table.parameter_count());
        const std::vector<size_t> packed_offsets = table.packed_offsets();
        for (const TensorGroup& group : layout.groups)
            for (const Placed& tensor : group.tensors)
                if (tensor.in_trained)  // the parts of one tensor follow each other in the table
                    weights.read(tensor.spec, packed.data() + packed_offsets[*tensor.in_trained],
                                 stream.device().pool(), stop);
    }
    trained.write_weights(packed, stream);
    trained.zero_moments(stream);
    trained.zero_grads(stream);
    stream.synchronize();
}

}  // namespace slab::train
