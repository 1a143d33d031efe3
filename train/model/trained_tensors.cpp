// Storage and update. In float32 builds the weights are their own master copies.
#include "train/model/trained_tensors.h"

#include <initializer_list>
#include <stdexcept>

#include "train/spec/trained_table.h"

namespace slab::train {

TrainedBytes trained_bytes(const TrainedTable& table) {
    const size_t n = table.total_elems();
    if (n == 0) return {};
    return {.params = n * sizeof(real),
            .master = kRealIsFloat32 ? 0 : n * sizeof(float),
            .grads = n * sizeof(float),
            .moments = n * sizeof(float),  // each of the two
            .control = sizeof(OptimizerControl) + gradient_norm_scratch_bytes(n)};
}

TrainedTensors::TrainedTensors(Device& device, const TrainedTable& table) : table_(table) {
    const TrainedBytes bytes = trained_bytes(table);
    if (table.empty()) return;
    params_ = DeviceBuffer(device, bytes.params, MemoryCategory::trained, "trained weights");
    if (bytes.master != 0)
        master_ = DeviceBuffer(device, bytes.master, MemoryCategory::trained, "float32 masters of trained weights");
    grads_ = DeviceBuffer(device, bytes.grads, MemoryCategory::trained, "gradients");
    exp_avg_ = DeviceBuffer(device, bytes.moments, MemoryCategory::optimizer, "exp_avg");
    exp_avg_sq_ = DeviceBuffer(device, bytes.moments, MemoryCategory::optimizer, "exp_avg_sq");
    control_ = DeviceBuffer(device, sizeof(OptimizerControl), MemoryCategory::optimizer, "optimizer control");
    scratch_ = DeviceBuffer(device, gradient_norm_scratch_bytes(table.total_elems()), MemoryCategory::optimizer,
                            "gradient norm scratch");
}

void TrainedTensors::zero_grads(Stream& stream) {
    if (!table_.empty()) fill_async(grads_.data(), 0, grads_.bytes(), stream);
}

void TrainedTensors::update(const AdamWSettings& settings, float max_grad_norm, const double* loss_sum,
                            Stream& stream) {
    const size_t n = table_.total_elems(), decayed = table_.decayed_elems();
    auto* control = control_.as<OptimizerControl>();
    gradient_norm({.control = control,
                   .scratch = scratch_.as<double>(),
                   .grad = grads_.as<float>(),
                   .n = n,
                   .max_norm = max_grad_norm,
                   .loss_sum = loss_sum,
                   .beta1 = settings.beta1,
                   .beta2 = settings.beta2},
                  stream);
    const auto update_range = [&](size_t begin, size_t end, float weight_decay) {
        if (begin == end) return;
        AdamWUpdate<real> a{.param = params_.as<real>() + begin,
                            .master = kRealIsFloat32 ? nullptr : master_.as<float>() + begin,
                            .grad = grads_.as<float>() + begin,
                            .exp_avg = exp_avg_.as<float>() + begin,
                            .exp_avg_sq = exp_avg_sq_.as<float>() + begin,
                            .n = end - begin,
                            .settings = settings,
                            .control = control};
        a.settings.weight_decay = weight_decay;
        adamw_update(a, stream);
    };
    update_range(0, decayed, settings.weight_decay);
    update_range(decayed, n, 0.0f);
}

void TrainedTensors::read_tensor(TrainedSet set, size_t index, float* dst, Stream& stream) const {
    const float* const base = set == TrainedSet::weights   ? master()
                              : set == TrainedSet::exp_avg ? exp_avg_.as<float>()
                                                           : exp_avg_sq_.as<float>();
    const TrainedTensor& t = table_.at(index);
    copy_async(dst, base + t.offset_elems, t.elems() * sizeof(float), CopyKind::device_to_host, stream);
    stream.synchronize();
}

std::vector<float> TrainedTensors::read_packed(const float* device, Stream& stream) const {
    std::vector<float> all(table_.total_elems()), packed;
    if (all.empty()) return packed;
    copy_async(all.data(), device, all.size() * sizeof(float), CopyKind::device_to_host, stream);
    stream.synchronize();
    packed.reserve(table_.parameter_count());
    for (const auto& t : table_.tensors())
        packed.insert(packed.end(), all.data() + t.offset_elems, all.data() + t.offset_elems + t.elems());
    return packed;
}

std::vector<float> TrainedTensors::spread(const std::vector<float>& packed) const {
    if (packed.size() != table_.parameter_count()) throw std::logic_error("packed trained tensors have the wrong size");
    std::vector<float> all(table_.total_elems(), 0.0f);
    const std::vector<size_t> packed_offsets = table_.packed_offsets();
    for (size_t i = 0; i < packed_offsets.size(); ++i) {
        const TrainedTensor& t = table_.at(i);
        std::copy_n(packed.data() + packed_offsets[i], t.elems(), all.data() + t.offset_elems);
    }
    return all;
}

std::vector<float> TrainedTensors::read_weights(Stream& stream) const {
    return read_packed(master(), stream);
}
std::vector<float> TrainedTensors::read_grads(Stream& stream) const {
    return read_packed(grads_.as<float>(), stream);
}
std::vector<float> TrainedTensors::read_exp_avg(Stream& stream) const {
    return read_packed(exp_avg_.as<float>(), stream);
}
std::vector<float> TrainedTensors::read_exp_avg_sq(Stream& stream) const {
    return read_packed(exp_avg_sq_.as<float>(), stream);
}

int TrainedTensors::read_applied_updates(Stream& stream) const {
    if (table_.empty()) return 0;
    OptimizerControl control{};
    copy_async(&control, control_.data(), sizeof control, CopyKind::device_to_host, stream);
    stream.synchronize();
    return control.applied;
}

void TrainedTensors::write_weights(const std::vector<float>& packed, Stream& stream) {
    const std::vector<float> all = spread(packed);
    if (all.empty()) return;
    copy_async(master(), all.data(), all.size() * sizeof(float), CopyKind::host_to_device, stream);
    std::vector<real> rounded;
    if (!kRealIsFloat32) {
        rounded.resize(all.size());
        for (size_t i = 0; i < all.size(); ++i) rounded[i] = to_real(all[i]);
        copy_async(params_.data(), rounded.data(), rounded.size() * sizeof(real), CopyKind::host_to_device, stream);
    }
    stream.synchronize();
}

void TrainedTensors::copy_from(const TrainedTensors& other, Stream& stream) {
    if (table_.empty()) return;
    for (const auto member : {&TrainedTensors::params_, &TrainedTensors::master_, &TrainedTensors::exp_avg_,
                              &TrainedTensors::exp_avg_sq_, &TrainedTensors::control_}) {
        const DeviceBuffer& from = other.*member;
        if (from.bytes() != (this->*member).bytes()) throw std::logic_error("trained tensors of another table");
        if (from.bytes() != 0)
            copy_async((this->*member).data(), from.data(), from.bytes(), CopyKind::device_to_device, stream);
    }
}

void TrainedTensors::zero_moments(Stream& stream) {
    if (table_.empty()) return;
    fill_async(exp_avg_.data(), 0, exp_avg_.bytes(), stream);
    fill_async(exp_avg_sq_.data(), 0, exp_avg_sq_.bytes(), stream);
    fill_async(control_.data(), 0, sizeof(OptimizerControl), stream);
}

void TrainedTensors::write_moments(const std::vector<float>& exp_avg, const std::vector<float>& exp_avg_sq,
                                   int applied_updates, Stream& stream) {
    if (table_.empty()) return;
    const std::vector<float> m = spread(exp_avg), v = spread(exp_avg_sq);
    OptimizerControl control{};
    control.applied = applied_updates;
    copy_async(exp_avg_.data(), m.data(), m.size() * sizeof(float), CopyKind::host_to_device, stream);
    copy_async(exp_avg_sq_.data(), v.data(), v.size() * sizeof(float), CopyKind::host_to_device, stream);
    copy_async(control_.data(), &control, sizeof control, CopyKind::host_to_device, stream);
    stream.synchronize();
}

}  // namespace slab::train
