// Hundreds of broken GGUF files. Each must load or end in a UserError: no crash, no hang, no memory out of proportion
// to the file.
//
// The mutations are a function of their number alone. SLABSTREAM_MUTATIONS=10000 build/tests -tc="GGUF: broken*" runs
// more of them. With SAN=address that is the manual check of a change to the readers.
#include <doctest/doctest.h>

#include <random>

#include "data/base/error.h"
#include "kernels/runtime/thread_pool.h"
#include "tests/gguf_builder.h"
#include "tests/limited_memory.h"
#include "tests/mutations.h"
#include "tests/temporary_files.h"
#include "tests/tiny_model.h"
#include "train/files/base_config.h"
#include "train/files/base_weights.h"
#include "train/run/run_setup.h"

using namespace slab;
using slab::test::content;
using slab::test::FreshDirectory;
using slab::test::GgufBuilder;
using slab::test::put;
using slab::test::put_anew;
using slab::test::raw;
namespace fs = std::filesystem;

namespace {

using Random = std::mt19937_64;

size_t below(Random& random, size_t n) {
    return n == 0 ? 0 : random() % n;
}

// Numbers that are often wrong as lengths, counts, offsets, sizes or types.
uint64_t tricky(Random& random, size_t file_bytes) {
    const uint64_t numbers[] = {0,
                                1,
                                2,
                                7,
                                31,
                                33,
                                255,
                                65535,
                                65536,
                                INT32_MAX,
                                uint64_t{INT32_MAX} + 1,
                                UINT32_MAX,
                                uint64_t{UINT32_MAX} + 1,
                                INT64_MAX,
                                uint64_t{INT64_MAX} + 1,
                                UINT64_MAX - 31,
                                UINT64_MAX,
                                file_bytes,
                                file_bytes - 1,
                                file_bytes + 1,
                                uint64_t{1} << 40,
                                random() >> below(random, 64)};
    return numbers[below(random, std::size(numbers))];
}

// Overwrites some bytes, mostly in the header, where false numbers matter.
void overwrite_number(std::string& bytes, Random& random, size_t header_bytes) {
    const size_t width = size_t{1} << below(random, 4);
    const size_t at = below(random, below(random, 8) == 0 ? bytes.size() : header_bytes);
    const std::string number = raw(tricky(random, bytes.size())).substr(0, width);
    for (size_t i = 0; i < width && at + i < bytes.size(); ++i) bytes[at + i] = number[i];
}

std::string mutate(std::string bytes, Random& random, size_t header_bytes) {
    for (size_t left = 1 + below(random, 3); left > 0; --left) {
        if (bytes.empty()) return bytes;
        const size_t at = below(random, std::min(header_bytes, bytes.size())), some = 1 + below(random, 40);
        switch (below(random, 9)) {
            case 0:
                bytes.resize(below(random, bytes.size()));
                break;
            case 1:
                bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(random, 8)));
                break;
            case 2:
                bytes.erase(at, some);
                break;
            case 3:
                bytes.insert(at, bytes.substr(below(random, bytes.size()), some));
                break;
            case 4:
                bytes.replace(at, some, bytes.substr(below(random, bytes.size()), some));
                break;
            case 5:
                bytes.append(some, static_cast<char>(random()));
                break;
            default:
                overwrite_number(bytes, random, header_bytes);
        }
    }
    return bytes;
}

// False values in exactly one field, made with the builder.
std::string lie(GgufBuilder b, Random& random) {
    GgufBuilder::Tensor& tensor = b.tensors[below(random, b.tensors.size())];
    std::string& value = b.values[below(random, b.values.size())];
    switch (below(random, 9)) {
        case 0:
            b.set("general.alignment", static_cast<uint32_t>(tricky(random, 4096)));
            break;
        case 1:
            tensor.shape[below(random, tensor.shape.size())] = tricky(random, 4096);
            break;
        case 2:
            tensor.shape.assign(below(random, 7), 1 + below(random, 64));
            break;
        case 3:
            tensor.type = static_cast<uint32_t>(tricky(random, 40));
            break;
        case 4:
            tensor.name = b.tensors[below(random, b.tensors.size())].name;
            break;
        case 5:
            tensor.bytes.resize(below(random, 2 * tensor.bytes.size()));
            break;
        case 6:
            value.replace(value.size() - std::min<size_t>(4, value.size()), 4, raw(tricky(random, 4096)), 0, 4);
            break;
        case 7:
            value = b.values[below(random, b.values.size())];
            break;
        default:
            b.alignment = size_t{1} << below(random, 10);
    }
    return b.file();
}

void load(const fs::path& path) {
    const train::ModelConfig config = train::read_base_config(path);
    train::BaseWeights weights = train::BaseWeights::from_files(path, config);
    ThreadPool pool(1);
    for (const train::TensorSpec& spec : all_tensors(config)) {
        std::vector<float> values(spec.elems());
        weights.read(spec, values.data(), pool);
    }
}

// A small honest llama with every kind of value and a tensor of each type.
GgufBuilder honest() {
    using enum data::GgmlType;
    size_t next = 0;
    const auto type_of = [&](const std::string&) {
        const data::GgmlType types[] = {f32, q8_0, q4_0, f16, q4_1, bf16, q5_0, q5_1};
        return types[next++ % std::size(types)];
    };
    GgufBuilder b = test::gguf_llama(2, type_of, '\1');
    b.set("llama.attention.key_length", uint32_t{8});
    b.set("llama.rope.dimension_count", uint32_t{8});
    b.set("llama.rope.freq_base", 10000.0f);
    b.set("tokenizer.ggml.tokens", std::vector<std::string>{"a", "bc", "", "d", "e"});
    b.set("tokenizer.ggml.token_type", std::vector<int32_t>{1, 1, 1, 3, 3});
    b.set("tokenizer.ggml.add_bos_token", true);
    b.tensor("rope_freqs.weight", f32, {4}, raw(1.0f) + raw(1.0f) + raw(1.0f) + raw(1.0f));
    return b;
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("GGUF: broken files load or are refused, and take no memory that the file does not account for") {
        const size_t mutations = test::mutations(700);
        const FreshDirectory dir;
        const fs::path path = dir.path / "broken.gguf";
        const GgufBuilder small = honest();
        std::vector<std::string> files = {small.file()};
        for (const char* name : {"llama3", "llama_mixed", "qwen2", "qwen3", "gpt2"})
            files.push_back(content(fs::path("tests/gguf") / name / "model.gguf"));
        for (const std::string& file : files) {
            put(path, file);
            CHECK_NOTHROW(load(path));
        }
        size_t refused = 0, loaded = 0;
        const test::LimitedMemory limit(size_t{32} << 20);
        for (size_t i = 0; i < mutations; ++i) {
            CAPTURE(i);
            Random random(i);
            const std::string& file = files[below(random, 3) == 0 ? below(random, files.size()) : 0];
            const size_t header_bytes = std::min<size_t>(file.size(), 2600);
            put_anew(path, below(random, 3) == 0 ? lie(small, random) : mutate(file, random, header_bytes));
            try {
                load(path);
                ++loaded;
            } catch (const slab::data::UserError& error) {
                ++refused;
                INFO(std::string(error.what()));
                CHECK(slab::test::has(error.what(), path.string()));
            } catch (const std::exception& error) {
                FAIL_CHECK("mutation " << i << ": " << error.what());
            }
            if (!limit.kept()) FAIL("mutation " << i << " took more memory than the limit at once");
        }
        // Neither is everything accepted, nor does everything fail at the first check.
        CHECK(refused > mutations / 2);
        CHECK(loaded > mutations / 50);
    }
}
