// One way for all programs to read their command line with CLI11: '_' is taken for '-' in the names of flags, an
// unknown flag is an error that names the nearest known one, of a flag given several times the last one holds, and
// every error exits 1 (CLI11 has a code for each kind).
#pragma once

#include <iosfwd>
#include <optional>

namespace CLI {
class App;
}

namespace slab::data {

// Parses into whatever `app` is bound to. Returns the exit code when the program shall end now (0 after --help, 1 after
// an error, which was printed to `err`), nothing when it shall go on. argv is [argc], argv[0] the program's name.
std::optional<int> parse_command_line(CLI::App& app, int argc, const char* const* argv, std::ostream& out,
                                      std::ostream& err);

// To be called first in main. Opens /dev/null in place of a closed standard input, output or error, whose number the
// next file opened would get, and with it what is printed. A pipe that nobody reads any more ends no program,
// nor does a file that reaches the size allowed (ulimit -f): writing it fails with an error instead. Has the process
// end when main is over, with all streams flushed, whether or not OpenBLAS is done with its threads.
void prepare_standard_streams();
// To be called last: whether all that was printed arrived. If not, says so on standard error.
bool standard_output_arrived(const char* program);

}  // namespace slab::data
