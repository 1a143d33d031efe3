// slabstream.json beside an adapter: which numbers it was trained on. PEFT reads no such file, and refuses unknown keys
// in its own.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "train/spec/slab_format.h"

namespace slab::train {

inline constexpr char kAdapterRecordFile[] = "slabstream.json";

struct AdapterRecord {
    SlabFormat slab_format = SlabFormat::bf16;
    std::string base_fingerprint;            // BaseWeights::fingerprint
    double mean_error = 0, worst_error = 0;  // relative, of encoding; 0 where the numbers are the file's
    std::string worst_tensor;
};

std::string adapter_record_json(const AdapterRecord& record);
// Nothing where the directory has no record. Throws data::UserError naming file and key.
std::optional<AdapterRecord> read_adapter_record(const std::filesystem::path& directory);

// A clause for a note when an adapter was trained on other numbers than those of now, or "". as_is and bf16 are the
// file's own numbers.
std::string other_numbers(const AdapterRecord& record, SlabFormat now, const std::string& fingerprint_now);

}  // namespace slab::train
