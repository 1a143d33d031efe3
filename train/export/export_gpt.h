// The program build/export_gpt: it makes an adapter into files that other tools load, a full Hugging Face model or a
// GGUF LoRA for llama.cpp.
//
// It works on files alone and opens no device. Beside the adapter one tensor of the output is in memory at a time.
#pragma once

#include <iosfwd>

#include "data/base/stop_token.h"

namespace slab::train {

// The program without main(). Returns its exit code. stop is asked before each tensor that is written. A stop removes
// the unfinished output and returns data::kExitInterrupted.
int run_export(int argc, const char* const* argv, std::ostream& out, std::ostream& err, data::StopToken stop = {});

}  // namespace slab::train
