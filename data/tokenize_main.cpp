// build/tokenize: makes token files from text files. `build/tokenize --help` says how.
#include <unistd.h>

#include <iostream>

#include "data/command_line.h"
#include "data/tokenize.h"

int main(int argc, char** argv) {
    slab::data::prepare_standard_streams();
    return slab::data::run_tokenize(argc, argv, STDIN_FILENO, std::cout, std::cerr);
}
