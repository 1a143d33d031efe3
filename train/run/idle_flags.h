// Flags that were given and decide nothing, because another decides in their place (--lora-r beside --adapter none).
//
// Such a flag is refused naming both: the user expects an effect that will not come. If the config file has the flag
// and the command line the other, the command line wins, as in all things, and a note names what it overrides. The
// config.toml of a run leaves idle flags out, and so repeats the run. What makes a flag idle is in its row of
// flag_table.cpp.
#pragma once

#include <string>
#include <vector>

#include "train/files/adapter_config.h"
#include "train/run/flag_table.h"
#include "train/run/options.h"
#include "train/spec/lora.h"

namespace slab::train {

bool is_idle(const Flag& flag, const TrainOptions& options);

// Throws data::UserError if a flag was given that is idle. Returns the notes, each without "note: ".
std::vector<std::string> check_idle_flags(const TrainOptions& options);

// The same check of --lora-* beside --adapter-in, whose settings hold. A flag with the adapter's own value is welcome.
std::vector<std::string> check_lora_flags(const TrainOptions& options, const LoraSettings& adapter,
                                          const ModelConfig& config);

// The adapter's settings as lines of a config file.
std::string lora_config_text(const LoraSettings& adapter);

}  // namespace slab::train
