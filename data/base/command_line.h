// One way for all programs to read their command line with CLI11. In names of flags '_' is taken for '-'. An unknown
// flag is an error that names a near known one. A flag given several times is an error too, unless its values are
// joined to a list (CLI11's policy Join). Every error exits 1; CLI11 has a code for each kind.
#pragma once

#include <iosfwd>
#include <optional>

namespace CLI {
class App;
}

namespace slab::data {

// Parses into whatever `app` is bound to. Returns the exit code if the program shall end now: 0 after --help, 1 after
// an error, which was printed to `err`. Returns nothing if it shall go on. argv is [argc], argv[0] the program's name.
std::optional<int> parse_command_line(CLI::App& app, int argc, const char* const* argv, std::ostream& out,
                                      std::ostream& err);

// Call it first in main. It opens /dev/null in place of a closed standard input, output or error: the next file opened
// would get its number, and with it what is printed. A pipe without a reader ends no program, nor does a file that
// reaches the size allowed (ulimit -f): writing fails with an error instead. When main is over, all streams are flushed
// and the process ends, whether or not OpenBLAS is done with its threads.
void prepare_standard_streams();
// Call it last: whether all that was printed arrived. If not, it says so on standard error.
bool standard_output_arrived(const char* program);

}  // namespace slab::data
