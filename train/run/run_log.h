// A step's numbers as a line on the screen and in log.jsonl, one JSON object a line. Keys are those of the transformers
// Trainer (loss, learning_rate, grad_norm, eval_loss, ...).
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "data/base/file_lock.h"

namespace slab::train {

struct StepReport {
    int64_t step = 0, total_steps = 0;
    double epoch = 0, loss = 0, learning_rate = 0, grad_norm = 0;
    bool skipped = false;
    size_t targets = 0, tokens = 0;  // tokens: of the data, without the filling of rows
    double seconds = 0, left_seconds = 0;
    size_t device_peak_bytes = 0, device_budget_bytes = 0;  // budget 0: none
    bool streaming = false;
    uint64_t slabs_in = 0, bytes_in = 0, slabs_out = 0, bytes_out = 0;
    double link_gbps = 0;  // what a copy alone reaches, measured at the start
    double wait_ms = 0;    // compute waited for the link
};

// JSON has no NaN and no infinity: they are written as their names.
nlohmann::json json_number(double value);

// "step 120/600  loss 1.842  lr 1.9e-04  gnorm 0.61  2,310 tok/s  VRAM 10.80/11.40 GiB  ..."
std::string step_line(const StepReport& report);

// Why `file` cannot become the log, to follow "is ", or "" if it can. No file, an empty file and a log can: a log
// begins with the line of a run's start. Another run may be writing the file meanwhile.
std::string why_not_a_log(const std::filesystem::path& file);

// "output_dir" of a log's first line: the run that the log belongs to (run_directory.h). "" if there is no log, or one
// of an earlier version.
std::string run_of_log(const std::filesystem::path& file);

// Whether the log at `file` shows that a run of so many steps has ended. If `evaluated`, an evaluation of the last step
// is wanted too. If `sample` is not null, a whole sample after the last step with these keys is wanted too.
bool log_tells_end(const std::filesystem::path& file, int64_t steps, bool evaluated, const nlohmann::json& sample);

class RunLog {
  public:
    RunLog() = default;
    // Begins the file anew. With resume_step >= 0 the log is continued: lines of later steps, and a line cut short by a
    // kill, are removed first. Throws data::UserError if the file is no log or another run is writing it. `require_own`
    // is called once the file is locked and before it is changed; it throws to leave the file alone.
    RunLog(const std::filesystem::path& file, int64_t resume_step, const std::function<void()>& require_own = {});

    void step(const StepReport& report);
    // Any other event; one line, flushed. Throws SideFileError once if writing fails; later lines are dropped.
    void write(const nlohmann::json& line);

  private:
    std::filesystem::path path_;
    data::FileLock lock_;
    std::ofstream out_;
};

}  // namespace slab::train
