// The tensors that are trained: adapters, or layers in full. One table of element offsets serves weights, gradients,
// master copies and both Adam moments; only the element size differs. Tensors that decay come first, so AdamW runs over
// two ranges.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "kernels/adamw.h"
#include "kernels/runtime/real.h"
#include "kernels/runtime/runtime.h"
#include "train/spec/trained_table.h"

namespace slab::train {

// Device bytes by purpose. The plan and the allocations both take them from here.
struct TrainedBytes {
    size_t params, master, grads, moments, control;
};
TrainedBytes trained_bytes(const TrainedTable& table);

// The float32 numbers of a trained tensor: its weights and its two moments.
enum class TrainedSet { weights, exp_avg, exp_avg_sq };

class TrainedTensors {
  public:
    TrainedTensors(Device& device, const TrainedTable& table);  // throws OutOfBudget

    const TrainedTable& table() const { return table_; }
    real* param(size_t index) const { return params_.as<real>() + table_.at(index).offset_elems; }
    float* grad(size_t index) const { return grads_.as<float>() + table_.at(index).offset_elems; }

    float* grads() const { return grads_.as<float>(); }  // of all tensors, [table().total_elems()]
    const float* masters() const { return master(); }    // likewise: the float32 weights

    void zero_grads(Stream& stream);
    // Norm, clipping and AdamW. loss_sum: the step's loss on the device; a loss that is not finite skips the update.
    // settings.weight_decay applies to the tensors that decay.
    void update(const AdamWSettings& settings, float max_grad_norm, const double* loss_sum /*[1]*/, Stream& stream);
    const OptimizerControl* control() const { return control_.as<OptimizerControl>(); }  // device

    // One tensor of a set to the host, dst [rows, cols]; blocks until the stream is done.
    void read_tensor(TrainedSet set, size_t index, float* dst, Stream& stream) const;
    // Host copies of all in table order without gaps; block until the stream is done.
    std::vector<float> read_weights(Stream& stream) const;  // the float32 masters
    std::vector<float> read_grads(Stream& stream) const;
    std::vector<float> read_exp_avg(Stream& stream) const;
    std::vector<float> read_exp_avg_sq(Stream& stream) const;
    int read_applied_updates(Stream& stream) const;
    void write_weights(const std::vector<float>& packed, Stream& stream);  // sets masters and params
    // Weights, moments and applied updates of tensors with the same table, on any device of this process; enqueued.
    void copy_from(const TrainedTensors& other, Stream& stream);
    void zero_moments(Stream& stream);  // as before the first update; zeroes applied updates too
    void write_moments(const std::vector<float>& exp_avg, const std::vector<float>& exp_avg_sq, int applied_updates,
                       Stream& stream);

  private:
    std::vector<float> read_packed(const float* device, Stream& stream) const;
    std::vector<float> spread(const std::vector<float>& packed) const;  // with the gaps, zeros in them
    float* master() const { return kRealIsFloat32 ? params_.as<float>() : master_.as<float>(); }

    TrainedTable table_;
    DeviceBuffer params_, master_, grads_, exp_avg_, exp_avg_sq_, control_, scratch_;
};

}  // namespace slab::train
