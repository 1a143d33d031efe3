// One optimizer step: visits announced, the loss normalised over all micro-batches, loss and norm read back.
//
// The read-back goes through page-locked memory, so that the host never waits for the step it has just enqueued.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "data/base/stop_token.h"
#include "kernels/adamw.h"
#include "kernels/runtime/comm.h"
#include "kernels/runtime/runtime.h"
#include "offload/layer_offload_manager.h"
#include "train/model/model.h"
#include "train/model/rank_sums.h"
#include "train/spec/micro_batch.h"

namespace slab::train {

// Announces the visits of a stretch of work and closes it, also when it ends in an exception.
class StreamingScope {
  public:
    StreamingScope(offload::LayerOffloadManager& manager, const std::vector<int>& visits);
    ~StreamingScope();
    // Checks the bytes moved against the schedule; throws std::logic_error when they differ.
    void finish();
    StreamingScope(const StreamingScope&) = delete;
    StreamingScope& operator=(const StreamingScope&) = delete;

  private:
    offload::LayerOffloadManager& manager_;
    bool finished_ = false;
};

struct StepSettings {
    AdamWSettings adamw;
    float max_grad_norm;  // <= 0: no clipping
    bool update = true;   // false: gradients only (tests)
};

struct StepResult {
    double loss = 0;       // mean over the step's targets
    float grad_norm = 0;   // before clipping
    bool skipped = false;  // loss or norm was not finite: nothing was updated
    size_t targets = 0;    // 0: the step had none and was not run at all
    size_t tokens = 0;
    // On the device's clock, from the end of the step before, so that the host's work in between counts. After
    // restart_clock() from the step's own first operation. 0 if it was not run.
    double seconds = 0;
};

// The micro-batches of one step, made when their turn comes, so that no more than one exists at a time.
struct StepData {
    uint64_t micro_batches;
    size_t tokens;  // of all
    // Targets of the i-th, as batch(i) will have them. All are counted before the first backward: the loss is the mean
    // over the step's targets.
    std::function<size_t(uint64_t)> target_count;
    std::function<MicroBatch(uint64_t)> batch;
};

// Some rank's data cannot be read: thrown on all ranks, in its words, where StepData threw on one.
struct DataFailed : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class StepLoop {
  public:
    // comm: null, or this rank's end of a run on several ranks. Then every rank makes the same calls with the same
    // data; each takes its part of the micro-batches, and results are equal on all. A rank that asks to stop stops all.
    explicit StepLoop(Model& model, Comm* comm = nullptr);
    ~StepLoop();  // waits for results still on their way

    // Enqueues one step over its micro-batches, in their order; one without targets enqueues nothing. Returns the bytes
    // that the step sends back to the host: loss and control, nothing else ever.
    // Once `stop` is requested the step is dropped and nothing is returned; an exception of `data` drops it too. What
    // was enqueued changed gradients, which the next step begins anew, and no weight.
    std::optional<size_t> enqueue(const StepData& data, const StepSettings& settings, data::StopToken stop);
    // One step over micro-batches that exist already.
    size_t enqueue(const std::vector<MicroBatch>& micro_batches, const StepSettings& settings);
    // The result of the oldest step that is not yet collected; blocks until it is known.
    // On several ranks, compares their weights; throws DeviceError on all when they are no longer the same.
    StepResult collect();
    size_t pending() const { return pending_.size(); }
    // The time since the last step, as of a save, is no part of the next. Only with nothing pending.
    void restart_clock();

    // Mean loss over `count` batches, forward only; blocks. batch(i) makes the i-th when its turn comes, so that no
    // more than one exists at a time. Returns nothing once `stop` is requested; NaN if there are no targets.
    std::optional<double> evaluate(uint64_t count, const std::function<MicroBatch(uint64_t)>& batch,
                                   data::StopToken stop);

    // Whether any rank wants to stop; false with one rank. Throws DataFailed where `why` of any rank is not empty.
    bool any_stops(data::StopToken stop, const std::string& why, CallTag tag);
    Comm* comm() const { return comm_; }

  private:
    struct ReadBack {
        PinnedBuffer buffer;                    // double loss sum, OptimizerControl, digest of the weights
        std::unique_ptr<Event> started, ended;  // the step's time; nobody waits for these
        std::unique_ptr<Event> arrived;         // the buffer holds the result
        StepResult result;
    };
    bool run_micro_batches(const StepData& data, size_t targets, data::StopToken stop);
    bool run_rounds(const StepData& data, size_t targets, data::StopToken stop);
    std::optional<size_t> count_targets(const StepData& data, data::StopToken stop);
    size_t read_back(ReadBack& slot, bool update);
    void compare_weights(uint64_t digest);
    std::optional<double> evaluate_part(uint64_t count, const std::function<MicroBatch(uint64_t)>& batch,
                                        data::StopToken stop);

    Model& model_;
    Comm* const comm_;
    std::optional<RankSums> sums_;  // with comm_
    PinnedBuffer eval_losses_;      // with comm_
    int64_t enqueued_ = 0, collected_ = 0, evaluations_ = 0;
    // One is free whenever enqueue() may be called. One more keeps the times of the step collected last.
    std::deque<std::unique_ptr<ReadBack>> free_, pending_;
    const ReadBack* before_ = nullptr;  // the step collected last; null: the next one's time starts with itself
};

}  // namespace slab::train
