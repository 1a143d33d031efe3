// build/export_gpt: adapters for other tools. `build/export_gpt --help` lists the flags.
#include <iostream>

#include "data/base/command_line.h"
#include "data/base/stop_signals.h"
#include "train/export/export_gpt.h"

int main(int argc, char** argv) {
    slab::data::prepare_standard_streams();
    const slab::data::StopToken stop = slab::data::watch_stop_signals();
    return slab::data::end_as_signalled(slab::train::run_export(argc, argv, std::cout, std::cerr, stop));
}
