// Finding a model's weights: one file, a directory, shards with an index. An index, its shards and the directory may
// not belong together; each error must name the file that is at fault.
#include <doctest/doctest.h>

#include "tests/temporary_files.h"
#include "train/files/model_files.h"
#include "train/files/safetensors_writer.h"

using namespace slab::train;
using slab::test::content;
using slab::test::error_of;
using slab::test::FreshDirectory;
using slab::test::has;
using slab::test::put;
namespace fs = std::filesystem;

namespace {

void write_shard(const fs::path& path, const std::vector<std::string>& names, float value) {
    const std::vector<float> values(4, value);
    SafetensorsWriter writer;
    for (const std::string& name : names) writer.add(name, {2, 2}, values.data());
    writer.write(path);
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("model files: one file, a directory, shards") {
        FreshDirectory dir;
        write_shard(dir.path / "model-1.safetensors", {"a", "b"}, 1);
        write_shard(dir.path / "model-2.safetensors", {"c"}, 2);
        put(dir.path / "model.safetensors.index.json",
            R"({"metadata":{"total_size":48},"weight_map":{"a":"model-1.safetensors","b":"model-1.safetensors",)"
            R"("c":"model-2.safetensors"}})");
        const ModelFiles shards(dir.path);
        CHECK(shards.names() == std::vector<std::string>{"a", "b", "c"});
        CHECK(shards.files().size() == 2);
        CHECK(shards.directory() == dir.path);
        CHECK(shards.has("c"));
        CHECK_FALSE(shards.has("d"));
        CHECK(shards.info("c").shape == std::vector<size_t>{2, 2});
        std::vector<float> got(4);
        shards.read_as("c", got.data());
        CHECK(got[3] == 2);
        const std::vector<std::string> spellings = {"x", "b", "a"}, none = {"x"};
        CHECK(shards.resolve(spellings) == "b");
        CHECK(shards.resolve(none) == "");
        const std::string error = error_of([&] { shards.info("d"); });
        CHECK(has(error, "\"d\""));
        CHECK(has(error, dir.path.string()));

        const ModelFiles one(dir.path / "model-2.safetensors");
        CHECK(one.names() == std::vector<std::string>{"c"});
        CHECK(one.directory() == dir.path);

        write_shard(dir.path / "model.safetensors", {"whole"}, 3);  // comes first, as in transformers
        CHECK(ModelFiles(dir.path).names() == std::vector<std::string>{"whole"});
    }

    TEST_CASE("model files: an index that does not fit its shards") {
        FreshDirectory dir;
        write_shard(dir.path / "one.safetensors", {"a", "b"}, 1);
        write_shard(dir.path / "two.safetensors", {"b", "c"}, 2);
        const auto error_with = [&](const std::string& index) {
            put(dir.path / "model.safetensors.index.json", index);
            return error_of([&] { ModelFiles files(dir.path); });
        };
        CHECK(error_with(R"({"weight_map":{"a":"one.safetensors"}})") == "");
        CHECK(has(error_with(R"({"weight_map":{"a":"one.safetensors","c":"two.safetensors"}})"),
                  "tensor \"b\" is also in"));
        const std::string missing = error_with(R"({"weight_map":{"a":"one.safetensors","z":"three.safetensors"}})");
        CHECK(has(missing, "three.safetensors: does not exist"));
        CHECK(has(missing, "names it among its 2 shards"));
        const std::string lacking = error_with(R"({"weight_map":{"z":"one.safetensors"}})");
        CHECK(has(lacking, "one.safetensors: has no tensor \"z\""));
        for (const char* shard :
             {"\"../one.safetensors\"", "\"/etc/one.safetensors\"", "\"sub/one.safetensors\"", "\"..\"", "\"\"",
              "\"one.bin\"", "\"one.safetensors\\u0000\"", "\"\\u001b[31mone.safetensors\"", "\"a\\\\one.safetensors\"",
              "3", "null", "[\"one.safetensors\"]"}) {
            CAPTURE(shard);
            const std::string error = error_with(std::string(R"({"weight_map":{"a":)") + shard + "}}");
            CHECK(has(error, "wanted the plain name"));
            CHECK(has(error, "\"a\""));
        }
        CHECK(has(error_with("{}"), "weight_map"));
        CHECK(has(error_with("[]"), "weight_map"));
        CHECK(has(error_with(R"({"weight_map":["a"]})"), "weight_map"));
        CHECK(has(error_with(R"({"weight_map":{}})"), "has no tensors"));
        CHECK(has(error_with(R"({"weight_map":{"a":"one.safetensors","a":"two.safetensors"}})"), "given twice"));
        CHECK(has(error_with(R"({"weight_map":{"a" "one.safetensors"}})"), "not valid JSON at column"));
        put(dir.path / "one.safetensors", content(dir.path / "one.safetensors").substr(0, 100));
        CHECK(has(error_with(R"({"weight_map":{"a":"one.safetensors"}})"), "one.safetensors"));
    }

    TEST_CASE("model files: a place without weights says what it has instead") {
        FreshDirectory dir;
        const auto error = [&] { return error_of([&] { ModelFiles files(dir.path); }); };
        CHECK(has(error_of([&] { ModelFiles files(dir.path / "none"); }), "does not exist"));
        CHECK(has(error(), "download finished"));
        put(dir.path / "model.gguf", "GGUF");
        CHECK(has(error(), "GGUF"));
        put(dir.path / "pytorch_model.bin", "PK");
        CHECK(has(error(), "save_pretrained"));
        put(dir.path / "other.safetensors", "");
        CHECK(has(error(), "\"other.safetensors\""));
        put(dir.path / "other-2.safetensors", "");
        CHECK(has(error(), "index that joins them"));
        put(dir.path / "adapter_model.safetensors", "");
        CHECK(has(error(), "--adapter-in"));
        put(dir.path / "config.json", "{}");
        CHECK(has(error_of([&] { ModelFiles files(dir.path / "config.json"); }), "config.json"));
    }

    TEST_CASE("model files: every parity case opens, and its weights are finite") {
        size_t cases = 0;
        for (const auto& item : fs::directory_iterator("tests/fixtures")) {
            CAPTURE(item.path().string());
            const ModelFiles files(item.path() / "base");
            for (const std::string& name : files.names()) {
                const DType dtype = files.info(name).dtype;
                if (dtype != DType::f32 && dtype != DType::f16 && dtype != DType::bf16) continue;
                std::vector<float> values(files.info(name).elems);
                CHECK(files.read_as(name, values.data()).elems == values.size());
            }
            ++cases;
        }
        CHECK(cases >= 5);
    }
}
