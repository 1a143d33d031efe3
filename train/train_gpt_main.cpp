// build/train_gpt: fine-tunes a GPT. All the work is in trainer.cpp; here are the command line, signals and exit codes.
#include <atomic>
#include <csignal>
#include <iostream>
#include <new>

#include "train/options.h"
#include "train/trainer.h"

namespace {

// A signal handler can reach nothing but a global; the second signal kills the process as usual.
std::atomic<bool> interrupted{false};

void on_signal(int signal) {
    interrupted = true;
    std::signal(signal, SIG_DFL);
}

}  // namespace

int main(int argc, char** argv) {
    slab::train::TrainOptions options;
    try {
        if (const auto code = slab::train::parse_train_options(options, argc, argv, std::cout, std::cerr)) return *code;
        std::signal(SIGINT, on_signal);
        std::signal(SIGTERM, on_signal);
        return slab::train::train(options, interrupted, std::cout);
    } catch (const std::bad_alloc&) {
        std::cout << std::flush;
        std::cerr
            << "train_gpt: host memory is exhausted; --plan prints what is needed. Hint: lower --micro-batch-size or "
               "--sequence-len, freeze more with --freeze-layers or --adapter lora, or close other programs\n";
        return 1;
    } catch (const std::exception& error) {
        std::cout << std::flush;
        std::cerr << "train_gpt: " << error.what() << "\n";
        return 1;
    }
}
