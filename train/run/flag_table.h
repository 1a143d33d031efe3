// train_gpt's flags, one row each (flag_table.cpp): a flag is declared there and nowhere else,
// but for --config (options.cpp).
//
// The parser, --help, the checks of ranges, a run's config.toml, its identity and the search for idle flags read these
// rows. A flag's default is the initializer of its member in options.h.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "train/run/options.h"

namespace slab::train {

// Where a flag's value lies. The member's type is the type that the parser reads.
using FlagMember = std::variant<bool TrainOptions::*, int TrainOptions::*, int64_t TrainOptions::*,
                                uint64_t TrainOptions::*, double TrainOptions::*, std::string TrainOptions::*,
                                bool OffloadFlags::*, int OffloadFlags::*, std::string OffloadFlags::*>;

struct Range {
    std::function<bool(double)> holds;  // empty: every value that the member's type has
    std::string wanted;                 // in words: "1 to 4096"
};

// Whether a run's identity has the flag (identity.h): a resumed run must have the checkpoint's value.
enum class Identity {
    none,     // the flag changes no bit of the result, or other parts of the identity follow from it
    flag,     // the flag's value
    adapter,  // this setting of the LoRA adapter, which --adapter-in may have set instead; a number is a float32
};

enum class Path {
    none,
    input,   // config.toml has the whole path of a file that exists here; other text may be a model's name
    output,  // config.toml has the whole path
    beside,  // a file beside the run: config.toml leaves it out, or a repeated run would write over it
};

enum class Values {
    one,
    list,      // with commas, or as a list in a config file
    repeated,  // as a list, and the flag may be given several times
};

struct FlagRules {
    Range range = {};
    std::vector<std::string> choices = {};  // empty: any text
    Identity identity = Identity::none;
    Path path = Path::none;
    Values values = Values::one;
    const char* needs = nullptr;  // another flag, of an earlier row, without which this one is refused
    // The flag that decides instead of this one, or nullptr. This one is idle then.
    const char* (*idle_beside)(const TrainOptions&) = nullptr;
    bool default_may_idle = false;  // the default asks for nothing, so it is no mistake beside that flag
    bool in_config_file = true;
};

struct Flag {
    const char* name;  // without dashes
    const char* group;
    FlagMember member;
    const char* help;
    FlagRules rules = {};
};

// In the order of --help and config.toml.
std::span<const Flag> flag_table();
const Flag& flag_named(const std::string& name);  // throws std::logic_error when there is none

// f(the flag's value in options).
template <class Options, class F>
auto with_value(const Flag& flag, Options& options, F&& f) {
    return std::visit(
        [&](auto member) {
            if constexpr (std::is_invocable_v<decltype(member), OffloadFlags&>)
                return f(options.offload.*member);
            else
                return f(options.*member);
        },
        flag.member);
}

// The value as a user would type it: "true", "0.1", "cosine".
std::string flag_text(const Flag& flag, const TrainOptions& options);

// Throws data::UserError. subject: the flag with its value; wanted or hint may be "".
[[noreturn]] void refuse_flag(const std::string& subject, const std::string& given, const std::string& wanted,
                              const std::string& hint = "");
// Refuses a value that is out of the flag's range.
void check_range(const Flag& flag, double value, const std::string& subject);

bool is_given(const TrainOptions& options, const std::string& flag);
// A given flag as a message names it: "--lora-r 4 (config file)".
std::string as_given(const TrainOptions& options, const std::string& flag);

}  // namespace slab::train
