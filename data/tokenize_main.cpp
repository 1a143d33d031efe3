// build/tokenize: makes token files from text files. `build/tokenize --help` says how.
#include <unistd.h>

#include <iostream>

#include "data/base/command_line.h"
#include "data/base/stop_signals.h"
#include "data/tokenize.h"

int main(int argc, char** argv) {
    slab::data::prepare_standard_streams();
    const slab::data::StopToken stop = slab::data::watch_stop_signals();
    return slab::data::end_as_signalled(slab::data::run_tokenize(argc, argv, STDIN_FILENO, std::cout, std::cerr, stop));
}
