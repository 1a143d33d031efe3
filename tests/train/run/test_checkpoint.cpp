// Checkpoints: a run that is stopped and resumed in a new process has the bits of the unbroken one, whatever its slots.
// A checkpoint that the run cannot resume from is refused by name.
#include <nlohmann/json.hpp>

#include "tests/tiny_model.h"
#include "train/files/adapter_files.h"
#include "train/files/model_config_reader.h"
#include "train/files/model_config_writer.h"
#include "train/run/checkpoint.h"
#include "train/spec/micro_batch.h"
#include "train/spec/model_config.h"

using namespace slab;
using namespace slab::train;
using namespace slab::test;
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

const std::map<std::string, std::string> kIdentity = {{"--seed", "7"}, {"--lora-r", "3"}};

TrainerState state_at(int64_t step) {
    TrainerState state;
    state.step = step;
    state.next_sample = static_cast<uint64_t>(step) * 4;
    state.bad_steps_in_row = 0;
    state.identity = kIdentity;
    state.base_fingerprint = "0123";
    return state;
}

// A run that goes on: of these flags, on that base.
TrainerState run_of(const std::map<std::string, std::string>& identity, const std::string& base = "0123") {
    TrainerState run;
    run.identity = identity;
    run.samples_per_step = 4;
    run.base_fingerprint = base;
    return run;
}

void save(const fs::path& directory, TinyRun& run, int64_t step) {
    std::ostringstream notes;
    save_checkpoint(directory, run.model,
                    {run.layout, run.weights, "tiny/base", model_config_json(run.layout.config, "float32"), {}, notes},
                    state_at(step));
}

void edit_json(const fs::path& file, const std::function<void(json&)>& edit) {
    json j = json::parse(content(file));
    edit(j);
    put(file, j.dump());
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("checkpoint: stopped and resumed in a new model, training goes on with the same bits") {
        for (const auto& family : tiny_families())
            for (const ModelSettings& settings : {tiny_settings(0.2f), tiny_full_settings(3), tiny_full_settings(0)}) {
                CAPTURE(family);
                CAPTURE(settings.freeze_layers);
                const TinyBase base(family);
                TinyRun plain(base, settings);
                const Outcome want = train_steps(plain, 4);

                const FreshDirectory dir;
                Outcome got;
                {
                    TinyRun run(base, streamed(settings, 1, 2));
                    train_steps(got, run, 0, 2);
                    save(dir.path / "checkpoint-2", run, 2);
                    Outcome further = got;  // saving leaves no trace in the run itself
                    train_steps(further, run, 2, 2);
                    CHECK(first_difference(run.layout.trained, further, want) == "");
                }
                const bool all_trained = !settings.lora && settings.freeze_layers == 0;  // no frozen layer to keep
                TinyRun resumed(base, streamed(settings, 2, 4, all_trained ? std::vector<int>{} : std::vector<int>{1}));
                const TrainerState state = load_checkpoint(dir.path / "checkpoint-2", resumed.model, run_of(kIdentity));
                CHECK(state.step == 2);
                CHECK(state.next_sample == 8);
                CHECK(state.applied_updates == 2);
                CHECK(state.identity == kIdentity);
                train_steps(got, resumed, 2, 2);
                CHECK(first_difference(resumed.layout.trained, got, want) == "");
            }
    }

    TEST_CASE("checkpoint: what is saved is a PEFT adapter, or a Hugging Face model, with the trained weights") {
        const FreshDirectory dir;
        const TinyBase base("gpt2");
        TinyRun lora(base, tiny_settings());
        train_steps(lora, 1);
        save(dir.path / "checkpoint-1", lora, 1);
        CHECK(names_in(dir.path / "checkpoint-1") ==
              std::vector<std::string>{"adapter_config.json", "adapter_model.safetensors", "optimizer.safetensors",
                                       "trainer_state.json"});
        CHECK(read_trained(dir.path / "checkpoint-1" / "adapter_model.safetensors", lora.layout.trained) ==
              lora.model.trained().read_weights(lora.model.compute()));
        const json config = json::parse(content(dir.path / "checkpoint-1" / "adapter_config.json"));
        CHECK(config["base_model_name_or_path"] == "tiny/base");
        CHECK(config["r"] == 3);
        CHECK(config["fan_in_fan_out"] == true);

        TinyRun full(base, tiny_full_settings(2));
        train_steps(full, 2);
        save(dir.path / "checkpoint-2", full, 2);
        CHECK(names_in(dir.path / "checkpoint-2") == std::vector<std::string>{"config.json", "model.safetensors",
                                                                              "optimizer.safetensors",
                                                                              "trainer_state.json"});
        // Loaded as a base of its own, frozen and trained tensors together give the logits of the model in memory.
        const ModelConfig again = read_model_config(dir.path / "checkpoint-2" / "config.json");
        BaseWeights weights = BaseWeights::from_files(dir.path / "checkpoint-2", again);
        const ModelLayout layout = make_layout(again, tiny_settings());
        Device device({.threads = 1});
        Model model(device, layout, weights, {});
        const MicroBatch batch = tiny_batch(base.config, {}, 3);
        CHECK(model.logits(batch, 0, 18) == full.model.logits(batch, 0, 18));
        TinyRun before(base, tiny_settings());
        CHECK(before.model.logits(batch, 0, 18) != full.model.logits(batch, 0, 18));
    }

    TEST_CASE("checkpoint: bases of one shape differ in their fingerprint, and one base spelled otherwise does not") {
        for (const std::string family : {"llama", "gpt2"}) {
            CAPTURE(family);
            const TinyBase base(family, 2);
            const auto of = [&](const fs::path& directory) {
                const ModelConfig config = read_model_config(directory / "config.json");
                return BaseWeights::from_files(directory, config).fingerprint(config);
            };
            const std::string own = of(base.files.path);
            CHECK(own == of(base.files.path));
            const FreshDirectory dir;
            const auto with = [&](const auto& edit) {
                write_tiny_model(dir.path, base.config, edit);
                return of(dir.path);
            };
            CHECK(with([](const TensorSpec&, std::vector<float>&) {}) == own);
            // One number of a small tensor, all of which is looked at; and every one of a large tensor.
            CHECK(with([](const TensorSpec& spec, std::vector<float>& values) {
                      if (spec.role == Role::final_norm_weight) values.back() += 1e-3f;
                  }) != own);
            CHECK(with([](const TensorSpec& spec, std::vector<float>& values) {
                      if (spec.role == Role::token_embedding)
                          for (float& x : values) x *= 1.001f;
                  }) != own);
            // The same weights under another number of config.json.
            write_tiny_model(dir.path, base.config);
            edit_json(dir.path / "config.json",
                      [&](json& j) { j[family == "gpt2" ? "layer_norm_epsilon" : "rms_norm_eps"] = 0.25; });
            CHECK(of(dir.path) != own);
        }
        const ModelConfig config = tiny_config("llama", 2);
        const auto of_random = [](const ModelConfig& c) { return BaseWeights::random(1, c).fingerprint(c); };
        const std::string drawn = of_random(config);
        CHECK(drawn == of_random(config));
        for (const auto& [name, change] : std::vector<std::pair<const char*, void (*)(ModelConfig&)>>{
                 {"L", [](ModelConfig& c) { ++c.L; }},
                 {"V", [](ModelConfig& c) { ++c.V; }},
                 {"C", [](ModelConfig& c) { c.C *= 2; }},
                 {"I", [](ModelConfig& c) { ++c.I; }},
                 {"tie", [](ModelConfig& c) { c.tied_head = !c.tied_head; }}}) {
            CAPTURE(name);
            ModelConfig other = config;
            change(other);
            CHECK(of_random(other) != drawn);
        }
    }

    TEST_CASE("checkpoint: a run with other settings is refused, naming the flag and both values") {
        const FreshDirectory dir;
        const TinyBase base("llama", 2);
        TinyRun run(base, tiny_settings());
        save(dir.path / "checkpoint-5", run, 5);
        auto other = kIdentity;
        other["--seed"] = "8";
        const std::string error =
            error_of([&] { load_checkpoint(dir.path / "checkpoint-5", run.model, run_of(other)); });
        CHECK(has(error, "trainer_state.json"));
        CHECK(has(error, "--seed 7"));
        CHECK(has(error, "has 8"));
        other = kIdentity;
        other["--weight-decay"] = "0.1";
        CHECK(has(error_of([&] { load_checkpoint(dir.path / "checkpoint-5", run.model, run_of(other)); }),
                  "--weight-decay unset"));
        other["--seed"] = "8";  // all that differs is named
        const std::string both =
            error_of([&] { load_checkpoint(dir.path / "checkpoint-5", run.model, run_of(other)); });
        CHECK(has(both, "--seed 7, this one has 8"));
        CHECK(has(both, "--weight-decay unset, this one has 0.1"));
        const std::string another =
            error_of([&] { load_checkpoint(dir.path / "checkpoint-5", run.model, run_of(kIdentity, "4567")); });
        CHECK(has(another, "another base model"));
        CHECK(has(another, "fingerprint 0123, this one has 4567"));
        edit_json(dir.path / "checkpoint-5" / "trainer_state.json", [](json& j) { j.erase("base_model_fingerprint"); });
        CHECK(load_checkpoint(dir.path / "checkpoint-5", run.model, run_of(kIdentity, "4567")).base_fingerprint == "");
        CHECK(has(error_of([&] { load_checkpoint(dir.path / "checkpoint-6", run.model, run_of(kIdentity)); }),
                  "checkpoint-6: is not a checkpoint"));
    }

    TEST_CASE("checkpoint: damaged files are named, and the model stays as it was") {
        const FreshDirectory dir;
        const TinyBase base("qwen2", 2);
        TinyRun run(base, tiny_settings());
        train_steps(run, 1);
        const fs::path good = dir.path / "checkpoint-1", bad = dir.path / "bad";
        save(good, run, 1);
        TinyRun fresh(base, tiny_settings());
        const std::vector<float> before = fresh.model.trained().read_weights(fresh.model.compute());
        const auto error_with = [&](const std::function<void()>& damage) {
            fs::remove_all(bad);
            fs::copy(good, bad);
            damage();
            const std::string error = error_of([&] { load_checkpoint(bad, fresh.model, run_of(kIdentity)); });
            CHECK(fresh.model.trained().read_weights(fresh.model.compute()) == before);
            CHECK(fresh.model.trained().read_applied_updates(fresh.model.compute()) == 0);
            return error;
        };
        for (const char* file : {"trainer_state.json", "adapter_model.safetensors", "optimizer.safetensors"}) {
            CAPTURE(file);
            CHECK(has(error_with([&] { fs::remove(bad / file); }), file));
            CHECK(has(error_with([&] { put(bad / file, ""); }), file));
            for (const double part : {0.1, 0.5, 0.99})
                CHECK(has(error_with([&] {
                              fs::resize_file(bad / file, static_cast<size_t>(
                                                              part * static_cast<double>(fs::file_size(bad / file))));
                          }),
                          file));
        }
        const auto edit_state = [&](const std::function<void(json&)>& edit) {
            return [&, edit] { edit_json(bad / "trainer_state.json", edit); };
        };
        for (const char* key : {"global_step", "next_sample", "applied_updates", "bad_steps_in_row", "identity"}) {
            CAPTURE(key);
            CHECK(has(error_with(edit_state([&](json& j) { j.erase(key); })), "trainer_state.json"));
            CHECK(has(error_with(edit_state([&](json& j) { j[key] = "x"; })), "trainer_state.json"));
        }
        CHECK(has(error_with(edit_state([](json& j) { j["global_step"] = -1; })), "-1"));
        for (const char* key :
             {"best_metric", "best_global_step", "first_eval_loss", "eval_set", "best_model_checkpoint"}) {
            CAPTURE(key);
            CHECK(has(error_with(edit_state([&](json& j) { j[key] = json::array(); })), key));
        }
        for (const int samples : {0, 3, 5, 8})
            CHECK(has(error_with(edit_state([&](json& j) { j["next_sample"] = samples; })),
                      "trainer_state.json: \"next_sample\" is " + std::to_string(samples)));
        CHECK(has(error_with(edit_state([](json& j) { j["best_global_step"] = 2, j["best_metric"] = 1.0; })),
                  "\"best_global_step\" is 2"));
        CHECK(has(error_with([&] {  // the last tensor's last element
                      std::fstream file(bad / "optimizer.safetensors", std::ios::in | std::ios::out);
                      file.seekp(-4, std::ios::end);
                      const float negative = -1e-8f;
                      file.write(reinterpret_cast<const char*>(&negative), sizeof negative);
                  }),
                  "optimizer.safetensors: tensor \"exp_avg_sq."));
        CHECK(has(error_with(edit_state([](json& j) { j = json::array(); })), "trainer_state.json"));
        // Files that are whole, but not those of this state: one byte of a number changed, and those of another step.
        train_steps(run, 1);
        save(dir.path / "checkpoint-2", run, 2);
        for (const char* file : {"adapter_model.safetensors", "optimizer.safetensors"}) {
            CAPTURE(file);
            const std::string why = (bad / file).string() + ": is not what was saved with trainer_state.json";
            CHECK(has(error_with([&] {
                          std::string bytes = content(bad / file);
                          bytes[bytes.size() - 4] ^= 1;  // the last bit of the last number
                          put(bad / file, bytes);
                      }),
                      why));
            const auto swap = [&] {
                fs::copy(dir.path / "checkpoint-2" / file, bad / file, fs::copy_options::overwrite_existing);
            };
            CHECK(has(error_with(swap), why));
            CHECK(has(error_with([&] { edit_state([&](json& j) { j["file_hashes"].erase(file); })(); }), why));
            // An earlier version wrote no hashes.
            TinyRun taker(base, tiny_settings());
            fs::remove_all(bad);
            fs::copy(good, bad);
            swap();
            edit_state([](json& j) { j.erase("file_hashes"); })();
            CHECK(error_of([&] { load_checkpoint(bad, taker.model, run_of(kIdentity)); }) == "");
        }
        save_state(good, run.model, state_at(1));  // keeps what it knows of the files
        CHECK(json::parse(content(good / "trainer_state.json"))["file_hashes"].size() == 2);
        edit_json(good / "trainer_state.json", [](json& j) { j["applied_updates"] = 1; });
        CHECK(error_of([&] { load_checkpoint(good, fresh.model, run_of(kIdentity)); }) == "");
    }

    TEST_CASE("checkpoint: last is the highest complete one, and the oldest are removed beyond the limit") {
        const FreshDirectory dir;
        CHECK_FALSE(last_checkpoint(dir.path).has_value());
        CHECK_FALSE(last_checkpoint(dir.path / "missing").has_value());
        for (const char* name : {"checkpoint-9", "checkpoint-10", "checkpoint-100", "checkpoint-2", "checkpoint-7x",
                                 "checkpoint-", "checkpoint--3", "other-200", "checkpoint-300"}) {
            fs::create_directories(dir.path / name);
            if (std::string(name) != "checkpoint-300") put(dir.path / name / "trainer_state.json", "{}");
        }
        CHECK(last_checkpoint(dir.path) == dir.path / "checkpoint-100");  // 300 has no state: it is not complete
        CHECK(checkpoint_path(dir.path, 100) == dir.path / "checkpoint-100");
        prune_checkpoints(dir.path, 0, "");
        CHECK(fs::exists(dir.path / "checkpoint-2"));
        prune_checkpoints(dir.path, 1, dir.path / "checkpoint-9");
        for (const char* kept : {"checkpoint-9", "checkpoint-100"}) CHECK(fs::exists(dir.path / kept));
        for (const char* gone : {"checkpoint-2", "checkpoint-10"}) CHECK_FALSE(fs::exists(dir.path / gone));
        fs::create_directories(dir.path / "checkpoint-10");
        put(dir.path / "checkpoint-10" / "trainer_state.json", "{}");
        prune_checkpoints(dir.path, 2, "");
        CHECK(names_in(dir.path) == std::vector<std::string>{"checkpoint-", "checkpoint--3", "checkpoint-10",
                                                             "checkpoint-100", "checkpoint-300", "checkpoint-7x",
                                                             "other-200"});
    }

    TEST_CASE("checkpoint: an old one that cannot be deleted is told of, and the others go") {
        const FreshDirectory dir;
        for (const char* name : {"checkpoint-1", "checkpoint-2", "checkpoint-3"}) {
            fs::create_directories(dir.path / name / "inner");
            for (const char* file : {"trainer_state.json", "inner/file"}) put(dir.path / name / file, "{}");
            fs::permissions(dir.path / name, fs::perms::all);
            fs::permissions(dir.path / name / "inner", fs::perms(name == std::string("checkpoint-1") ? 0555 : 0777));
        }
        fs::permissions(dir.path, fs::perms::all);
        std::vector<std::string> left;
        {
            const NoRoot nobody;
            left = prune_checkpoints(dir.path, 1, "");
        }
        REQUIRE(left.size() == 1);
        CHECK(has(left[0], "checkpoint-1: cannot delete all of it; the rest is " + dir.path.string() + "/.tmp-"));
        CHECK(last_checkpoint(dir.path) == dir.path / "checkpoint-3");
        CHECK_FALSE(fs::exists(dir.path / "checkpoint-2"));
        for (const auto& entry : fs::directory_iterator(dir.path))
            if (fs::exists(entry.path() / "inner")) fs::permissions(entry.path() / "inner", fs::perms::all);
    }

    TEST_CASE("checkpoint: saving over an older one replaces it whole; saving to a full disk leaves it as it was") {
        const FreshDirectory dir;
        const TinyBase base("llama", 2);
        TinyRun run(base, tiny_settings());
        const fs::path path = dir.path / "checkpoint-1";
        save(path, run, 1);
        put(path / "left-over", "x");
        train_steps(run, 1);
        save(path, run, 1);
        CHECK_FALSE(fs::exists(path / "left-over"));
        const std::string weights = content(path / "adapter_model.safetensors");
        train_steps(run, 1);
        std::string error;
        {
            const SmallDisk disk(2000);
            error = error_of([&] { save(path, run, 1); });
        }
        CHECK(has(error, "adapter_model.safetensors"));
        CHECK(content(path / "adapter_model.safetensors") == weights);
        CHECK(names_in(dir.path) == std::vector<std::string>{"checkpoint-1"});
    }
}
