// The base's text is edited in its own order of keys.
#include "train/files/generation_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>

#include "data/base/input_file.h"
#include "data/base/json_file.h"
#include "data/base/json_section.h"
#include "data/gguf/gguf.h"
#include "train/files/base_config.h"

namespace slab::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr char kEndKey[] = "eos_token_id";

// What transformers takes from a config.json that has no generation_config.json beside it.
constexpr const char* kKeysOfGeneration[] = {
    "bos_token_id",   "eos_token_id", "pad_token_id",        "decoder_start_token_id", "do_sample",  "temperature",
    "top_k",          "top_p",        "typical_p",           "repetition_penalty",     "max_length", "min_length",
    "length_penalty", "num_beams",    "no_repeat_ngram_size"};

ordered_json read_object(const fs::path& path) {
    const std::string text = data::InputFile(path).read_all("JSON", data::kMaxJsonBytes);
    data::parse_json(text, path.string());  // throws unless it is valid
    ordered_json json = ordered_json::parse(text);
    return json.is_object() ? json : ordered_json::object();
}

std::vector<int64_t> ends_in(const ordered_json& json) {
    std::vector<int64_t> ends;
    const auto found = json.find(kEndKey);
    if (found == json.end()) return ends;
    const ordered_json list = found->is_array() ? *found : ordered_json::array({*found});
    for (const ordered_json& id : list)
        if (id.is_number_integer() && id.get<int64_t>() >= 0) ends.push_back(id.get<int64_t>());
    return ends;
}

ordered_json gguf_generation(const data::GgufFile& file) {
    ordered_json out = ordered_json::object();
    const auto id = [&](const char* key) { return file.has(key) ? file.integer(key) : int64_t{-1}; };
    const auto put = [&](const char* key, int64_t value) {
        if (value >= 0) out[key] = value;
    };
    put("bos_token_id", id("tokenizer.ggml.bos_token_id"));
    ordered_json ends = ordered_json::array();  // llama.cpp stops at all three
    for (const char* key :
         {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"})
        if (const int64_t end = id(key); end >= 0 && std::find(ends.begin(), ends.end(), end) == ends.end())
            ends.push_back(end);
    if (!ends.empty()) out[kEndKey] = ends.size() == 1 ? ends[0] : ends;
    put("pad_token_id", id("tokenizer.ggml.padding_token_id"));
    for (const auto& [key, name] : {std::pair{"general.sampling.temp", "temperature"},
                                    {"general.sampling.top_p", "top_p"},
                                    {"general.sampling.min_p", "min_p"},
                                    {"general.sampling.penalty_repeat", "repetition_penalty"}})
        if (file.has(key)) out[name] = data::shortest(static_cast<float>(file.number(key)));
    if (file.has("general.sampling.top_k")) out["top_k"] = file.integer("general.sampling.top_k");
    if (out.contains("temperature")) out["do_sample"] = out["temperature"] > 0;
    return out;
}

// What the base says about generation.
ordered_json generation_of(const fs::path& base) {
    if (data::is_gguf_file(base)) return gguf_generation(data::GgufFile(base));
    const fs::path config = config_path(base), own = config.parent_path() / kGenerationConfigFile;
    std::error_code error;
    if (fs::is_regular_file(own, error)) return read_object(own);
    const ordered_json all = read_object(config);
    ordered_json out = ordered_json::object();
    for (const char* key : kKeysOfGeneration)
        if (const auto found = all.find(key); found != all.end() && !found->is_null()) out[key] = *found;
    return out;
}

}  // namespace

std::vector<int64_t> generation_ends(const fs::path& base) {
    return ends_in(generation_of(base));
}

std::vector<int64_t> generation_ends_beside(const fs::path& directory) {
    std::error_code error;
    const fs::path file = directory / kGenerationConfigFile;
    return fs::is_regular_file(file, error) ? ends_in(read_object(file)) : std::vector<int64_t>{};
}

std::string generation_config_of(const fs::path& base, const std::vector<int64_t>& more) {
    ordered_json json = generation_of(base);
    std::vector<int64_t> ends = ends_in(json);
    const size_t before = ends.size();
    for (const int64_t id : more)
        if (std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
    if (ends.size() != before) json[kEndKey] = ends.size() == 1 ? ordered_json(ends[0]) : ordered_json(ends);
    return json.dump(2) + "\n";
}

void stop_at(std::vector<Companion>& companions, const fs::path& base, const std::vector<int64_t>& more) {
    const auto is_it = [](const Companion& file) { return file.name == kGenerationConfigFile; };
    std::erase_if(companions, is_it);
    companions.push_back(
        {.name = kGenerationConfigFile, .make = [base, more] { return generation_config_of(base, more); }});
}

}  // namespace slab::train
