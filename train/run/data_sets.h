// Training and validation rows from token files, text or JSONL records. Text and records are tokenised here with the
// base model's own tokenizer and stay in memory: 2 or 4 bytes a token, and one for the mask.
#pragma once

#include <ctime>
#include <filesystem>
#include <iosfwd>
#include <memory>

#include "data/base/stop_token.h"
#include "data/prepare.h"
#include "train/run/data_loader.h"
#include "train/run/options.h"
#include "train/spec/model_config.h"

namespace slab::train {

enum class DataKind { tokens, records, text };
// records: by the file's name (data/records.h). tokens: *.bin, files that begin as a token file, and files that cannot
// be read, for TokenFile to refuse. text: the rest.
DataKind kind_of_data(const std::filesystem::path& path);

// Two files, or one divided by --val-set-size. Then validation is the last rows of tokens and text, or evenly spread
// records. val is null without validation; else one of its rows has a target.
struct DataSets {
    std::unique_ptr<DataLoader> train, val;
};

// Prints the sizes of text and records, then --preview. The tokenizer of `base`, where --base-model was found, is read
// only if it is needed. A stop between pieces of a text or of records throws Interrupted. Throws data::UserError naming
// file, line or flag. now: what chat templates show as the date.
DataSets open_data(const TrainOptions& options, const std::filesystem::path& base, const ModelConfig& config,
                   const std::tm& now, std::ostream& out, data::StopToken stop);

}  // namespace slab::train
