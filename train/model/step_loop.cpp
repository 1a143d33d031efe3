// Results are copied into page-locked memory and read after their event, so that the host can enqueue the next step.
#include "train/model/step_loop.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "train/spec/micro_batch.h"

namespace slab::train {

namespace {
constexpr size_t kStepsInFlight = 2;
constexpr size_t kControlOffset = 16;  // of OptimizerControl, after the loss sum
constexpr size_t kDigestOffset = 64;
static_assert(kControlOffset + sizeof(OptimizerControl) <= kDigestOffset);
constexpr size_t kReadBackBytes = kDigestOffset + sizeof(uint64_t);
constexpr size_t kEvalLosses = 1024;  // of an evaluation's batches, before the host waits for them
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

StepLoop::StepLoop(Model& model, Comm* comm) : model_(model), comm_(comm) {
    Device& device = model.compute().device();
    if (comm_ != nullptr) {
        sums_.emplace(model, *comm_);
        eval_losses_ = PinnedBuffer(device, kEvalLosses * sizeof(double), "losses of an evaluation");
    }
    for (size_t i = 0; i < kStepsInFlight + 1; ++i) {
        auto slot = std::make_unique<ReadBack>();
        slot->buffer = PinnedBuffer(device, kReadBackBytes, "loss and norm");
        slot->started = std::make_unique<Event>(device, true);
        slot->ended = std::make_unique<Event>(device, true);
        slot->arrived = std::make_unique<Event>(device);
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

bool StepLoop::any_stops(data::StopToken stop, const std::string& why, CallTag tag) {
    if (comm_ == nullptr) return false;
    Bytes mine(1 + why.size());
    mine[0] = std::byte{stop.requested()};
    if (!why.empty()) std::memcpy(mine.data() + 1, why.data(), why.size());
    bool stops = false;
    std::string failed;
    int rank = 0;
    for (const Bytes& each : comm_->meet(std::move(mine), tag)) {
        stops = stops || each[0] != std::byte{0};
        if (each.size() > 1 && failed.empty())
            failed = "rank " + std::to_string(rank) + ": " +
                     std::string(reinterpret_cast<const char*>(each.data()) + 1, each.size() - 1);
        ++rank;
    }
    if (!failed.empty()) throw DataFailed(failed);
    return stops;
}

// Of all micro-batches: every rank counts them itself.
std::optional<size_t> StepLoop::count_targets(const StepData& data, data::StopToken stop) {
    size_t targets = 0;
    if (comm_ != nullptr) {
        comm_->alive({"reading data, step", enqueued_ + 1});
        std::string why;
        try {
            for (uint64_t i = 0; i < data.micro_batches; ++i) targets += data.target_count(i);
        } catch (const std::exception& error) {
            why = error.what();
        }
        if (any_stops(stop, why, {"targets of step", enqueued_ + 1})) return std::nullopt;
        return targets;
    }
    for (uint64_t i = 0; i < data.micro_batches; ++i) {
        if (stop.requested()) return std::nullopt;
        targets += data.target_count(i);
    }
    return targets;
}

std::optional<size_t> StepLoop::enqueue(const StepData& data, const StepSettings& settings, data::StopToken stop) {
    if (pending_.size() == kStepsInFlight) throw std::logic_error("collect() the results of earlier steps first");
    Stream& stream = model_.compute();
    StepResult result;
    result.tokens = data.tokens;
    const std::optional<size_t> counted = count_targets(data, stop);
    if (!counted) return std::nullopt;
    result.targets = *counted;
    ReadBack& slot = *free_.front();
    size_t read_back_bytes = 0;
    if (result.targets != 0) {
        slot.started->record(stream);
        StreamingScope scope(model_.offload(), model_.layout().training_visits());
        const bool done =
            comm_ != nullptr ? run_rounds(data, result.targets, stop) : run_micro_batches(data, result.targets, stop);
        scope.finish();
        if (!done) return std::nullopt;
        if (settings.update)
            model_.trained().update(settings.adamw, settings.max_grad_norm,
                                    sums_ ? sums_->loss_sum() : model_.train_loss_sum(), stream);
        read_back_bytes = read_back(slot, settings.update);
        slot.ended->record(stream);
        slot.arrived->record(stream);
    }
    slot.result = result;
    pending_.push_back(std::move(free_.front()));
    free_.pop_front();
    ++enqueued_;
    return read_back_bytes;
}

// One rank adds all gradients in place. Returns false once `stop` is requested.
bool StepLoop::run_micro_batches(const StepData& data, size_t targets, data::StopToken stop) {
    const float dloss = 1.0f / static_cast<float>(targets);
    size_t seen = 0;
    model_.begin_step();
    for (uint64_t i = 0; i < data.micro_batches; ++i) {
        if (stop.requested()) return false;
        const MicroBatch batch = data.batch(i);
        seen += batch.target_count();
        model_.forward_backward(batch, dloss);
    }
    if (seen != targets) throw std::logic_error("the batches do not have the targets that were counted");
    return true;
}

// This rank's micro-batches, in rounds with the other ranks. A round begins when all have read their data.
bool StepLoop::run_rounds(const StepData& data, size_t targets, data::StopToken stop) {
    const float dloss = 1.0f / static_cast<float>(targets);
    const uint64_t every = static_cast<uint64_t>(model_.layout().settings.exchange_every);
    const uint64_t in_round = every * static_cast<uint64_t>(comm_->size());
    const int64_t step = enqueued_ + 1;
    sums_->begin_step();
    for (uint64_t first = 0; first < data.micro_batches; first += in_round) {
        const uint64_t end = std::min(first + in_round, data.micro_batches);
        const uint64_t mine = std::min(end, first + every * static_cast<uint64_t>(comm_->rank()));
        std::vector<MicroBatch> batches;
        std::string why;
        comm_->alive({"reading data, step", step});
        try {
            for (uint64_t i = mine; i < std::min(end, mine + every); ++i) batches.push_back(data.batch(i));
        } catch (const std::exception& error) {
            why = error.what();
        }
        if (any_stops(stop, why, {"round of step", step})) return false;
        sums_->begin_round();
        for (size_t place = 0; place < batches.size(); ++place) {
            comm_->alive({"micro-batch of step", step});
            model_.zero_train_loss();
            model_.forward_backward(batches[place], dloss);
            sums_->keep_loss(place);
        }
        sums_->end_round(end - first);
    }
    sums_->end_step();
    return true;
}

// Loss and control, and with other ranks the digest. Returns the bytes.
size_t StepLoop::read_back(ReadBack& slot, bool update) {
    Stream& stream = model_.compute();
    size_t bytes = 0;
    const auto send = [&](size_t offset, const void* from, size_t n) {
        copy_async(slot.buffer.data() + offset, from, n, CopyKind::device_to_host, stream);
        bytes += n;
    };
    send(0, sums_ ? sums_->loss_sum() : model_.train_loss_sum(), sizeof(double));
    if (update) send(kControlOffset, model_.trained().control(), sizeof(OptimizerControl));
    if (sums_) {
        sums_->digest_weights();
        send(kDigestOffset, sums_->digest(), sizeof(uint64_t));
    }
    return bytes;
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
        if (comm_ != nullptr) {
            uint64_t digest = 0;
            std::memcpy(&digest, slot.buffer.data() + kDigestOffset, sizeof digest);
            compare_weights(digest);
        }
    }
    ++collected_;
    before_ = result.targets != 0 ? &slot : nullptr;
    return result;
}

// The rank that is not of the majority is named; of two ranks nobody knows which.
void StepLoop::compare_weights(uint64_t digest) {
    const int64_t step = collected_ + 1;
    const std::vector<uint64_t> all = comm_->meet_values(digest, {"weights after step", step});
    const auto as_many = [&](uint64_t value) { return std::count(all.begin(), all.end(), value); };
    if (as_many(digest) == static_cast<std::ptrdiff_t>(all.size())) return;
    uint64_t common = all.front();
    for (const uint64_t value : all)
        if (as_many(value) > as_many(common)) common = value;
    std::string odd;
    for (size_t rank = 0; rank < all.size(); ++rank)
        if (all[rank] != common) odd += (odd.empty() ? "" : ", ") + std::to_string(rank);
    const bool told_apart = 2 * as_many(common) > static_cast<std::ptrdiff_t>(all.size());
    throw DeviceError((told_apart ? "the weights of rank " + odd + " differ from the other ranks'"
                                  : std::string("the ranks' weights differ from each other")) +
                      " after step " + std::to_string(step) +
                      " of this process, although all computed the same update. Nothing of it is saved. Hint: a device "
                      "or its memory is faulty; look at nvidia-smi -q -d ECC");
}

void StepLoop::restart_clock() {
    if (!pending_.empty()) throw std::logic_error("a step is under way");
    before_ = nullptr;
}

std::optional<double> StepLoop::evaluate(uint64_t count, const std::function<MicroBatch(uint64_t)>& batch,
                                         data::StopToken stop) {
    if (comm_ != nullptr) return evaluate_part(count, batch, stop);
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

// Batch i on rank i mod N. The losses are added on the host, in the order of the batches, as the device adds them.
std::optional<double> StepLoop::evaluate_part(uint64_t count, const std::function<MicroBatch(uint64_t)>& batch,
                                              data::StopToken stop) {
    Stream& stream = model_.compute();
    const uint64_t ranks = static_cast<uint64_t>(comm_->size());
    const int64_t number = ++evaluations_;
    std::vector<double> losses;
    std::string why;
    uint64_t targets = 0;
    size_t on_the_way = 0;
    const auto fetch = [&] {
        stream.synchronize();
        losses.insert(losses.end(), eval_losses_.as<double>(), eval_losses_.as<double>() + on_the_way);
        on_the_way = 0;
    };
    {
        StreamingScope scope(model_.offload(), model_.layout().evaluation_visits());
        for (uint64_t i = static_cast<uint64_t>(comm_->rank()); i < count && !stop.requested(); i += ranks) {
            comm_->alive({"evaluation", number});
            MicroBatch next;
            try {
                next = batch(i);
            } catch (const std::exception& error) {
                why = error.what();
                break;
            }
            model_.evaluate(next, false);
            targets += next.target_count();
            copy_async(eval_losses_.as<double>() + on_the_way, model_.eval_loss_sum(), sizeof(double),
                       CopyKind::device_to_host, stream);
            if (++on_the_way == kEvalLosses) fetch();
        }
        scope.finish();
        fetch();
    }
    if (any_stops(stop, why, {"end of evaluation", number})) return std::nullopt;
    uint64_t all_targets = 0;
    for (const uint64_t its : comm_->meet_values(targets, {"targets of evaluation", number})) all_targets += its;
    Bytes mine(losses.size() * sizeof(double));
    if (!mine.empty()) std::memcpy(mine.data(), losses.data(), mine.size());
    const std::vector<Bytes> all = comm_->meet(std::move(mine), {"losses of evaluation", number});
    if (all_targets == 0) return std::numeric_limits<double>::quiet_NaN();
    double sum = 0;
    for (uint64_t i = 0; i < count; ++i) {
        double loss = 0;
        std::memcpy(&loss, all.at(i % ranks).data() + i / ranks * sizeof loss, sizeof loss);
        sum = i == 0 ? loss : sum + loss;
    }
    return sum / static_cast<double>(all_targets);
}

}  // namespace slab::train
