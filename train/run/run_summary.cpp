// Each part prints its lines and adds its keys to the log's line of the end.
#include "train/run/run_summary.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <ostream>

#include "data/gguf/gguf.h"
#include "train/files/model_directory.h"
#include "train/spec/text.h"

namespace slab::train {

using nlohmann::json;

namespace {

void add_streaming(const ModelLayout& layout, Session& session, const StepTotals& totals, json& summary,
                   std::ostream& out) {
    if (layout.ring.streamed().empty()) return;
    const size_t all_slabs =
        std::accumulate(layout.ring.streamed().begin(), layout.ring.streamed().end(), size_t{0},
                        [&](size_t sum, int l) { return sum + layout.moved_slab(l).total_bytes(); });
    uint64_t visits = 0;  // of streamed layers, in one micro-batch
    for (const int layer : layout.training_visits())
        visits += std::binary_search(layout.ring.streamed().begin(), layout.ring.streamed().end(), layer);
    out << "streamed " << count_text(totals.slabs_in) << " slabs, " << memory_text(totals.bytes_in)
        << ", to the device in training (loading every layer at every visit: "
        << count_text(visits * totals.micro_batches) << " slabs); weights moved back: " << bytes_text(totals.bytes_out)
        << "\n"
        << "device memory spared: " << memory_text(all_slabs - layout.ring.slots() * layout.ring.slot_bytes()) << " of "
        << memory_text(all_slabs) << " of streamed weights; compute waited for the link "
        << format_text("%.1f%%", 100 * totals.wait_ms / 1e3 / std::max(totals.step_seconds, 1e-9))
        << " of the steps' time\n";
    summary["slabs_in"] = totals.slabs_in;
    summary["bytes_in"] = totals.bytes_in;
    summary["slabs_out"] = totals.slabs_out;
    summary["bytes_out"] = totals.bytes_out;
    if (const uint64_t untimed = session.model->offload().stats().untimed; untimed != 0) {
        summary["untimed_waits"] = untimed;
        out << "note: " << count_text(untimed) << " waits were not timed; the share of waiting is at least that\n";
    }
}

void add_memory(const ModelLayout& layout, Device& device, json& summary, std::ostream& out) {
    out << "peak device memory " << memory_text(device.memory().peak_bytes()) << ", planned "
        << memory_text(planned_bytes(device, layout)) << "\n";
    if constexpr (kBackend == Backend::cuda) {
        const MeasuredMemory measured = device.measured_memory();
        summary["device_bytes_by_driver"] = measured.bytes;
        out << "the driver counts " << memory_text(measured.bytes)
            << (measured.of_process ? " for this process\n" : " since the start, other processes included\n");
    }
}

void add_evaluations(const RunFiles& files, json& summary, std::ostream& out) {
    const auto& last = files.last_evaluation();
    if (!last) return;
    const TrainerState& state = files.state;
    const Evaluation& first = *state.first_eval;
    out << "validation loss " << format_text("%.4f", first.loss)
        << (first.step == 0 ? " before" : " at step " + std::to_string(first.step));
    if (last->step != first.step) out << format_text(", %.4f after", last->loss);
    out << "\n";
    if (!state.best_eval) return;
    out << "best checkpoint: " << printable_text(state.best_checkpoint)
        << format_text(", validation loss %.4f\n", state.best_eval->loss);
    summary["best_metric"] = state.best_eval->loss;
    summary["best_model_checkpoint"] = printable_text(state.best_checkpoint);
}

}  // namespace

void StepTotals::add(const StepReport& step, uint64_t step_micro_batches) {
    micro_batches += step_micro_batches;
    slabs_in += step.slabs_in;
    bytes_in += step.bytes_in;
    slabs_out += step.slabs_out;
    bytes_out += step.bytes_out;
    wait_ms += step.wait_ms;
    step_seconds += step.seconds;
}

void write_summary(const RunPlan& plan, Session& session, RunFiles& files, const StepTotals& totals, double seconds,
                   std::ostream& out) {
    json summary = {{"event", "end"},
                    {"step", files.state.step},
                    {"seconds", seconds},
                    {"device_peak_bytes", session.device->memory().peak_bytes()}};
    add_streaming(plan.layout, session, totals, summary, out);
    add_memory(plan.layout, *session.device, summary, out);
    add_evaluations(files, summary, out);
    out << "wrote " << plan.result_file().string() << " after " << duration_text(seconds) << "\n";
    if (const std::string text = no_tokenizer_text(plan.base); !plan.trains_adapter() && !text.empty())
        out << "note: " << text << "\n";
    files.log().write(summary);
}

}  // namespace slab::train
