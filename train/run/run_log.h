// What a run says: the step line on the screen and the same numbers in log.jsonl, one JSON object a line, under the
// names that the transformers Trainer uses (loss, learning_rate, grad_norm, eval_loss, ...).
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>

#include "data/base/file_lock.h"
#include "train/run/side_file.h"

namespace slab::train {

struct StepReport {
    int64_t step = 0, total_steps = 0;
    double epoch = 0, loss = 0, learning_rate = 0, grad_norm = 0;
    bool skipped = false;
    size_t targets = 0, tokens = 0;  // tokens: of the data, without what fills rows up
    double seconds = 0, left_seconds = 0;
    size_t device_peak_bytes = 0, device_budget_bytes = 0;  // budget 0: none
    bool streaming = false;
    uint64_t slabs_in = 0, bytes_in = 0, slabs_out = 0, bytes_out = 0;
    double link_gbps = 0;  // what a copy alone reaches, measured at the start
    double wait_ms = 0;    // compute stood still for the link
};

// JSON has no NaN and no infinity: these become their names, since a log that loses the fact would lie.
nlohmann::json json_number(double value);

// "step 120/600  loss 1.842  lr 1.9e-04  gnorm 0.61  2,310 tok/s  VRAM 10.80/11.40 GiB  ..."
std::string step_line(const StepReport& report);

// "" when a log may begin at `file`: nothing is there, an empty file, or a log, which begins with the line of a run's
// start. Else what is there, behind "is ": what cannot be read is none.
std::string what_is_no_log(const std::filesystem::path& file);

// "output_dir" of a log's first line, which says whose it is (run_directory.h). "" when there is no log, or one of an
// earlier version.
std::string run_of_log(const std::filesystem::path& file);

// Whether the log at `file` tells that a run of so many steps came to its end, was evaluated there (asked only if
// `evaluated`), and that what `sample` asks for, keys of a sample's line, was sampled after it, uninterrupted (only if
// it is not null). False when there is no such log.
bool log_tells_end(const std::filesystem::path& file, int64_t steps, bool evaluated, const nlohmann::json& sample);

class RunLog {
  public:
    RunLog() = default;
    // Begins the file anew. With resume_step >= 0 it goes on with it: lines of later steps, and a line cut short by a
    // kill, are taken out first. Throws std::runtime_error when the file there is no log, or when another run is
    // writing it. `check`, called before anything in it is changed and when no other run can, throws to leave it alone.
    RunLog(const std::filesystem::path& file, int64_t resume_step, const std::function<void()>& check = {});

    void step(const StepReport& report);
    // Any other event; one line, flushed. Throws SideFileError when the disk is full, once: later lines are dropped.
    void write(const nlohmann::json& line);

  private:
    std::filesystem::path path_;
    data::FileLock lock_;
    std::ofstream out_;
};

}  // namespace slab::train
