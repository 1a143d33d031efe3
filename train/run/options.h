// What train_gpt is told: the values of its flags, and how they are read. The flags themselves are in flag_table.cpp.
//
// Names are those that LoRA users already type. The command line beats --config FILE, which beats the defaults below.
// An unknown name in either is an error that names a near known one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "train/run/offload_flags.h"

namespace slab::train {

// A flag that the command line or a config file gives a value.
struct GivenFlag {
    std::string value;
    bool in_config_file;  // and there only: the command line wins
};

struct TrainOptions {
    std::string base_model;
    bool from_scratch = false;
    std::string train_data, val_data, output_dir;
    double val_set_size = 0;  // below 1: share of the rows (or records) of train_data; from 1 on: their number
    bool sample_packing = false, train_on_inputs = false;
    std::string chat_template;  // "": the model's own; "chatml", "llama3", or a file
    int64_t preview = 0;        // rows to print
    bool preview_ids = false;   // their token ids, too

    std::string adapter = "lora";
    int lora_r = 16;
    double lora_alpha = 32, lora_dropout = 0;
    std::string lora_target_modules = "all-linear";
    bool use_rslora = false;
    std::string adapter_in;
    int freeze_layers = -1;  // -1: not given

    int sequence_len = 2048, micro_batch_size = 1, gradient_accumulation_steps = 1;
    int64_t max_steps = 0;  // 0: num_epochs decides
    double num_epochs = 1;
    double learning_rate = 2e-4;
    std::string lr_scheduler = "cosine";
    double warmup_ratio = 0.03;
    int64_t warmup_steps = -1;  // -1: warmup_ratio decides
    double weight_decay = 0, max_grad_norm = 1, adam_beta1 = 0.9, adam_beta2 = 0.999, adam_epsilon = 1e-8;
    uint64_t seed = 42;

    OffloadFlags offload;
    std::string slab_format;  // "": by the base; else a name of SlabFormat
    bool load_in_4bit = false, load_in_8bit = false;
    int threads = 0;

    std::string gpus;  // "": one; see parse_gpus
    int exchange_every = 1;
    int comm_timeout = 300;  // seconds
    std::string transport = "auto";

    int64_t eval_steps = 0, save_steps = 0, save_total_limit = 0, logging_steps = 1;
    std::string resume_from_checkpoint, log, trace, trace_steps = "1:3";
    bool plan = false;
    std::string sample;
    bool sample_chat = false;  // the prompt is a user's turn
    int sample_tokens = 200;
    double sample_temperature = 0.8, top_p = 1;
    int top_k = 0;  // 0: all

    std::map<std::string, GivenFlag> given;  // by name, without dashes
    std::vector<std::string> notes;          // on flags, without "note: "
    std::string config_toml;                 // the text that repeats this run
};

// Parses and checks. Returns the exit code if the program shall end now, nothing if it shall go on. A value that parses
// and makes no sense throws data::UserError.
std::optional<int> parse_train_options(TrainOptions& options, int argc, const char* const* argv, std::ostream& out,
                                       std::ostream& err);

}  // namespace slab::train
