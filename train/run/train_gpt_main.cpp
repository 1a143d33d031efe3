// build/train_gpt: fine-tunes a GPT. Here are the command line, signals and exit codes.
#include <filesystem>
#include <iostream>
#include <new>
#include <string>

#include "data/base/command_line.h"
#include "data/base/stop_signals.h"
#include "train/run/options.h"
#include "train/run/run.h"

namespace {

int failed(const std::string& why) {
    std::cout << std::flush;
    std::cerr << "train_gpt: " << why << "\n";
    return 1;
}

}  // namespace

int main(int argc, char** argv) {
    slab::data::prepare_standard_streams();
    slab::train::TrainOptions options;
    try {
        if (const auto code = slab::train::parse_train_options(options, argc, argv, std::cout, std::cerr))
            return slab::data::standard_output_arrived("train_gpt") ? *code : 1;
        // What batch systems and closing terminals send ends a run as Ctrl-C does, and with the same status.
        const int code = slab::train::train(options, slab::data::watch_stop_signals(), std::cout);
        // A run that is done is done: its files are there, whoever stopped reading what it says.
        const bool arrived = slab::data::standard_output_arrived("train_gpt");
        return arrived || !options.plan ? code : 1;
    } catch (const std::bad_alloc&) {
        return failed(
            "host memory is exhausted; --plan prints what is needed. Hint: lower --micro-batch-size or --sequence-len, "
            "freeze more with --freeze-layers or --adapter lora, or close other programs");
    } catch (const std::filesystem::filesystem_error& error) {
        return failed(error.path1().string() + ": " + error.code().message() + "; wanted a path that can be used");
    } catch (const std::exception& error) {
        return failed(error.what());
    }
}
