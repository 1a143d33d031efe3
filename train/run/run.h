// One run of the trainer, from its flags to its last file. For trainer.cpp and run_start.cpp alone: the first trains,
// saves and reports, the second checks, plans and loads.
//
// Invariant: until load() has taken the run directory's lock, nothing on disk is changed, but that the directory is
// made, which is what the lock lies on.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <ostream>

#include "data/base/atomic_file.h"
#include "data/base/clock.h"
#include "data/base/stop_signals.h"
#include "data/hub_cache.h"
#include "data/tokenizer/tokenizer.h"
#include "train/files/base_config.h"
#include "train/files/model_directory.h"
#include "train/model/step_loop.h"
#include "train/run/checkpoint.h"
#include "train/run/data_sets.h"
#include "train/run/options.h"
#include "train/run/run_log.h"
#include "train/run/run_setup.h"

namespace slab::train {

class Run {
  public:
    Run(const TrainOptions& options, data::StopToken stop, std::ostream& out)
        : o_(options),
          stop_(stop),
          out_(out),
          base_(data::find_model("--base-model", options.base_model)),
          config_(read_base_config(base_)) {}

    int run();  // the exit code

  private:
    void check_paths() const;
    void check_weights() const;
    void announce_plan();
    void open_rows();
    void prepare_sample(ModelSettings& settings);
    void note_settings(const ModelSettings& settings) const;
    bool plan_fits() const;
    void load();
    void make_output_dir();
    void remove_empty_directories();
    void load_model();
    std::optional<std::filesystem::path> checkpoint_to_resume() const;
    void take_state(TrainerState state, const std::filesystem::path& from);
    bool came_to_its_end();
    void restore();
    void adopt_checkpoint(const std::filesystem::path& from);
    void adopt_evaluations();
    void evaluate(int64_t step);
    bool consider_best(int64_t step);
    void prune();
    nlohmann::json sample_request() const;
    void sample(const std::string& when);
    bool enqueue_step();
    void collect_one();
    void collect_all() {
        while (!in_flight_.empty()) collect_one();
    }
    [[noreturn]] void stop_at_bad_steps(int64_t step);
    std::filesystem::path result_file() const {
        return output_dir_ / (layout_->settings.lora ? kAdapterWeightsFile : kModelWeightsFile);
    }
    bool result_is_whole() const;
    SaveContext save_context() { return {*layout_, *weights_, o_.base_model, config_json_, companions_, out_}; }
    void write_checkpoint(int64_t step);
    std::string how_to_go_on() const;
    bool save(int64_t step);
    void start_trace(int64_t step);
    void end_trace();
    void leave_out_of_step();
    void say_evaluations(nlohmann::json& summary);
    void train_steps();
    void finish();
    void write_result();

    // A step enqueued and not yet reported.
    struct InFlight {
        int64_t step;
        double learning_rate;
        size_t filling;  // tokens that only fill rows up
        uint64_t slabs_in, bytes_in, slabs_out, bytes_out;
    };

    const TrainOptions& o_;
    const data::StopToken stop_;
    std::ostream& out_;
    const std::filesystem::path base_;  // where --base-model was found
    ModelConfig config_;
    std::string config_json_;                        // with --adapter none, of the model that is saved
    std::vector<std::filesystem::path> companions_;  // of the base's files, what is copied beside the result
    std::filesystem::path output_dir_;
    std::vector<std::filesystem::path> made_directories_;  // that the run made, innermost first
    std::unique_ptr<data::Tokenizer> tokenizer_;           // with --sample
    std::vector<int32_t> prompt_;
    data::DirectoryLock lock_;
    DataSets data_;
    std::unique_ptr<Device> device_;
    std::optional<ModelLayout> layout_;
    std::optional<BaseWeights> weights_;
    std::unique_ptr<Model> model_;
    std::unique_ptr<StepLoop> loop_;
    RunLog log_;
    TrainerState state_;
    std::deque<InFlight> in_flight_;
    int64_t steps_ = 0, first_step_ = 0;
    bool nothing_left_ = false;  // the run that is resumed came to its end: nothing was loaded
    double link_gbps_ = 0, wait_ms_reported_ = 0;
    std::optional<Evaluation> last_eval_;
    bool evaluations_adopted_ = true;  // what the checkpoint resumed from knew of them still holds
    double step_seconds_total_ = 0, wait_ms_total_ = 0;
    uint64_t passes_ = 0;  // micro-batches trained on
    uint64_t slabs_in_total_ = 0, bytes_in_total_ = 0, slabs_out_total_ = 0, bytes_out_total_ = 0;
    std::chrono::steady_clock::time_point started_;
    std::pair<int64_t, int64_t> trace_steps_{0, 0};
    bool tracing_ = false, traced_ = false;
    int64_t saved_step_ = -1;  // a checkpoint of this step lies in output_dir_
};

}  // namespace slab::train
