// Flags that were given and decide nothing, because another decides in their place (--lora-r beside --adapter none).
//
// Such a flag is refused naming both, as the user expects of it what will not come; but where the config file has it
// and the command line the other, the command line wins, as it does in all things, and a note says what it put aside.
// The config.toml of a run leaves such flags out, and so repeats the run.
#pragma once

#include <string>
#include <vector>

#include "train/files/adapter_config.h"
#include "train/run/options.h"
#include "train/spec/lora.h"

namespace slab::train {

// Whether the flag (by name, without dashes) would decide nothing in this run.
bool is_idle(const std::string& flag, const TrainOptions& options);

// Of the flags given. Throws std::runtime_error, or returns what is to be noted, each without "note: ".
std::vector<std::string> check_idle_flags(const TrainOptions& options);

// The same of --lora-* beside --adapter-in, whose settings hold: flags that say the same as its adapter are welcome.
std::vector<std::string> check_lora_flags(const TrainOptions& options, const LoraSettings& adapter,
                                          const ModelConfig& config);

// The adapter's settings as lines of a config file.
std::string lora_config_text(const LoraSettings& adapter);

}  // namespace slab::train
