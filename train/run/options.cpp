// From a command line to TrainOptions: CLI11 parses by the rows of flag_table.cpp, then come the checks that CLI11 does
// not know and the config.toml of the run.
#include "train/run/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>
#include <utility>

#include "data/base/command_line.h"
#include "data/base/nearest_name.h"
#include "train/run/config_file.h"
#include "train/run/flag_table.h"
#include "train/run/idle_flags.h"

namespace slab::train {

namespace {

// CLI11 takes a number too large for its type as the largest one, and a negative one as its complement.
std::string check_unsigned(const std::string& text) {
    errno = 0;
    std::strtoull(text.c_str(), nullptr, 10);
    return errno == ERANGE || text.find('-') != std::string::npos ? "wanted a number from 0, below 2^64" : "";
}

template <class T>
void add_flag(CLI::App& app, const Flag& flag, T& value) {
    const FlagRules& rules = flag.rules;
    const std::string name = std::string("--") + flag.name;
    CLI::Option* option = nullptr;
    if constexpr (std::is_same_v<T, bool>)
        option = app.add_flag(name, value, flag.help);
    else
        option = app.add_option(name, value, flag.help);
    option->group(flag.group)->configurable(rules.in_config_file);
    if (!rules.choices.empty()) option->check(CLI::IsMember(rules.choices));
    if (std::is_same_v<T, uint64_t>) option->check(check_unsigned);
    if (rules.values == Values::repeated) option->join(',');
    if (rules.needs) option->needs(app.get_option(std::string("--") + rules.needs));
}

// Says what is wrong with the path, or "". A pipe or device may have no end to read to.
std::string check_config_path(const std::string& path) {
    constexpr std::uintmax_t most_bytes = 1 << 20;  // far more than all flags
    std::error_code error;
    if (!std::filesystem::is_regular_file(path, error)) return path + ": is not a file that can be read";
    const std::uintmax_t bytes = std::filesystem::file_size(path, error);
    if (error || bytes <= most_bytes) return "";
    return path + ": has " + std::to_string(bytes) + " bytes; wanted a config file of at most " +
           std::to_string(most_bytes) + ". Hint: is it another file?";
}

// Reads config files for CLI11. Keys may be spelled with '_'.
class ConfigReader : public CLI::ConfigTOML {
  public:
    // in_file: gets the keys that the command line does not give.
    ConfigReader(const CLI::App& app, std::set<std::string>& in_file) : app_(app), in_file_(in_file) {}

    std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
        std::vector<std::string> known;
        for (const Flag& flag : flag_table())
            if (flag.rules.in_config_file) known.push_back(flag.name);
        const std::string file = "config file " + app_.get_config_ptr()->as<std::string>();
        std::vector<CLI::ConfigItem> items;
        for (const ConfigEntry& entry : parse_config(input, file)) {
            if (std::find(known.begin(), known.end(), entry.key) == known.end())
                throw CLI::ConfigError(file + ", line " + std::to_string(entry.line) + ": unknown key " + entry.key +
                                       data::did_you_mean(entry.key, known));
            if (entry.is_list && flag_named(entry.key).rules.values == Values::one)
                throw CLI::ConfigError(file + ", line " + std::to_string(entry.line) + ": " + entry.key +
                                       " is a list; wanted one value");
            CLI::ConfigItem item;
            item.name = entry.key;
            item.inputs = {entry.value};
            if (app_.get_option("--" + item.name)->count() == 0) in_file_.insert(item.name);
            items.push_back(std::move(item));
        }
        return items;
    }

  private:
    const CLI::App& app_;
    std::set<std::string>& in_file_;
};

// The path as config.toml has it: a config file is read from wherever the next run begins.
std::string found_from_anywhere(Path path, const std::string& value) {
    std::error_code error;
    const bool is_file = path == Path::output || (path == Path::input && std::filesystem::exists(value, error));
    if (value.empty() || !is_file) return value;
    const std::filesystem::path whole = std::filesystem::absolute(value, error);
    return error ? value : whole.string();
}

// Every flag that a config file may have and that decides something, with its value in this run. With --adapter-in, the
// adapter's settings are run_config_text()'s to add.
std::string config_toml_of(const TrainOptions& o) {
    std::string text;
    for (const Flag& flag : flag_table()) {
        const FlagRules& rules = flag.rules;
        const bool of_other_adapter = rules.identity == Identity::adapter && !o.adapter_in.empty();
        if (!rules.in_config_file || rules.path == Path::beside || of_other_adapter || is_idle(flag, o)) continue;
        if (rules.needs && (!is_given(o, rules.needs) || flag_named(rules.needs).rules.path == Path::beside)) continue;
        const bool given = is_given(o, flag.name);
        if (!given && flag.name == std::string("freeze-layers")) continue;  // "not given" has no number
        const std::string value = given ? o.given.at(flag.name).value : flag_text(flag, o);
        if (!value.empty()) text += flag.name + (" = " + config_value(found_from_anywhere(rules.path, value)) + "\n");
    }
    return text;
}

void check_ranges(const TrainOptions& o) {
    for (const Flag& flag : flag_table())
        with_value(flag, o, [&](const auto& value) {
            if constexpr (std::is_arithmetic_v<std::decay_t<decltype(value)>>)
                if (is_given(o, flag.name)) check_range(flag, static_cast<double>(value), as_given(o, flag.name));
        });
}

void require(bool holds, const std::string& subject, const std::string& given, const std::string& wanted) {
    if (!holds) refuse_flag(subject, given, wanted);
}

// What flags ask of each other.
void check_together(const TrainOptions& o) {
    require(!o.base_model.empty(), "--base-model is missing", "", "a Hugging Face directory or a GGUF file");
    require(!o.train_data.empty() || o.plan, "--train-data is missing", "",
            "records (chat.jsonl), text, or a token file");
    require(!o.train_data.empty() || (o.preview == 0 && o.val_data.empty()), "--preview and --val-data",
            "--train-data is missing", "--train-data beside them; --plan needs none of them");
    require(!o.output_dir.empty() || o.plan, "--output-dir is missing", "",
            "a directory for the adapter and checkpoints");
    require(o.adapter_in.empty() || o.adapter == "lora", "--adapter-in " + o.adapter_in,
            "goes on training a LoRA adapter, and this run trains none", "--adapter lora");
    require(!o.load_in_8bit, "--load-in-8bit", "LLM.int8, which computes with 8-bit numbers, is not implemented",
            "--slab-format q8_0, which keeps frozen weights in 8.5 bits");
    require(!o.load_in_4bit || o.slab_format.empty() || o.slab_format == "nf4" || o.slab_format == "as-is",
            "--load-in-4bit and --slab-format " + o.slab_format, "exclude each other", "one of them");
    require(o.eval_steps == 0 || o.val_set_size != 0 || !o.val_data.empty(),
            "--eval-steps " + std::to_string(o.eval_steps), "there is nothing to evaluate on",
            "--val-data or --val-set-size beside it");
    require(o.val_set_size == 0 || o.val_data.empty(), "--val-set-size and --val-data", "exclude each other",
            "one of them");
}

}  // namespace

void add_offload_flags(CLI::App& app, OffloadFlags& flags) {
    for (const Flag& flag : flag_table())
        std::visit(
            [&](auto member) {
                if constexpr (std::is_invocable_v<decltype(member), OffloadFlags&>) add_flag(app, flag, flags.*member);
            },
            flag.member);
}

std::optional<int> parse_train_options(TrainOptions& o, int argc, const char* const* argv, std::ostream& out,
                                       std::ostream& err) {
    CLI::App app("Fine-tunes a GPT, its frozen layers streamed from host memory.", "train_gpt");
    app.option_defaults()->always_capture_default();  // for --help
    app.set_config("--config", "", "run.toml with any of these flags; the command line wins")
        ->check(check_config_path)
        ->configurable(false)
        ->group("The run");
    std::set<std::string> in_file;
    app.config_formatter(std::make_shared<ConfigReader>(app, in_file));
    for (const Flag& flag : flag_table()) with_value(flag, o, [&](auto& value) { add_flag(app, flag, value); });
    if (const auto code = data::parse_command_line(app, argc, argv, out, err)) return code;
    for (const Flag& flag : flag_table())
        if (const auto* option = app.get_option(std::string("--") + flag.name); option->count() > 0)
            o.given[flag.name] = {CLI::detail::join(option->results(), ","), in_file.count(flag.name) != 0};
    check_ranges(o);
    if (is_given(o, "freeze-layers")) {
        require(!is_given(o, "adapter") || o.adapter != "lora", as_given(o, "freeze-layers"),
                "trains layers in full and excludes --adapter lora", "one of them");
        o.adapter = "none";
    }
    check_together(o);
    o.notes = check_idle_flags(o);
    o.config_toml = config_toml_of(o);
    return std::nullopt;
}

}  // namespace slab::train
