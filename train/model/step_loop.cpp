// Results are copied into page-locked memory and read after their event, so that the host can enqueue the next step.
#include "train/model/step_loop.h"

#include <cstring>
#include <limits>
#include <stdexcept>

#include "train/spec/micro_batch.h"

namespace slab::train {

namespace {
constexpr size_t kStepsInFlight = 2;
constexpr size_t kControlOffset = 16;  // of OptimizerControl, after the loss sum
}  // namespace

StreamingScope::StreamingScope(offload::LayerOffloadManager& manager, const std::vector<int>& visits)
    : manager_(manager) {
    manager_.pre_step(visits);
}

StreamingScope::~StreamingScope() {
    if (finished_) return;
    try {
        manager_.post_step();
    } catch (const std::exception&) {
        // The exception under way says more than the unfinished schedule.
    }
}

void StreamingScope::finish() {
    finished_ = true;
    manager_.post_step();
}

StepLoop::StepLoop(Model& model) : model_(model) {
    for (size_t i = 0; i < kStepsInFlight + 1; ++i) {
        auto slot = std::make_unique<ReadBack>();
        slot->buffer =
            PinnedBuffer(model.compute().device(), kControlOffset + sizeof(OptimizerControl), "loss and norm");
        slot->started = std::make_unique<Event>(model.compute().device(), true);
        slot->ended = std::make_unique<Event>(model.compute().device(), true);
        slot->arrived = std::make_unique<Event>(model.compute().device());
        free_.push_back(std::move(slot));
    }
}

StepLoop::~StepLoop() {
    // The stream still writes into the buffers of steps that were not collected, as when a run ends in an exception.
    for (const auto& slot : pending_) {
        if (!slot->arrived->recorded()) continue;
        try {
            slot->arrived->synchronize();
        } catch (const std::exception&) {
            // Whoever synchronises the stream gets its error; nothing is written after it.
        }
    }
}

std::optional<size_t> StepLoop::enqueue(const StepData& data, const StepSettings& settings, data::StopToken stop) {
    if (pending_.size() == kStepsInFlight) throw std::logic_error("collect() the results of earlier steps first");
    Stream& stream = model_.compute();
    StepResult result;
    result.tokens = data.tokens;
    for (uint64_t i = 0; i < data.micro_batches; ++i) {
        if (stop.requested()) return std::nullopt;
        result.targets += data.target_count(i);
    }
    ReadBack& slot = *free_.front();
    size_t read_back_bytes = 0;
    if (result.targets != 0) {
        slot.started->record(stream);
        model_.begin_step();
        const float dloss = 1.0f / static_cast<float>(result.targets);
        StreamingScope scope(model_.offload(), model_.layout().training_visits());
        size_t targets = 0;
        for (uint64_t i = 0; i < data.micro_batches; ++i) {
            if (stop.requested()) {
                scope.finish();
                return std::nullopt;
            }
            const MicroBatch batch = data.batch(i);
            targets += batch.target_count();
            model_.forward_backward(batch, dloss);
        }
        scope.finish();
        if (targets != result.targets) throw std::logic_error("the batches do not have the targets that were counted");
        if (settings.update)
            model_.trained().update(settings.adamw, settings.max_grad_norm, model_.train_loss_sum(), stream);
        read_back_bytes = sizeof(double) + (settings.update ? sizeof(OptimizerControl) : 0);
        copy_async(slot.buffer.data(), model_.train_loss_sum(), sizeof(double), CopyKind::device_to_host, stream);
        if (settings.update)
            copy_async(slot.buffer.data() + kControlOffset, model_.trained().control(), sizeof(OptimizerControl),
                       CopyKind::device_to_host, stream);
        slot.ended->record(stream);
        slot.arrived->record(stream);
    }
    slot.result = result;
    pending_.push_back(std::move(free_.front()));
    free_.pop_front();
    return read_back_bytes;
}

size_t StepLoop::enqueue(const std::vector<MicroBatch>& micro_batches, const StepSettings& settings) {
    size_t tokens = 0;
    for (const MicroBatch& batch : micro_batches) tokens += batch.tokens.size();
    const StepData data{.micro_batches = micro_batches.size(),
                        .tokens = tokens,
                        .target_count = [&](uint64_t i) { return micro_batches[i].target_count(); },
                        .batch = [&](uint64_t i) { return micro_batches[i]; }};
    return *enqueue(data, settings, {});
}

StepResult StepLoop::collect() {
    if (pending_.empty()) throw std::logic_error("no step is pending");
    free_.push_back(std::move(pending_.front()));  // stays there also when the step failed: a copy may be on its way
    pending_.pop_front();
    ReadBack& slot = *free_.back();
    StepResult result = slot.result;
    if (result.targets != 0) {
        slot.arrived->synchronize();  // guard: READ_BACK
        double loss_sum = 0;
        OptimizerControl control{};
        std::memcpy(&loss_sum, slot.buffer.data(), sizeof loss_sum);
        std::memcpy(&control, slot.buffer.data() + kControlOffset, sizeof control);
        result.loss = loss_sum / static_cast<double>(result.targets);
        result.grad_norm = control.grad_norm;
        result.skipped = control.skip != 0;
        result.seconds = 1e-3 * elapsed_ms(before_ ? *before_->ended : *slot.started, *slot.ended);
    }
    before_ = result.targets != 0 ? &slot : nullptr;
    return result;
}

void StepLoop::restart_clock() {
    if (!pending_.empty()) throw std::logic_error("a step is under way");
    before_ = nullptr;
}

std::optional<double> StepLoop::evaluate(uint64_t count, const std::function<MicroBatch(uint64_t)>& batch,
                                         data::StopToken stop) {
    Stream& stream = model_.compute();
    StreamingScope scope(model_.offload(), model_.layout().evaluation_visits());
    size_t targets = 0;
    uint64_t done = 0;
    for (; done < count && !stop.requested(); ++done) {
        const MicroBatch next = batch(done);
        model_.evaluate(next, done > 0);
        targets += next.target_count();
    }
    scope.finish();
    if (done < count) return std::nullopt;
    if (targets == 0) return std::numeric_limits<double>::quiet_NaN();
    double loss_sum = 0;
    copy_async(&loss_sum, model_.eval_loss_sum(), sizeof loss_sum, CopyKind::device_to_host, stream);
    stream.synchronize();
    return loss_sum / static_cast<double>(targets);
}

}  // namespace slab::train
