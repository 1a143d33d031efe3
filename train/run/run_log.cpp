// Reading a log takes no lock: its first line never changes while a run appends to it.
#include "train/run/run_log.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "data/base/atomic_file.h"
#include "data/base/error.h"
#include "data/base/input_file.h"
#include "train/run/side_file.h"
#include "train/spec/text.h"

namespace slab::train {

using nlohmann::json;

namespace {

double waiting_share(const StepReport& r) {
    return r.seconds > 0 ? std::min(1.0, r.wait_ms / 1e3 / r.seconds) : 0;
}
double link_used_gbps(const StepReport& r) {
    return r.seconds > 0 ? static_cast<double>(r.bytes_in) / 1e9 / r.seconds : 0;
}

std::string vram_text(const StepReport& r) {
    if (r.device_budget_bytes == 0) return memory_text(r.device_peak_bytes);
    if (r.device_budget_bytes >= size_t{1} << 30)
        return format_text("%.2f/%.2f GiB", static_cast<double>(r.device_peak_bytes) / 0x1p30,
                           static_cast<double>(r.device_budget_bytes) / 0x1p30);
    return format_text("%.1f/%.1f MiB", static_cast<double>(r.device_peak_bytes) / 0x1p20,
                       static_cast<double>(r.device_budget_bytes) / 0x1p20);
}

bool is_start(const json& line) {
    return line.is_object() && line.value("event", json()) == "start" && line.contains("max_steps");
}

// The lines of `log` from the first start on, without those of steps after `step` and without a line cut short.
std::string kept_lines(const std::string& log, int64_t step) {
    std::istringstream in(log);
    std::string kept;
    for (std::string line; std::getline(in, line);) {
        if (line.find('\0') != std::string::npos) continue;  // the parser would stop there and accept the line
        const json j = json::parse(line, nullptr, false);
        if (j.is_discarded() || !j.is_object() || (kept.empty() && !is_start(j))) continue;
        if (j.contains("step") && j["step"].is_number_integer() && j["step"].get<int64_t>() > step) continue;
        kept += line + "\n";
    }
    return kept;
}

// The first line of the log there; null if there is no file or an empty one. `why_not` says why the file is no log.
// Not read as an InputFile, which refuses a file that a live run appends to.
json first_line(const std::filesystem::path& file, std::string& why_not) {
    if (!std::filesystem::exists(file)) return nullptr;
    if (!std::filesystem::is_regular_file(file)) {  // a device may have no end to read to
        why_not = "no regular file";
        return nullptr;
    }
    std::string start(size_t{1} << 16, '\0');  // far beyond any path in that line
    std::ifstream in(file, std::ios::binary);
    if (!in) {
        why_not = "no file that can be read (" + file.string() +
                  ": cannot be opened for reading: " + std::strerror(errno) + ")";
        return nullptr;
    }
    in.read(start.data(), static_cast<std::streamsize>(start.size()));
    start.resize(static_cast<size_t>(in.gcount()));
    if (start.empty()) return nullptr;
    json line = json::parse(start.substr(0, start.find('\n')), nullptr, false);
    if (!is_start(line)) why_not = "no log of a run";
    return line;
}

}  // namespace

json json_number(double v) {
    return v == v && v - v == 0 ? json(v) : json(v != v ? "NaN" : v > 0 ? "Infinity" : "-Infinity");
}

std::string step_line(const StepReport& r) {
    std::string line =
        format_text("step %lld/%lld  ", static_cast<long long>(r.step), static_cast<long long>(r.total_steps));
    if (r.targets == 0) return line + "no targets in this step: skipped";
    line += format_text("loss %.4g  lr %.2g  gnorm %.3g  ", r.loss, r.learning_rate, r.grad_norm);
    line += count_text(static_cast<uint64_t>(r.seconds > 0 ? static_cast<double>(r.tokens) / r.seconds : 0)) +
            " tok/s  VRAM " + vram_text(r);
    if (r.streaming) {
        line += format_text("  moved %llu slabs %s  link %.1f of %.1f GB/s  waiting %.0f%%",
                            static_cast<unsigned long long>(r.slabs_in), memory_text(r.bytes_in).c_str(),
                            link_used_gbps(r), r.link_gbps, 100 * waiting_share(r));
    }
    line += "  left " + duration_text(r.left_seconds);
    if (r.skipped) line += "  NOT FINITE: update skipped";
    return line;
}

std::string why_not_a_log(const std::filesystem::path& file) {
    std::string why_not;
    first_line(file, why_not);
    return why_not;
}

std::string run_of_log(const std::filesystem::path& file) {
    std::string why_not;
    const json line = first_line(file, why_not);
    const json run = line.is_object() ? line.value("output_dir", json()) : json();
    return run.is_string() ? run.get<std::string>() : "";
}

bool log_tells_end(const std::filesystem::path& file, int64_t steps, bool evaluated, const json& sample) {
    bool ended = false, sampled = sample.is_null();
    const auto is_asked_for = [&](const json& line) {
        return std::all_of(sample.items().begin(), sample.items().end(),
                           [&](const auto& item) { return line.value(item.key(), json()) == item.value(); });
    };
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);) {
        const json j = json::parse(line, nullptr, false);
        if (!j.is_object()) continue;
        const json event = j.value("event", json());
        if (j.value("step", json()) == steps) {
            ended = ended || event == "end";
            if (j.contains("eval_loss")) evaluated = false;
        }
        const json when = j.value("when", json());
        const bool of_the_end = when == "after" || when == "at step " + std::to_string(steps);
        if (event == "sample" && of_the_end && j.value("ended", json()) != "interrupted" && is_asked_for(j))
            sampled = true;
    }
    return ended && sampled && !evaluated;
}

RunLog::RunLog(const std::filesystem::path& file, int64_t resume_step, const std::function<void()>& require_own)
    : path_(file) {
    const auto require_log = [&] {
        if (const std::string why_not = why_not_a_log(file); !why_not.empty())
            throw data::UserError(
                {.subject = file.string(), .given = "is " + why_not, .wanted = "a log, or no file", .hint = ""});
    };
    require_log();
    lock_ = data::FileLock(file, "its log");
    require_log();  // another run may just have made it
    if (require_own) require_own();
    const std::string before = data::InputFile(file).read_all("log");
    const std::string kept = resume_step >= 0 ? kept_lines(before, resume_step) : "";
    if (kept != before) {
        data::write_file_atomically(file, kept);
        lock_ = data::FileLock(file, "its log");  // the first lock is on the file that was replaced
    }
    out_.open(file, std::ios::app);
    if (!out_) throw data::IoError(file.string() + ": cannot be opened for writing: " + std::strerror(errno));
}

void RunLog::write(const json& line) {
    if (path_.empty()) return;
    // A path in it need not be UTF-8; JSON must be. One write a line, so that no reader sees half of one.
    out_ << line.dump(-1, ' ', false, json::error_handler_t::replace) + '\n' << std::flush;
    if (out_) return;
    const std::string file = std::exchange(path_, {}).string();
    throw SideFileError(file + ": cannot be written: " + std::strerror(errno) + "; is the disk full?");
}

void RunLog::step(const StepReport& r) {
    if (r.targets == 0) return write({{"step", r.step}, {"skipped", "no targets"}});
    json j = {{"step", r.step},
              {"epoch", r.epoch},
              {"loss", json_number(r.loss)},
              {"learning_rate", r.learning_rate},
              {"grad_norm", json_number(r.grad_norm)},
              {"targets", r.targets},
              {"tokens", r.tokens},
              {"tokens_per_second", r.seconds > 0 ? static_cast<double>(r.tokens) / r.seconds : 0},
              {"step_seconds", r.seconds},
              {"device_peak_bytes", r.device_peak_bytes},
              {"slabs_in", r.slabs_in},
              {"bytes_in", r.bytes_in},
              {"slabs_out", r.slabs_out},
              {"bytes_out", r.bytes_out},
              {"link_gbps", link_used_gbps(r)},
              {"link_measured_gbps", r.link_gbps},
              {"waiting", waiting_share(r)}};
    if (r.skipped) j["skipped"] = "not finite";
    write(j);
}

}  // namespace slab::train
