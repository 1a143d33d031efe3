// Whatever a run keeps on disk: the run directory with its lock, checkpoints and result, the log and the trace. Nothing
// else of a run writes files.
//
// Invariant: before restore() nothing on disk is changed, except that the run directory is made, which the lock needs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <ostream>
#include <string>

#include "data/base/atomic_file.h"
#include "data/base/output_directory.h"
#include "train/files/adapter_record.h"
#include "train/run/checkpoint.h"
#include "train/run/run_log.h"
#include "train/run/run_plan.h"
#include "train/run/session.h"

namespace slab::train {

class RunFiles {
  public:
    // Makes and locks the run directory. plan: with its inputs open; must outlive this. Throws data::UserError if files
    // lie there that the run would replace or another run is writing, data::IoError if the directory cannot be made.
    RunFiles(RunPlan& plan, std::ostream& out);
    // For a rank beside the first, whose files are `leader`: the same state, and nothing is ever written. Calls that
    // the leader would end with an error wait for that in a meeting.
    RunFiles(RunPlan& plan, const RunFiles& leader, Comm& comm, std::ostream& out);

    // Whether the run that is resumed here has ended, with every output that this command asks for. Reads its
    // checkpoint and compares it. If so, checkpoints that a kill left are pruned and the result is named.
    bool already_finished();
    // Loads the checkpoint to resume from, if there is one, then writes config.toml and the log's line of the start.
    void restore(Session& session);

    TrainerState state;                                 // as a checkpoint saves it; the steps change it
    int64_t first_step() const { return first_step_; }  // steps that earlier runs have done
    RunLog& log() { return log_; }

    void note_evaluation(const Evaluation& evaluation);
    const std::optional<Evaluation>& last_evaluation() const { return last_evaluation_; }

    // The following take a session with no step under way.

    // Saves a checkpoint of this step, or marks the one that is there as the best; prunes. Returns whether there is a
    // checkpoint of this step now: after a step that was not finite none is made. Throws data::IoError.
    bool save(Session& session);
    bool is_saved() const { return saved_step_ == state.step; }
    // Three steps in a row were not finite: throws data::UserError that says what is kept.
    [[noreturn]] void stop_at_bad_steps(Session& session, int64_t step, int bad_steps);
    // The gradient was exactly 0 in the last steps: throws data::UserError that says what is kept.
    [[noreturn]] void stop_at_zero_gradients(int64_t step, int steps, float loss);
    // Adapter or model. Throws data::IoError with the way on.
    void write_result(Session& session);
    // Throws SideFileError.
    void write_trace_of(Session& session);

    // The run ends with an error that the leader tells. For other ranks alone.
    [[noreturn]] void wait_for_leaders_error();
    bool is_leader() const { return comm_ == nullptr; }

    // How to resume, as the end of an error: "The last checkpoint is ...".
    std::string way_on() const;

  private:
    std::optional<std::filesystem::path> checkpoint_to_resume() const;
    void take_state(TrainerState read, const std::filesystem::path& from);
    void adopt_checkpoint(const std::filesystem::path& from);
    void adopt_evaluations();
    bool result_is_whole() const;
    bool consider_best();
    void write_checkpoint(Session& session);
    void prune();
    AdapterRecord record_of(Session& session) const;
    SaveContext save_context(Session& session) const;

    RunPlan& plan_;
    Comm* const comm_ = nullptr;  // of another rank than the leader
    std::ostream& out_;
    const std::filesystem::path output_dir_;
    data::DirectoryLock lock_;  // held until an empty directory is removed
    std::optional<data::OutputDirectory> directory_;
    RunLog log_;
    int64_t first_step_ = 0;
    int64_t saved_step_ = -1;  // a checkpoint of this step lies in output_dir_
    std::optional<Evaluation> last_evaluation_;
    bool evaluations_adopted_ = true;  // the evaluations of the checkpoint resumed from still hold
};

}  // namespace slab::train
