// Each tensor is read once, straight to its place; only what goes to the device whole is staged.
#include "train/model/model_loading.h"

#include <algorithm>
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

// A frozen tensor outside the layers to the device, in runs of rows that the staging holds.
void send_tensor(const TensorSpec& spec, BaseWeights& weights, const HostMemory& staging, std::byte* dst,
                 Stream& stream, data::StopToken stop) {
    const size_t row_bytes = spec.cols * sizeof(real), rows_at_once = std::max<size_t>(1, staging.bytes() / row_bytes);
    for (const TensorPart& part : spec.parts)
        for (size_t row = 0; row < part.rows; row += rows_at_once) {
            const size_t rows = std::min(rows_at_once, part.rows - row);
            weights.read_part_rows(spec, part, row, rows, reinterpret_cast<real*>(staging.data()),
                                   stream.device().pool(), stop);
            copy_async(dst, staging.data(), rows * row_bytes, CopyKind::host_to_device, stream);
            stream.synchronize();  // the staging is filled anew
            dst += rows * row_bytes;
        }
}

}  // namespace

void read_slab(const TensorGroup& group, BaseWeights& weights, std::byte* dst, ThreadPool& pool, data::StopToken stop) {
    for (const Placed& tensor : group.tensors)
        if (tensor.in_slab)
            weights.read(tensor.spec, reinterpret_cast<real*>(dst + group.slab.offset_bytes(*tensor.in_slab)), pool,
                         stop);
}

void read_moved_slab(const ModelLayout& layout, int layer, BaseWeights& weights, std::byte* dst, ThreadPool& pool,
                     data::StopToken stop, EncodeErrors& errors) {
    const TensorGroup& group = layout.layer(layer);
    if (!layout.is_encoded()) return read_slab(group, weights, dst, pool, stop);
    for (const EncodedPiece& piece : layout.encoded.at(static_cast<size_t>(layer)).pieces) {
        const TensorSpec& spec = group.tensors.at(piece.tensor).spec;
        std::byte* const to = dst + piece.moved_offset_bytes;
        if (piece.format != BlockFormat::plain) {
            const TensorPart& part = spec.parts.at(piece.first_part);
            const EncodeReport report = weights.read_encoded(spec, part, piece.format, to, pool, stop);
            if (layout.settings.slab_format != SlabFormat::as_is) errors.add(part.key, report);
            continue;
        }
        real* plain = reinterpret_cast<real*>(to);
        for (size_t part = piece.first_part; part < piece.first_part + piece.parts; ++part) {
            weights.read_part(spec, spec.parts.at(part), plain, pool, stop);
            plain += spec.parts.at(part).rows * spec.cols;
        }
    }
}

void load_outer(const ModelLayout& layout, BaseWeights& weights, ModelMemory& memory, Stream& stream,
                data::StopToken stop) {
    Device& device = stream.device();
    const TensorGroup& group = layout.outside();
    if (const size_t bytes = layout.outer_staging_bytes(); bytes != 0) {
        // Copies at the start: not worth locking pages for.
        const HostMemory staging(bytes, device.numa_node(), "embeddings, final norm, head");
        for (const Placed& tensor : group.tensors)
            if (tensor.in_slab)
                send_tensor(tensor.spec, weights, staging,
                            memory.outer_weights.data() + group.slab.offset_bytes(*tensor.in_slab), stream, stop);
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
