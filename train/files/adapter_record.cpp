// Unknown keys are let through: a later version may write more.
#include "train/files/adapter_record.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "data/base/json_file.h"
#include "data/base/json_section.h"

namespace slab::train {

namespace {

// "nf4", or nothing where the numbers are the file's.
std::string made_format(SlabFormat format) {
    return format == SlabFormat::q8_0 || format == SlabFormat::nf4 ? slab_format_name(format) : "";
}

}  // namespace

std::string adapter_record_json(const AdapterRecord& record) {
    nlohmann::ordered_json j;
    j["slab_format"] = slab_format_name(record.slab_format);
    j["base_model_fingerprint"] = record.base_fingerprint;
    if (!made_format(record.slab_format).empty()) {
        j["mean_error"] = record.mean_error;
        j["worst_error"] = record.worst_error;
        j["worst_tensor"] = record.worst_tensor;
    }
    return j.dump(2) + "\n";
}

std::optional<AdapterRecord> read_adapter_record(const std::filesystem::path& directory) {
    const std::filesystem::path file = directory / kAdapterRecordFile;
    std::error_code error;
    if (!std::filesystem::exists(file, error)) return std::nullopt;
    const nlohmann::json json = data::read_json_file(file);
    data::JsonSection section(file.string(), "", json);
    AdapterRecord record;
    const auto format = slab_format_named(section.text("slab_format", "bf16, q8_0, nf4 or as-is"));
    if (!format) section.refuse("slab_format", "bf16, q8_0, nf4 or as-is");
    record.slab_format = *format;
    record.base_fingerprint = section.text("base_model_fingerprint", "a checksum", "");
    record.mean_error = section.number("mean_error", 0, 1e30, 0.0f);
    record.worst_error = section.number("worst_error", 0, 1e30, 0.0f);
    record.worst_tensor = section.text("worst_tensor", "a tensor's name", "");
    return record;
}

std::string other_numbers(const AdapterRecord& record, SlabFormat now, const std::string& fingerprint_now) {
    std::string text;
    if (!record.base_fingerprint.empty() && record.base_fingerprint != fingerprint_now)
        text = "was trained on another base model";
    const std::string then_made = made_format(record.slab_format), now_made = made_format(now);
    if (then_made == now_made) return text;
    if (then_made.empty())
        return text + (text.empty() ? "was" : " and was") + " trained on the base's own numbers, not on " + now_made;
    char error[32];
    std::snprintf(error, sizeof error, "%.2f%%", 100 * record.mean_error);
    return text + (text.empty() ? "was" : " and was") + " trained on the base's weights in " + then_made +
           ", which differ by " + error + " from the " + (now_made.empty() ? "file's" : "file's, not on " + now_made);
}

}  // namespace slab::train
