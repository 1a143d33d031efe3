// --slab-format in whole runs: what is chosen without it, what is said and recorded, what a checkpoint asks of it, and
// what is refused.
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/encoded_bases.h"
#include "tests/training_bench.h"
#include "train/export/export_gpt.h"
#include "train/files/adapter_record.h"

using namespace slab;
using namespace slab::train;
using namespace slab::test;
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// Rows of whole blocks, but for down_proj.
ModelConfig blocky() {
    ModelConfig c = tiny_config("llama", 3);
    c.C = 64, c.NH = 2, c.NKV = 1, c.HD = 32, c.I = 72;
    c.rope_scaling = {};
    return c;
}

const Flags kShort = {{"--max-steps", "2"}, {"--gradient-accumulation-steps", "1"}};

Flags with(Flags more) {
    more.insert(kShort.begin(), kShort.end());
    return more;
}

std::string merged(const fs::path& base, const fs::path& adapter, const fs::path& out_dir,
                   std::vector<std::string> more = {}) {
    const std::vector<std::string> words = {"export_gpt",     "--base-model",   base.string(),
                                            "--adapter",      adapter.string(), "--merge",
                                            out_dir.string(), "--threads",      "1"};
    std::vector<const char*> argv;
    for (const auto& word : words) argv.push_back(word.c_str());
    for (const auto& word : more) argv.push_back(word.c_str());
    std::ostringstream out, err;
    CHECK(run_export(static_cast<int>(argv.size()), argv.data(), out, err) == 0);
    CHECK(err.str() == "");
    return out.str();
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("slab format: made blocks are said, logged and recorded, and a checkpoint asks for them") {
        const Bench bench{blocky()};
        const Program plain = bench.run("plain", with({}));
        CHECK(plain.code == 0);
        CHECK_FALSE(has(plain.out, "slabs: "));
        CHECK(event_of(bench.run_dir("plain"), "start")["slab_format"] == "bf16");

        const Program nf4 = bench.run("nf4", with({{"--slab-format", "nf4"}, {"--layer-offloading", ""}}));
        INFO(nf4.out);
        REQUIRE(nf4.code == 0);
        CHECK(has(nf4.out, "slabs: nf4, "));
        CHECK(has(nf4.out, " at worst (model.layers."));
        CHECK(has(nf4.out, std::string("note: 3 tensors stay ") + kPrecision + ": rows of 72 are no multiple of 64"));
        CHECK(has(nf4.out, "work slab (one decoded layer)"));
        CHECK(has(nf4.out, "slabs of 3 streamed layers in nf4"));
        const json start = event_of(bench.run_dir("nf4"), "start");
        CHECK(start["slab_format"] == "nf4");
        CHECK(start["slab_error_worst"].get<double>() >= start["slab_error_mean"].get<double>());
        CHECK(start["slab_error_mean"].get<double>() > 0.05);
        const json record = json::parse(content(bench.run_dir("nf4") / kAdapterRecordFile));
        CHECK(record["slab_format"] == "nf4");
        CHECK(record["mean_error"] == start["slab_error_mean"]);
        CHECK(record["base_model_fingerprint"] ==
              json::parse(content(bench.run_dir("plain") / kAdapterRecordFile))["base_model_fingerprint"]);

        bench.run_well("alias", with({{"--load-in-4bit", ""}}));  // resident, the same bits
        CHECK(bench.adapter("alias") == bench.adapter("nf4"));
        CHECK(bench.adapter("plain") != bench.adapter("nf4"));

        const auto resumed = [&](const char* name, Flags flags) {
            flags.insert({{"--resume-from-checkpoint", "last"}, {"--save-steps", "1"}});
            return bench.run(name, with(flags));
        };
        bench.run_well("long", with({{"--slab-format", "q8_0"}, {"--save-steps", "1"}}));
        fs::remove_all(bench.run_dir("long") / "checkpoint-2");
        const std::string whole = bench.adapter("long");
        fs::remove(bench.run_dir("long") / "adapter_model.safetensors");
        CHECK(has(resumed("long", {{"--slab-format", "nf4"}}).error,
                  "the run was made with --slab-format q8_0, this one has nf4"));
        CHECK(has(resumed("long", {}).error, "--slab-format q8_0, this one has unset"));
        CHECK(resumed("long", {{"--slab-format", "q8_0"}, {"--layer-offloading", ""}}).error == "");
        CHECK(bench.adapter("long") == whole);
        const json state = json::parse(content(bench.run_dir("plain") / "checkpoint-2" / "trainer_state.json"));
        CHECK_FALSE(state["identity"].contains("--slab-format"));  // as in checkpoints of earlier versions
    }

    TEST_CASE("slab format: of the layers below the trained ones, while saving them whole") {
        const Bench bench{blocky()};
        const Flags frozen = with({{"--freeze-layers", "2"}});
        Flags nf4 = frozen;
        nf4.insert({{"--slab-format", "q8_0"}, {"--layer-offloading", ""}, {"--num-slots", "2"}});
        bench.run_well("q8_0", nf4);
        bench.run_well("plain", frozen);
        CHECK(bench.model("q8_0") != bench.model("plain"));
        CHECK_FALSE(fs::exists(bench.run_dir("q8_0") / kAdapterRecordFile));
        const ModelFiles saved(bench.run_dir("q8_0")), base(bench.base.files.path);
        std::vector<float> got(64 * 64), want(64 * 64);
        saved.read_as("model.layers.0.self_attn.q_proj.weight", got.data());
        base.read_as("model.layers.0.self_attn.q_proj.weight", want.data());
        CHECK(got == want);  // frozen tensors are the base's own
    }

    TEST_CASE("slab format: a GGUF's blocks are kept where layers stream, with the bits of decoding them") {
        const MixedGguf gguf{wide_llama(2)};
        Bench bench{blocky()};
        const auto run = [&](const char* name, Flags flags) {
            flags.insert({{"--base-model", gguf.path.string()}, {"--max-steps", "1"}, {"--sequence-len", "5"}});
            return bench.run(name, with(flags));
        };
        const Program decoded = run("decoded", {{"--layer-offloading", ""}, {"--slab-format", "bf16"}});
        CHECK(decoded.error == "");
        CHECK(has(decoded.out, " decoded to "));
        const Program kept = run("kept", {{"--layer-offloading", ""}});
        CHECK(has(kept.out, "slabs: as in the file (Q"));
        CHECK(has(kept.out, "none decoded in host memory"));
        CHECK(has(kept.out, "layers kept in its blocks"));
        CHECK(bench.adapter("kept") == bench.adapter("decoded"));
        const Program resident = run("resident", {{"--slab-format", "as-is"}});
        CHECK(has(resident.out, " on the device, decoded one at a time"));
        CHECK(bench.adapter("resident") == bench.adapter("decoded"));
        CHECK_FALSE(has(run("usual", {}).out, "slabs: "));
        for (const char* format : {"q8_0", "nf4"}) {
            const std::string error = run("refused", {{"--slab-format", format}}).error;
            CHECK(has(error, std::string("--slab-format ") + format + ": the base is stored in blocks"));
            CHECK(has(error, "wanted --slab-format as-is"));
        }
        CHECK(has(run("refused", {{"--load-in-4bit", ""}}).error, "--load-in-4bit: the base is stored in blocks"));
    }

    TEST_CASE("slab format: a 4-bit directory is kept as it is, and merged into plain numbers") {
        const BnbBase bnb(blocky());
        Bench bench{blocky()};
        const auto run = [&](const char* name, const fs::path& base, Flags flags) {
            flags.insert({{"--base-model", base.string()}});
            const Program program = bench.run(name, with(flags));
            CHECK(program.error == "");
            return program.out;
        };
        const std::string text = run("bnb", bnb.path, {});
        CHECK(has(text, "slabs: as in the file (NF4 100%)"));
        CHECK_FALSE(has(run("alias", bnb.path, {{"--load-in-4bit", ""}, {"--layer-offloading", ""}}), "error"));
        run("plain", bnb.path, {{"--slab-format", "bf16"}});
        run("decoded", bnb.decoded, {});
        for (const char* other : {"alias", "plain", "decoded"}) CHECK(bench.adapter(other) == bench.adapter("bnb"));

        const std::string merging = merged(bnb.path, bench.run_dir("bnb"), bench.run_dir("merged"));
        CHECK(has(merging, "note: the merged weights are bf16"));
        CHECK_FALSE(has(merging, "note: it is merged into"));
        merged(bnb.decoded, bench.run_dir("bnb"), bench.run_dir("merged-decoded"), {"--dtype", "bf16"});
        const ModelFiles got(bench.run_dir("merged")), want(bench.run_dir("merged-decoded"));
        REQUIRE(got.names() == want.names());
        for (const std::string& name : got.names()) {
            CAPTURE(name);
            std::vector<bf16> a(got.info(name).elems), b(want.info(name).elems);
            got.read_as(name, a.data());
            want.read_as(name, b.data());
            CHECK(same_bits(a, b));
        }
        CHECK_FALSE(has(content(bench.run_dir("merged") / "config.json"), "quantization_config"));
    }

    TEST_CASE("slab format: an adapter of other numbers is said, going on and merging") {
        const Bench bench{blocky()};
        bench.run_well("nf4", with({{"--slab-format", "nf4"}}));
        bench.run_well("plain", with({}));
        const auto go_on = [&](const char* name, const char* from, Flags flags) {
            flags.insert({{"--adapter-in", bench.run_dir(from).string()}});
            return bench.run(name, with(flags)).out;
        };
        CHECK(has(go_on("a", "nf4", {}), "note: the adapter of --adapter-in was trained on the base's weights in nf4"));
        CHECK_FALSE(has(go_on("b", "nf4", {{"--slab-format", "nf4"}}), "the adapter of --adapter-in"));
        CHECK(has(go_on("c", "plain", {{"--slab-format", "q8_0"}}), "trained on the base's own numbers, not on q8_0"));
        CHECK_FALSE(has(go_on("d", "plain", {}), "the adapter of --adapter-in"));
        CHECK(has(merged(bench.base.files.path, bench.run_dir("nf4"), bench.run_dir("m1")),
                  "note: it is merged into the file's weights; the adapter was trained on the base's weights in nf4"));
        CHECK_FALSE(
            has(merged(bench.base.files.path, bench.run_dir("plain"), bench.run_dir("m2")), "note: it is merged"));
        TinyBase other(blocky());
        write_tiny_model(other.files.path, blocky(),
                         [](const TensorSpec&, std::vector<float>& values) { values[0] += 1; });
        CHECK(has(merged(other.files.path, bench.run_dir("plain"), bench.run_dir("m3")),
                  "was trained on another base model"));
        put(bench.run_dir("plain") / kAdapterRecordFile, R"({"slab_format": "int3"})");
        CHECK(has(bench.run("e", with({{"--adapter-in", bench.run_dir("plain").string()}})).error, "slab_format"));
    }

    TEST_CASE("slab format: flags that make no sense are refused, and what changes nothing is said") {
        const Bench bench{blocky()};
        const auto error = [&](Flags flags) { return bench.run("x", with(std::move(flags))).error; };
        CHECK(has(error({{"--slab-format", "nf5"}}), "nf5"));
        CHECK(has(error({{"--load-in-8bit", ""}}), "wanted --slab-format q8_0"));
        CHECK(has(error({{"--load-in-4bit", ""}, {"--slab-format", "q8_0"}}), "exclude each other"));
        CHECK(has(error({{"--adapter", "none"}, {"--slab-format", "nf4"}}), "without effect beside --adapter none"));
        const Program same = bench.run("same", with({{"--slab-format", "as-is"}}));
        CHECK(same.code == 0);
        CHECK(has(same.out, "note: --slab-format as-is: no layer of the base is stored in blocks"));
        CHECK_FALSE(has(run_train_gpt({"--help"}).out, "load-in-8bit"));
    }
}
