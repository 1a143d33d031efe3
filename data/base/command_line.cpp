// Flags are checked by name before CLI11 sees them. CLI11 would take an unknown flag's value for a positional argument
// first, and knows no near name.
#include "data/base/command_line.h"

#include <fcntl.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "data/base/display.h"
#include "data/base/error.h"
#include "data/base/nearest_name.h"

#define SLABSTREAM_VERSION "0.1.0"

namespace slab::data {
namespace {

std::vector<std::string> long_flags(const CLI::App& app) {
    std::vector<std::string> flags;
    for (const CLI::Option* option : app.get_options())
        for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
    return flags;
}

// As a user types it. (CLI11's own name of a flag that is not in --help is empty.)
std::string name_of(const CLI::Option& option) {
    return option.get_lnames().empty() ? option.get_name() : "--" + option.get_lnames().front();
}

// Whether the flag's values are joined to a list, so that it may be given several times.
bool is_list(const CLI::Option& option) {
    return option.get_multi_option_policy() == CLI::MultiOptionPolicy::Join;
}

// The error for a flag that is given several times, or "". The last value would hide the others.
std::string repeated_flag(const CLI::App& app, const std::vector<std::string>& arguments) {
    std::map<std::string, std::vector<std::string>> given;
    for (size_t i = 0; i < arguments.size() && arguments[i] != "--"; ++i) {
        const std::string& argument = arguments[i];
        if (!argument.starts_with("--")) continue;
        const size_t name_end = std::min(argument.find('='), argument.size());
        const std::string name = argument.substr(0, name_end);
        const CLI::Option* option = app.get_option_no_throw(name);
        if (!option || is_list(*option) || name == "--help" || name == "--version") continue;
        const bool is_switch = option->get_expected_max() == 0, apart = name_end == argument.size();
        given[name].push_back(is_switch && apart                   ? ""
                              : apart && i + 1 == arguments.size() ? ""
                              : apart                              ? arguments[i + 1]
                                                                   : argument.substr(name_end + 1));
    }
    for (const auto& [name, values] : given) {
        if (values.size() < 2) continue;
        std::string shown;
        for (const std::string& value : values)
            if (!value.empty()) shown += (shown.empty() ? ": " : ", ") + printable_text(value);
        return ErrorText{name, values.size() == 2 ? "is given twice" + shown : "is given several times" + shown,
                         "it once", "leave out what does not count"}
            .text();
    }
    return "";
}

std::string empty_value(const std::string& flag, bool number) {
    const ErrorText error{.subject = flag,
                          .given = "is empty",
                          .wanted = number ? "a number there" : "a value there",
                          .hint = "is a shell's variable unset? Leave the flag out for its default"};
    return error.text();
}

// CLI11 reads 010 as 8 and 0x10 as 16, as C does.
bool is_octal_or_hexadecimal(std::string_view number) {
    if (number.starts_with('-') || number.starts_with('+')) number.remove_prefix(1);
    return number.size() > 1 && number[0] == '0' && std::string_view(".eE").find(number[1]) == std::string_view::npos;
}

// An error for a value that CLI11 takes for something else, or "". It takes an empty value for 0 or for no flag, 010
// for 8, and any number after a switch for true.
std::string misread_value(const CLI::App& app) {
    for (const CLI::Option* option : app.get_options()) {
        const std::string type = option->get_type_name();
        const bool number = type.starts_with("INT") || type.starts_with("UINT") || type.starts_with("FLOAT");
        for (const std::string& value : option->results()) {
            const std::string subject = name_of(*option) + " " + value;
            if (value.empty()) return empty_value(name_of(*option), number);
            if (number && is_octal_or_hexadecimal(value))
                return ErrorText{subject, "begins with 0", "a decimal number without it", ""}.text();
            if (option->get_expected_max() == 0 && value != "true" && value != "false")
                return ErrorText{subject, "is neither true nor false", "one of them, or the flag alone", ""}.text();
        }
    }
    return "";
}

// Ends the process without the libraries' own ends: OpenBLAS joins its idle threads there. Where memory is limited
// (ulimit -v, -d) these never end, as each tries for ever to get the buffer that it is refused.
[[maybe_unused]] void end_now(int code, void*) {
    std::cout.flush();
    std::cerr.flush();
    std::fflush(nullptr);
    std::_Exit(code);
}

}  // namespace

void prepare_standard_streams() {
    // Runs after all that this program registers later, and before what libraries registered. The sanitizers report
    // leaks at the end that is cut off here.
#if defined(SLABSTREAM_OPENBLAS) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    on_exit(end_now, nullptr);
#endif
    for (int fd = 0; fd <= 2; ++fd)
        if (fcntl(fd, F_GETFD) == -1 && errno == EBADF) (void)!open("/dev/null", O_RDWR);  // the lowest free number: fd
    for (const int signal : {SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_IGN);  // the write fails instead, and says so
}

bool standard_output_arrived(const char* program) {
    if (std::cout.flush() && std::fflush(stdout) == 0) return true;
    std::cerr << program << ": what was to be printed could not be: standard output is full or closed\n";
    return false;
}

std::optional<int> parse_command_line(CLI::App& app, int argc, const char* const* argv, std::ostream& out,
                                      std::ostream& err) {
    const auto refuse = [&](const std::string& message) {
        err << app.get_name() << ": " << message << " (" << app.get_name() << " --help lists the flags)\n";
        return 1;
    };
    app.set_version_flag("--version", app.get_name() + " of slabstream " SLABSTREAM_VERSION);
    const std::vector<std::string> known = long_flags(app);
    std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
    for (std::string& argument : arguments) {
        if (argument == "--") break;  // only positional arguments follow
        if (argument.size() < 3 || argument.compare(0, 2, "--") != 0) continue;
        const size_t name_end = std::min(argument.find('='), argument.size());
        std::replace(argument.begin(), argument.begin() + static_cast<std::ptrdiff_t>(name_end), '_', '-');
        const std::string name = argument.substr(0, name_end);
        if (std::find(known.begin(), known.end(), name) == known.end())
            return refuse("unknown flag " + name + did_you_mean(name, known));
        // CLI11 would take the next argument for the value.
        if (name_end + 1 == argument.size()) return refuse(empty_value(name, false));
    }
    if (const std::string repeated = repeated_flag(app, arguments); !repeated.empty()) return refuse(repeated);
    std::reverse(arguments.begin(), arguments.end());  // the order in which CLI11 wants a vector
    try {
        app.parse(std::move(arguments));
    } catch (const CLI::CallForHelp&) {
        out << app.help();
        return 0;
    } catch (const CLI::CallForVersion& version) {
        out << version.what() << "\n";
        return 0;
    } catch (const CLI::ConversionError& error) {
        const std::string misread = misread_value(app);  // knows 08 better
        return refuse(misread.empty() ? std::string(error.what()) + "; wanted a number there" : misread);
    } catch (const CLI::ParseError& error) {
        return refuse(error.what());
    }
    if (const std::string misread = misread_value(app); !misread.empty()) return refuse(misread);
    return std::nullopt;
}

}  // namespace slab::data
