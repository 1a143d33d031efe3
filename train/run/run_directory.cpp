// The names that a run writes, and the refusals of files that it would replace.
#include "train/run/run_directory.h"

#include <fstream>
#include <string_view>
#include <utility>

#include "data/base/error.h"
#include "data/base/output_paths.h"
#include "train/files/adapter_record.h"
#include "train/files/model_directory.h"
#include "train/run/checkpoint.h"
#include "train/run/idle_flags.h"
#include "train/run/run_log.h"
#include "train/run/trace_file.h"
#include "train/spec/lora.h"

namespace slab::train {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kConfigHeader = "# Written by train_gpt, at every start of this run";
constexpr const char* kLogFile = "log.jsonl";

// The files of a result of either kind: adapter and model in one directory would be ambiguous.
std::vector<std::string> result_files(bool whole_model, const std::vector<Companion>& companions) {
    std::vector<std::string> names = {kAdapterWeightsFile, kAdapterConfigFile, kAdapterRecordFile, kModelWeightsFile};
    if (whole_model) names.insert(names.end(), {kModelIndexFile, kModelConfigFile});
    for (const Companion& file : companions) names.push_back(file.name);
    return names;
}

bool is_run_config(const fs::path& file) {
    std::error_code error;
    if (!fs::is_regular_file(file, error)) return false;
    std::ifstream in(file);
    std::string start(kConfigHeader.size(), '\0');
    in.read(start.data(), static_cast<std::streamsize>(start.size()));
    return in && start == kConfigHeader;
}

// The run's own file that `path` leads to, or "".
std::string own_file(const fs::path& path, const fs::path& output_dir, const std::vector<std::string>& names) {
    for (const std::string& name : names)
        if (data::same_place(path, output_dir / name)) return name;
    if (!data::lies_in(path, output_dir)) return "";
    const fs::path below = data::place_of(path).lexically_relative(data::place_of(output_dir / "x").parent_path());
    return step_of_checkpoint(*below.begin()) ? below.begin()->string() : "";
}

// what: "log" or "trace". run: the run that the file, which is not empty, names.
void require_own(const TrainOptions& o, const std::string& what, const fs::path& file, const std::string& run) {
    const auto refuse = [&](const std::string& owner, const char* hint) {
        throw data::UserError({.subject = "--" + what + " " + file.string(),
                               .given = "is the " + what + " of " + owner + ", and would be overwritten",
                               .hint = hint});
    };
    const fs::path directory = o.output_dir, folder = data::place_of(file).parent_path();
    const bool lies_there = data::same_place(folder, directory);
    constexpr const char* kRename = "name another file, or move this one";
    if (run.empty() && !lies_there) refuse("a run that it does not name (an earlier version wrote it)", kRename);
    if (!run.empty() && !data::same_place(folder / run, directory))
        refuse("another run, in " + data::place_of(folder / run).string(), kRename);
    if (lies_there) return;
    if (o.resume_from_checkpoint.empty())
        refuse("an earlier run into " + o.output_dir,
               "continue that run with --resume-from-checkpoint last, name another file, or move this one");
    if (!last_checkpoint(directory) && !is_run_config(directory / kRunConfigFile))
        refuse("a run of which " + o.output_dir + " holds nothing any more", kRename);
}

bool has_content(const fs::path& file) {
    std::error_code error;
    return fs::exists(file, error) && !fs::is_empty(file, error);
}

}  // namespace

fs::path log_path(const TrainOptions& o) {
    return o.log.empty() ? fs::path(o.output_dir) / kLogFile : fs::path(o.log);
}

void check_side_files(const TrainOptions& o, const std::vector<Companion>& companions) {
    struct SideFile {
        std::string flag, is;  // subject and verb of an error
        fs::path path;
        const char* remedy;
    };
    std::vector<SideFile> written;
    if (!o.log.empty())
        written.push_back({"--log " + o.log, "is ", o.log, "name another file"});
    else if (!o.output_dir.empty())
        written.push_back({"--output-dir " + o.output_dir, std::string("its ") + kLogFile + " is ", log_path(o),
                           "give another directory, or another file as --log"});
    const bool has_log = !written.empty();
    if (!o.trace.empty()) written.push_back({"--trace " + o.trace, "is ", o.trace, "name another file"});
    const auto refuse = [](const SideFile& file, const std::string& what) {
        throw data::UserError(
            {.subject = file.flag, .given = file.is + what + ", which would be overwritten", .hint = file.remedy});
    };
    for (const SideFile& file : written) {
        for (const auto& [data_flag, data] : {std::pair{"--train-data", o.train_data}, {"--val-data", o.val_data}})
            if (!data.empty() && data::same_place(file.path, data))
                refuse(file, std::string("the data of ") + data_flag);
        if (o.output_dir.empty()) continue;
        std::vector<std::string> own = result_files(true, companions);
        own.push_back(kRunConfigFile);
        if (&file != &written.front()) own.push_back(kLogFile);
        if (const std::string name = own_file(file.path, o.output_dir, own); !name.empty())
            refuse(file, "in --output-dir the place of the run's own " + name);
    }
    if (written.size() == 2 && data::same_place(written[0].path, written[1].path)) refuse(written[1], "the log");
    if (!has_log) return;
    if (const std::string why_not = why_not_a_log(written.front().path); !why_not.empty())
        refuse(written.front(), why_not);
}

void require_own_directory(const TrainOptions& o, const std::vector<Companion>& companions) {
    const fs::path directory = o.output_dir;
    const auto refuse = [&](const std::string& holds, const char* remedy) {
        throw data::UserError(
            {.subject = "--output-dir " + directory.string(), .given = "holds " + holds, .hint = remedy});
    };
    require_whole_checkpoints(directory);
    const std::string& from = o.resume_from_checkpoint;
    if (!from.empty() && from != "last") require_checkpoint(from);
    const auto last = last_checkpoint(directory);
    if (last && from.empty())
        refuse(last->filename().string() + " of an earlier run",
               "continue it with --resume-from-checkpoint last, or give another directory");
    if (last && (from == "last" ||
                 data::same_place(data::place_of(fs::path(from) / "x").parent_path().parent_path(), directory)))
        return;
    if (last)
        refuse(last->filename().string() + " of another run than " + from + " is of",
               "continue the one there with --resume-from-checkpoint last, or give another directory");
    std::error_code error;
    for (const std::string& name : result_files(o.adapter == "none", companions))
        if (fs::exists(fs::symlink_status(directory / name, error)))
            refuse(name + " of an earlier run or of something else, which this run would replace",
                   "remove it, or give another directory");
    if (fs::exists(fs::symlink_status(directory / kRunConfigFile, error)) && !is_run_config(directory / kRunConfigFile))
        refuse("config.toml that no run wrote, which this one would replace",
               "give it another name or place, or give another directory");
}

std::string path_to_run(const fs::path& file, const fs::path& output_dir) {
    return data::place_of(output_dir / "x")
        .parent_path()
        .lexically_relative(data::place_of(file).parent_path())
        .string();
}

void require_own_log(const TrainOptions& o) {
    if (has_content(log_path(o))) require_own(o, "log", log_path(o), run_of_log(log_path(o)));
}

void require_own_trace(const TrainOptions& o) {
    if (!o.trace.empty() && has_content(o.trace)) require_own(o, "trace", o.trace, run_of_trace(o.trace));
}

std::string run_config_text(const TrainOptions& o, const std::optional<LoraSettings>& lora) {
    return std::string(kConfigHeader) +
           "; --config FILE --output-dir ANOTHER repeats it, but for --log and --trace.\n" + o.config_toml +
           (lora && !o.adapter_in.empty() ? lora_config_text(*lora) : "");
}

}  // namespace slab::train
