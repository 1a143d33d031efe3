// A full model out of base and adapter, shard by shard and tensor by tensor. See export.h.
//
// Everything that can be wrong with the inputs is found before the first byte is written. Names, order and, unless
// another is asked for, types of the tensors are those of the base's files, buffers of old models included.
#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "data/atomic_file.h"
#include "data/input_file.h"
#include "data/json_file.h"
#include "data/tokenizer.h"
#include "train/base_weights.h"
#include "train/export.h"
#include "train/safetensors.h"

namespace slab::train {

namespace fs = std::filesystem;

namespace {

// A tensor of the output.
struct OutTensor {
    std::string name;
    DType dtype;
    std::vector<size_t> shape;
    const AdapterModule* adapter = nullptr;  // null: as in the base
    size_t bytes = 0;
};

std::optional<DType> parse_dtype(const std::string& name) {
    if (name.empty()) return std::nullopt;
    return name == "f32" ? DType::f32 : name == "bf16" ? DType::bf16 : DType::f16;
}

// transformers' name of it, for config.json.
const char* config_dtype(DType dtype) {
    return dtype == DType::f32 ? "float32" : dtype == DType::bf16 ? "bfloat16" : "float16";
}

void require_no_content(const fs::path& out) {
    std::error_code ignored;
    if (!fs::exists(out)) return;
    if (!fs::is_directory(out) || !fs::is_empty(out, ignored))
        throw std::runtime_error("--merge " + out.string() + ": exists " +
                                 (fs::is_directory(out) ? "and is not empty" : "and is no directory") +
                                 "; wanted a new directory: remove it, or give another");
}

// stored [out, in], or [in, out] of GPT-2's Conv1D: += scale * B A, in float32.
void add_adapter(float* stored, bool transposed, const AdapterModule& m, size_t r, float scale, ThreadPool& pool) {
    const size_t in = m.module.in, out = m.module.out;
    const size_t rows = transposed ? in : out, cols = transposed ? out : in;
    std::vector<float> left(rows * r), right(r * cols);  // stored += scale * left [rows, r] x right [r, cols]
    if (transposed) {
        transpose(m.A, r, in, left.data());
        transpose(m.B, out, r, right.data());
    } else {
        std::copy_n(m.B, left.size(), left.data());
        std::copy_n(m.A, right.size(), right.data());
    }
    constexpr size_t rows_per_tile = 64;
    pool.parallel_ranges(rows, rows_per_tile, [&](size_t begin, size_t end) {
        std::vector<float> sum(cols);
        for (size_t row = begin; row < end; ++row) {
            std::fill(sum.begin(), sum.end(), 0.0f);
            for (size_t k = 0; k < r; ++k) {
                const float factor = left[row * r + k];
                const float* const from = right.data() + k * cols;
                for (size_t col = 0; col < cols; ++col) sum[col] += factor * from[col];
            }
            for (size_t col = 0; col < cols; ++col) stored[row * cols + col] += scale * sum[col];
        }
    });
}

// The tensors of the base's files in their order, each with its adapter.
std::vector<OutTensor> plan_tensors(const ModelFiles& files, const ModelConfig& config, const Adapter& adapter,
                                    std::optional<DType> dtype) {
    std::map<std::string, const AdapterModule*> adapter_of;
    for (const AdapterModule& m : adapter.modules)
        adapter_of[files.resolve(key_spellings(m.module.path + ".weight"))] = &m;
    std::vector<OutTensor> tensors;
    for (const SafetensorsFile& file : files.files())
        for (const SafetensorsEntry& entry : file.entries()) {
            OutTensor t{entry.name, entry.dtype, entry.shape};
            // Buffers keep their type: a mask is no weight, and rotary frequencies would lose their meaning in 16 bits.
            const bool buffer = is_ignorable_key(config, entry.name) && entry.name != "lm_head.weight";
            if (dtype && !buffer) t.dtype = *dtype;
            if (const auto found = adapter_of.find(entry.name); found != adapter_of.end()) t.adapter = found->second;
            t.bytes = entry.elems * dtype_bytes(t.dtype);
            tensors.push_back(std::move(t));
        }
    return tensors;
}

// Bytes of one tensor of the output.
void make_tensor(const ModelFiles& files, const OutTensor& t, const Adapter& adapter, bool transposed, ThreadPool& pool,
                 std::byte* dst) {
    const SafetensorsEntry& entry = files.info(t.name);
    if (!t.adapter && t.dtype == entry.dtype) {
        files.file_of(t.name).read_raw(t.name, t.dtype, dst);
        return;
    }
    std::vector<float> wide(entry.elems);
    files.read_as(t.name, wide.data());
    if (t.adapter)
        add_adapter(wide.data(), transposed, *t.adapter, static_cast<size_t>(adapter.lora.r), adapter.lora.scale(),
                    pool);
    if (!store_as(t.dtype, wide.data(), wide.size(), dst))
        throw std::runtime_error(files.file_of(t.name).path().string() + ": tensor " + data::quote(t.name) +
                                 (t.adapter ? " with the adapter" : "") + " has a value beyond the range of " +
                                 dtype_name(t.dtype) + "; give --dtype bf16 or f32");
}

// Runs of tensors that fit a shard each. A tensor larger than a shard has one of its own.
std::vector<std::vector<OutTensor>> split_shards(std::vector<OutTensor> tensors, size_t max_shard_bytes) {
    std::vector<std::vector<OutTensor>> shards;
    size_t shard_bytes = 0;
    for (OutTensor& t : tensors) {
        if (shards.empty() || shard_bytes + t.bytes > max_shard_bytes) {
            shards.emplace_back();
            shard_bytes = 0;
        }
        shard_bytes += t.bytes;
        shards.back().push_back(std::move(t));
    }
    return shards;
}

std::string shard_name(size_t shard, size_t shards) {
    if (shards == 1) return "model.safetensors";
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", shard + 1, shards);
    return name;
}

void write_index(const fs::path& directory, const std::vector<std::vector<OutTensor>>& shards) {
    nlohmann::ordered_json index;
    size_t total_bytes = 0;
    std::map<std::string, std::string> shard_of;
    for (size_t s = 0; s < shards.size(); ++s)
        for (const OutTensor& t : shards[s]) {
            shard_of[t.name] = shard_name(s, shards.size());
            total_bytes += t.bytes;
        }
    index["metadata"]["total_size"] = total_bytes;
    index["weight_map"] = shard_of;
    data::write_file_atomically(directory / "model.safetensors.index.json", index.dump(2) + "\n");
}

// config.json of the base, key for key; only the type is another when another was asked for.
void copy_config(const fs::path& from, const fs::path& to, std::optional<DType> dtype) {
    if (!dtype) {
        data::copy_file_atomically(from, to);
        return;
    }
    data::read_json_file(from);  // checks it
    const data::InputFile file(from);
    std::string text(file.size_bytes(), '\0');
    file.read(0, text.data(), text.size(), "JSON text");
    auto config = nlohmann::ordered_json::parse(text);
    config[config.contains("dtype") ? "dtype" : "torch_dtype"] = config_dtype(*dtype);
    data::write_file_atomically(to, config.dump(2) + "\n");
}

}  // namespace

MergeReport merge_adapter(const fs::path& base, const ModelConfig& config, const Adapter& adapter, const fs::path& out,
                          const MergeSettings& settings, ThreadPool& pool) {
    require_no_content(out);
    BaseWeights::from_files(base, config);  // throws unless the files are exactly this model
    const ModelFiles files(base);
    const std::optional<DType> dtype = parse_dtype(settings.dtype);
    const auto shards = split_shards(plan_tensors(files, config, adapter, dtype), settings.max_shard_bytes);

    MergeReport report;
    report.shards = shards.size();
    const fs::path parent = fs::absolute(out).lexically_normal().parent_path();
    fs::create_directories(parent);
    data::remove_stale_temporaries(parent);
    data::AtomicDirectory staged(out);
    for (size_t s = 0; s < shards.size(); ++s) {
        SafetensorsWriter writer;
        for (const OutTensor& t : shards[s]) {
            writer.add(t.name, t.dtype, t.shape, [&](std::byte* dst) {
                make_tensor(files, t, adapter, config.family == Family::gpt2, pool, dst);
            });
            report.bytes += t.bytes;
            report.tensors += 1;
            report.merged += t.adapter != nullptr;
        }
        writer.write(staged.staging() / shard_name(s, shards.size()));
    }
    if (shards.size() > 1) write_index(staged.staging(), shards);
    copy_config(files.directory() / "config.json", staged.staging() / "config.json", dtype);
    std::vector<fs::path> beside = data::tokenizer_files(files.directory());
    if (const fs::path generation = files.directory() / "generation_config.json"; fs::exists(generation))
        beside.push_back(generation);
    for (const fs::path& file : beside) {
        report.copied.push_back(file.filename().string());
        data::copy_file_atomically(file, staged.staging() / file.filename());
    }
    staged.commit();
    return report;
}

}  // namespace slab::train
