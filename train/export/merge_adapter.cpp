// The model is written shard by shard and tensor by tensor.
//
// All errors of the inputs are found before the first byte is written. Names and order of the tensors are those of the
// base's files, and so are their types unless another is given. Buffers of old models are included.
#include "train/export/merge_adapter.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "data/base/atomic_file.h"
#include "data/base/display.h"
#include "data/base/error.h"
#include "data/base/output_paths.h"
#include "data/gguf/gguf.h"
#include "train/files/base_weights.h"
#include "train/files/generation_config.h"
#include "train/files/model_directory.h"
#include "train/files/safetensors.h"
#include "train/files/safetensors_writer.h"
#include "train/files/stored_number.h"
#include "train/files/transpose.h"

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

// Gives the tensors of the output.
class Source {
  public:
    virtual ~Source() = default;
    // All tensors in their order. dtype: the weights' type if it differs from the base's; a GGUF base needs one.
    virtual std::vector<OutTensor> plan(std::optional<DType> dtype) const = 0;
    // The bytes of one tensor into dst [t.bytes]; called in the plan's order.
    virtual void make(const OutTensor& t, std::byte* dst) = 0;
};

// Adds the adapter to wide [t.shape], a tensor in float32 as stored, and rounds it to dst.
void finish_tensor(const OutTensor& t, float* wide, size_t elems, bool transposed, const Adapter& adapter,
                   ThreadPool& pool, const fs::path& from, std::byte* dst) {
    if (t.adapter)
        add_adapter(wide, transposed, *t.adapter, static_cast<size_t>(adapter.lora.r), adapter.lora.scale(), pool);
    const std::string name = "tensor " + data::quote(t.name) + (t.adapter ? " with the adapter" : "");
    if (!all_finite(wide, elems))  // what was read is finite, a product of large numbers need not be
        throw data::UserError({.subject = from.string(),
                               .given = name + " has values beyond the range of float32",
                               .wanted = "finite numbers",
                               .hint = "the adapter's weights are too large; had the run that wrote it diverged?"});
    if (!store_as(t.dtype, wide, elems, dst))
        throw data::UserError({.subject = from.string(),
                               .given = name + " has a value beyond the range of " + dtype_name(t.dtype),
                               .hint = "give --dtype bf16 or f32"});
}

// A base of .safetensors files: their tensors in their order, each with its adapter.
class FilesSource : public Source {
  public:
    FilesSource(const fs::path& base, const ModelConfig& config, const Adapter& adapter, ThreadPool& pool)
        : files_(base), config_(config), adapter_(adapter), pool_(pool) {}

    std::vector<OutTensor> plan(std::optional<DType> dtype) const override {
        std::map<std::string, const AdapterModule*> adapter_of;
        for (const AdapterModule& m : adapter_.modules)
            adapter_of[files_.resolve(key_spellings(m.module.path + ".weight"))] = &m;
        std::vector<OutTensor> tensors;
        for (const SafetensorsFile& file : files_.files())
            for (const SafetensorsEntry& entry : file.entries()) {
                OutTensor t{entry.name, entry.dtype, entry.shape};
                // Buffers keep their type: a mask is no weight, and rotary frequencies need more than 16 bits.
                const bool buffer = is_ignorable_key(config_, entry.name) && entry.name != "lm_head.weight";
                if (dtype && !buffer) t.dtype = *dtype;
                if (const auto found = adapter_of.find(entry.name); found != adapter_of.end())
                    t.adapter = found->second;
                t.bytes = entry.elems * dtype_bytes(t.dtype);
                tensors.push_back(std::move(t));
            }
        return tensors;
    }

    void make(const OutTensor& t, std::byte* dst) override {
        const SafetensorsEntry& entry = files_.info(t.name);
        const SafetensorsFile& file = files_.file_of(t.name);
        if (!t.adapter && t.dtype == entry.dtype) {
            file.read_raw(t.name, t.dtype, dst);
            return;
        }
        std::vector<float> wide(entry.elems);
        file.read_as(t.name, wide.data());
        finish_tensor(t, wide.data(), wide.size(), config_.family == Family::gpt2, adapter_, pool_, file.path(), dst);
    }

  private:
    ModelFiles files_;
    const ModelConfig& config_;
    const Adapter& adapter_;
    ThreadPool& pool_;
};

// A base that stores blocks, decoded (a GGUF file, bitsandbytes' 4 bits): the tensors of the same model in
// transformers, under its names.
class DecodedSource : public Source {
  public:
    DecodedSource(const fs::path& base, const ModelConfig& config, const Adapter& adapter, ThreadPool& pool)
        : path_(base),
          config_(config),
          weights_(BaseWeights::from_files(base, config)),
          adapter_(adapter),
          pool_(pool),
          specs_(all_tensors(config)) {
        for (const TensorSpec& spec : specs_)
            for (const TensorPart& part : spec.parts) places_[part.key] = {&spec, &part};
    }

    std::vector<OutTensor> plan(std::optional<DType> dtype) const override {
        std::map<std::string, const AdapterModule*> adapter_of;
        for (const AdapterModule& m : adapter_.modules) adapter_of[m.module.path + ".weight"] = &m;
        std::vector<OutTensor> tensors;
        for (const TensorSpec& spec : specs_)
            for (const TensorPart& part : spec.parts) {
                OutTensor t{part.key, dtype.value(), stored_shape(spec, part)};
                if (const auto found = adapter_of.find(part.key); found != adapter_of.end()) t.adapter = found->second;
                t.bytes = part.rows * spec.cols * dtype_bytes(t.dtype);
                tensors.push_back(std::move(t));
            }
        return tensors;
    }

    void make(const OutTensor& t, std::byte* dst) override {
        const auto [spec, part] = places_.at(t.name);
        std::vector<float> wide(part->rows * spec->cols);
        weights_.read_part(*spec, *part, wide.data(), pool_);
        if (spec->transposed) {
            std::vector<float> stored(wide.size());
            transpose(wide.data(), part->rows, spec->cols, stored.data());
            wide = std::move(stored);
        }
        finish_tensor(t, wide.data(), wide.size(), spec->transposed, adapter_, pool_, path_, dst);
    }

  private:
    fs::path path_;
    const ModelConfig& config_;
    BaseWeights weights_;
    const Adapter& adapter_;
    ThreadPool& pool_;
    std::vector<TensorSpec> specs_;
    std::map<std::string, std::pair<const TensorSpec*, const TensorPart*>> places_;  // by key
};

// Groups tensors, in order, into shards. A tensor larger than a shard gets one of its own.
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
    if (shards == 1) return kModelWeightsFile;
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
    data::write_file_atomically(directory / kModelIndexFile, index.dump(2) + "\n");
}

// The ids at which the adapter's own generation_config.json stops and the base's does not.
std::vector<int64_t> ends_of_adapter(const fs::path& base, const fs::path& adapter) {
    if (adapter.empty()) return {};
    const std::vector<int64_t> known = generation_ends(base);
    std::vector<int64_t> more;
    for (const int64_t id : generation_ends_beside(adapter))
        if (std::find(known.begin(), known.end(), id) == known.end()) more.push_back(id);
    return more;
}

}  // namespace

bool stores_blocks(const fs::path& base, const ModelConfig& config) {
    return data::is_gguf_file(base) || config.stored_in_4bit;
}

MergeReport merge_adapter(const fs::path& base, const ModelConfig& config, const Adapter& adapter, const fs::path& out,
                          const MergeSettings& settings, ThreadPool& pool) {
    data::require_new_directory("--merge", out);
    std::optional<DType> dtype = parse_dtype(settings.dtype);
    std::unique_ptr<Source> source;
    if (stores_blocks(base, config)) {
        if (!dtype) dtype = DType::bf16;  // types of blocks cannot be kept; of the 16-bit types it has float's range
        source = std::make_unique<DecodedSource>(base, config, adapter, pool);
    } else {
        BaseWeights::from_files(base, config);  // throws unless the files are exactly this model
        source = std::make_unique<FilesSource>(base, config, adapter, pool);
    }
    const std::string config_json = config_json_for(base, config, dtype);
    std::vector<Companion> beside = companions_of(base);
    MergeReport report;
    report.ends = ends_of_adapter(base, settings.adapter_directory);
    if (!report.ends.empty()) stop_at(beside, base, report.ends);
    const auto shards = split_shards(source->plan(dtype), settings.max_shard_bytes);

    report.shards = shards.size();
    const fs::path parent = fs::absolute(out).lexically_normal().parent_path();
    fs::create_directories(parent);
    data::remove_stale_temporaries(parent);
    data::AtomicDirectory staged(out);
    for (size_t s = 0; s < shards.size(); ++s) {
        SafetensorsWriter writer;
        for (const OutTensor& t : shards[s]) {
            writer.add(t.name, t.dtype, t.shape, [&](std::byte* dst) {
                settings.stop.throw_if_requested();
                source->make(t, dst);
            });
            report.bytes += t.bytes;
            report.tensors += 1;
            report.merged += t.adapter != nullptr;
        }
        writer.write(staged.staging() / shard_name(s, shards.size()));
    }
    if (shards.size() > 1) write_index(staged.staging(), shards);
    data::write_file_atomically(staged.staging() / kModelConfigFile, config_json);
    report.beside = copy_into(staged.staging(), beside);
    if (const std::string text = no_tokenizer_text(base); !text.empty()) report.beside.left_out.push_back(text);
    staged.commit(data::Existing::keep);
    return report;
}

}  // namespace slab::train
