// build/export_gpt: adapters for other tools. All the work is in export.cpp; `build/export_gpt --help` lists the flags.
#include <iostream>

#include "train/export.h"

int main(int argc, char** argv) {
    return slab::train::run_export(argc, argv, std::cout, std::cerr);
}
