// The memory plan is the memory: the printed bytes of each category are the peak that the memory account sees. Settings
// that the advice recommends fit.
#include <map>

#include "tests/tiny_model.h"
#include "train/model/memory_plan.h"
#include "train/model/sampler.h"

using namespace slab;
using namespace slab::train;
using namespace slab::test;

namespace {

struct Case {
    const char* name;
    ModelConfig config;
    ModelSettings settings;
};

std::vector<Case> cases() {
    ModelConfig untied_gpt2 = tiny_config("gpt2"), tied_qwen3 = tiny_config("qwen3");
    untied_gpt2.tied_head = false;
    tied_qwen3.tied_head = true;
    ModelSettings few = streamed(tiny_settings(0.1f), 1, 3);
    few.lora->target_modules = {"q_proj", "down_proj"};
    few.lora->layers_to_transform = {2, 4};
    ModelSettings block = tiny_settings(0.2f);
    block.recompute = Recompute::block;
    block.B = 1;
    block.T = 20;
    ModelSettings full_block = tiny_full_settings();
    full_block.recompute = Recompute::block;
    return {{"lora", tiny_config("llama"), tiny_settings()},
            {"lora, dropout, block", tiny_config("gpt2"), block},
            {"lora, streamed", tiny_config("qwen2"), streamed(tiny_settings(), 1, 2)},
            {"lora, streamed, keeping activations", tiny_config("qwen3"),
             streamed(tiny_settings(), 3, 4, {}, Recompute::none)},
            {"lora, streamed, dropout, residents", tiny_config("llama"), streamed(tiny_settings(0.5f), 2, 3, {0, 3})},
            {"lora, ring holds all", tied_qwen3, streamed(tiny_settings(), 1, 9)},
            {"few modules in few layers", tiny_config("llama"), few},
            {"full", tiny_config("gpt2"), tiny_full_settings()},
            {"full, untied, block", untied_gpt2, full_block},
            {"full, frozen below, streamed", tiny_config("qwen3"), streamed(tiny_full_settings(4), 1, 2)},
            {"full, one frozen, resident", tiny_config("qwen2"), tiny_full_settings(1)},
            {"all frozen but head and norm, streamed", untied_gpt2,
             streamed(tiny_full_settings(5), 1, 2, {4}, Recompute::none)}};
}

using Flags = std::map<std::string, std::string>;

std::vector<std::string> arguments_of(const Flags& flags) {
    std::vector<std::string> arguments;
    for (const auto& [name, value] : flags) {
        arguments.push_back(name);
        if (!value.empty()) arguments.push_back(value);
    }
    return arguments;
}

// The flags after following one line of advice, as a user would: "  --recompute block  would need 3.1 MiB". Words in
// brackets are not needed to fit.
Flags followed(Flags flags, const std::string& line) {
    std::istringstream words(line.substr(0, std::min(line.find(" ("), line.find("  would need"))));
    std::string name;
    for (std::string word; words >> word;) {
        if (word.starts_with("--")) {
            name = word;
            flags[name] = "";
        } else if (word == "without") {
            words >> word;
            flags.erase(word);
        } else {
            flags[name] = word;
        }
    }
    return flags;
}

size_t planned_bytes(const std::string& out) {
    std::string digits;
    const size_t end = out.find(" bytes)");
    for (size_t at = out.rfind('(', end) + 1; at < end; ++at)
        if (out[at] != ',') digits += out[at];
    return std::stoull(digits);
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("plan: the device's peak is the plan, in all and in every category") {
        for (Case c : cases()) {
            CAPTURE(c.name);
            const TinyBase base(c.config);
            c.settings.cache_positions = 5;
            const size_t planned = make_layout(c.config, c.settings).device_bytes();
            TinyRun run(base, c.settings, {}, planned);  // as a budget it is just enough
            const MemoryAccount& account = run.device.memory();
            CHECK(account.used_bytes() == planned);  // all is taken at the start
            train_steps(run, 2);
            evaluate(run, {tiny_batch(c.config, {.B = 1, .T = 9}, 1)});
            sample_tokens(run.model, {1, 2}, {.tokens = 2}, {}, [](int32_t) {});
            CHECK(account.peak_bytes() == planned);
            std::map<MemoryCategory, size_t> by_category;
            for (const auto& item : run.layout.device_items()) by_category[item.category] += item.bytes;
            for (size_t i = 0; i < kMemoryCategories; ++i) {
                const auto category = static_cast<MemoryCategory>(i);
                CAPTURE(name_of(category));
                CHECK(account.peak_bytes(category) == by_category[category]);
            }
            size_t slab_bytes = 0;
            for (const int l : run.layout.ring.streamed()) slab_bytes += run.layout.layer(l).slab.total_bytes();
            size_t planned_slab_bytes = 0;
            for (const auto& [what, bytes] : run.layout.host_items())
                if (what.starts_with("slabs of")) planned_slab_bytes += bytes;
            CHECK(planned_slab_bytes == slab_bytes);
            CHECK(run.model.host_slab_bytes() == slab_bytes);
        }
    }

    TEST_CASE("plan: everything is given back at the end, and after a start that failed") {
        const TinyBase base("llama");
        const ModelSettings settings = streamed(tiny_settings(), 1, 2, {1});
        const ModelLayout layout = make_layout(base.config, settings);
        BaseWeights weights = base.weights();
        Device device({.threads = 1, .budget_bytes = layout.device_bytes() - 1});
        CHECK_THROWS_AS(Model(device, layout, weights, {}), OutOfBudget);
        CHECK(device.memory().used_bytes() == 0);
        CHECK(device.host_pinned_bytes() == 0);
        Device larger({.threads = 1, .budget_bytes = layout.device_bytes()});
        { const Model model(larger, layout, weights, {}); }
        CHECK(larger.memory().used_bytes() == 0);
        CHECK(larger.host_pinned_bytes() == 0);
    }

    TEST_CASE("plan: a budget one byte too small is refused before anything is made, naming the largest item") {
        for (const Case& c : cases()) {
            CAPTURE(c.name);
            const ModelLayout layout = make_layout(c.config, c.settings);
            const size_t planned = layout.device_bytes();
            CHECK(error_of([&] { check_budget(layout, 0, planned); }) == "");
            CHECK(error_of([&] { check_budget(layout, 0, 0); }) == "");
            CHECK(error_of([&] { check_budget(layout, 100, planned + 100); }) == "");
            CHECK(has(error_of([&] { check_budget(layout, 100, planned + 99); }), "(1 bytes too much)"));
            CHECK(error_of([&] { check_available(layout, 100, planned + 100); }) == "");
            CHECK(error_of([&] { check_available(layout, 100, 0); }) == "");
            CHECK(has(error_of([&] { check_available(layout, 100, planned + 99); }),
                      " are free. Hint: give no larger --vram-budget"));
            const std::string error = error_of([&] { check_budget(layout, 0, planned - 1); });
            CHECK(has(error, "(1 bytes too much)"));
            size_t largest = 0;
            std::string what;
            for (const auto& item : layout.device_items())
                if (item.bytes > largest) largest = item.bytes, what = item.what;
            CHECK(has(error, what));
            // The printed plan ends its table with the same advice.
            const std::string advice =
                error.substr(std::min(error.find("It would fit with"), error.find("No choice of")));
            CHECK(has(describe_plan(layout, 0, planned - 1), advice + "\n"));
            for (const size_t enough : {planned, size_t{0}}) CHECK_FALSE(has(describe_plan(layout, 0, enough), advice));
        }
    }

    TEST_CASE("plan: a shape whose bytes no 64 bits hold is refused, never a small number") {
        ModelConfig config = tiny_config("llama", 10000);
        config.C = 1 << 20;
        ModelSettings settings = tiny_settings();
        settings.T = 1 << 24;
        settings.B = 64;
        settings.recompute = Recompute::none;
        const std::string error = error_of([&] { make_layout(config, settings); });
        CHECK(has(error, "more than 2^63 bytes"));
        CHECK(has(error, "--micro-batch-size"));
        settings.T = 1 << 10;
        settings.B = 1;
        CHECK(make_layout(config, settings).device_bytes() > size_t{1} << 44);  // large, and still a plan
    }

    TEST_CASE("plan: more than the host has is refused before anything is loaded, naming what needs it") {
        const TinyBase base("llama", 4);
        ModelSettings settings = tiny_settings();
        settings.layer_offloading = true;
        const ModelLayout layout = make_layout(base.config, settings);
        size_t needed = layout.device_bytes();  // on the CPU the host holds that too
        for (const auto& [what, bytes] : layout.host_items()) needed += bytes;
        CHECK_NOTHROW(check_host_memory(layout, needed));
        const std::string error = error_of([&] { check_host_memory(layout, needed - 1); });
        CHECK(has(error, "of host memory"));
        CHECK(has(error, "slabs of 4 streamed layers"));
        CHECK(has(error, "standing in for device memory"));
    }

    TEST_CASE("plan: --plan prints the bytes that training then takes, and makes nothing") {
        const TinyBase base("qwen3");
        const FreshDirectory dir;
        write_tiny_tokens(dir.path / "t.bin", base.config.V, 300, 1);
        Flags flags = {{"--base-model", base.files.path.string()},
                       {"--sequence-len", "9"},
                       {"--layer-offloading", ""},
                       {"--plan", ""},
                       {"--lora-r", "4"},
                       {"--threads", "1"}};
        const Program plan = run_train_gpt(arguments_of(flags));
        CHECK(plan.code == 0);
        const size_t planned = planned_bytes(plan.out);
        flags.erase("--plan");
        flags["--train-data"] = (dir.path / "t.bin").string();
        flags["--output-dir"] = (dir.path / "out").string();
        flags["--max-steps"] = "2";
        flags["--vram-budget"] = std::to_string(planned - 1);
        const Program refused = run_train_gpt(arguments_of(flags));
        CHECK(refused.code == 1);
        CHECK(has(refused.error, "too much"));
        CHECK_FALSE(std::filesystem::exists(dir.path / "out"));
        flags["--vram-budget"] = std::to_string(planned);
        const Program done = run_train_gpt(arguments_of(flags));
        CHECK(done.error == "");
        CHECK(done.code == 0);
        CHECK(has(content(dir.path / "out" / "log.jsonl"), "\"device_peak_bytes\":" + std::to_string(planned)));
    }

    TEST_CASE("plan: --plan refuses weights that a run would refuse, and plans for a config.json alone with a note") {
        const TinyBase base("llama");
        const auto plan = [&](std::vector<std::string> more = {}) {
            more.insert(more.end(), {"--base-model", base.files.path.string(), "--plan", "--threads", "1"});
            return run_train_gpt(more);
        };
        CHECK(plan().error == "");
        const std::filesystem::path weights = base.files.path / "model.safetensors";
        std::filesystem::resize_file(weights, std::filesystem::file_size(weights) - 1);
        const Program truncated = plan();
        CHECK(truncated.code == 1);
        CHECK(has(truncated.error, weights.string()));
        CHECK(plan({"--from-scratch"}).code == 0);
        std::filesystem::remove(weights);
        const Program alone = plan();
        CHECK(alone.code == 0);
        CHECK(has(alone.out, "note: there are no weights beside config.json"));
        const Program slots = plan({"--layer-offloading", "--num-slots", "9"});
        CHECK(has(slots.out, "note: --num-slots 9 is more than the 5 streamed layers; the ring has 5 slots"));
        CHECK_FALSE(has(plan({"--layer-offloading", "--num-slots", "5"}).out, "is more than"));
    }

    TEST_CASE("plan: the advice names the largest micro-batch that fits, and the longest rows in steps of 64 or 8") {
        const ModelConfig config = tiny_config("llama", 4);
        const auto bytes_of = [&](ModelSettings s, int B, int T) {
            s.B = B;
            s.T = T;
            return make_layout(config, s).device_bytes();
        };
        ModelSettings now = streamed(tiny_settings(), 1, 2);
        now.B = 8;
        now.T = 512;
        const ModelLayout layout = make_layout(config, now);
        const auto advice = [&](size_t budget) { return error_of([&] { check_budget(layout, 0, budget); }); };
        for (int B = 1; B < 8; ++B)
            for (const size_t budget : {bytes_of(now, B, 512), bytes_of(now, B + 1, 512) - 1}) {
                CAPTURE(B);
                CAPTURE(advice(budget));
                const std::string batch = "--micro-batch-size " + std::to_string(B) + " (and ";
                CHECK(has(advice(budget), batch));
                CHECK_FALSE(has(advice(budget), "--sequence-len"));  // shorter rows are not needed
            }
        CHECK(has(advice(bytes_of(now, 3, 512)), "(and 8/3 times the --gradient-accumulation-steps)"));
        CHECK(has(advice(bytes_of(now, 4, 512)), "(and 2 times the --gradient-accumulation-steps)"));
        for (const int T : {8, 16, 56, 64, 128, 448}) {
            CAPTURE(T);
            CHECK(has(advice(bytes_of(now, 1, T)), "--micro-batch-size 1 --sequence-len " + std::to_string(T) + " "));
        }
        CHECK(has(advice(bytes_of(now, 1, 8) - 1), "the least is " + memory_text(bytes_of(now, 1, 8)) + " ("));
    }

    TEST_CASE("plan: following a line of the advice gives a plan that fits") {
        const TinyBase gpt2("gpt2", 9), llama("llama", 9);
        const std::vector<Flags> starts = {
            {},
            {{"--micro-batch-size", "4"}},
            {{"--recompute", "block"}, {"--micro-batch-size", "2"}},
            {{"--layer-offloading", ""}, {"--recompute", "none"}},
            {{"--layer-offloading", ""}, {"--num-prefetch", "3"}, {"--num-slots", "6"}},
            {{"--layer-offloading", ""}, {"--num-prefetch", "3"}, {"--resident-layers", "1,2,3"}},
            {{"--layer-offloading", ""}, {"--num-slots", "auto"}, {"--micro-batch-size", "3"}},
            {{"--layer-offloading", ""}, {"--num-prefetch", "2"}, {"--recompute", "none"}, {"--micro-batch-size", "2"}},
            {{"--freeze-layers", "7"}},
            {{"--adapter", "none"}, {"--micro-batch-size", "2"}},
        };
        const FreshDirectory dir;
        const std::filesystem::path no_tokens = dir.path / "no_tokens.bin";
        std::ofstream(no_tokens) << "not a token file";
        size_t lines_followed = 0;
        for (const TinyBase* base : {&gpt2, &llama})
            for (Flags flags : starts) {
                flags["--base-model"] = base->files.path.string();
                flags.insert({{"--sequence-len", "37"}, {"--lora-r", "2"}, {"--plan", ""}, {"--threads", "1"}});
                if (flags.count("--freeze-layers") || flags.count("--adapter")) flags.erase("--lora-r");
                CAPTURE(arguments_of(flags));
                const Program plan = run_train_gpt(arguments_of(flags));
                REQUIRE(plan.code == 0);
                for (const double share : {0.999, 0.8, 0.6, 0.45}) {
                    const size_t budget = static_cast<size_t>(share * static_cast<double>(planned_bytes(plan.out)));
                    flags["--vram-budget"] = std::to_string(budget);
                    Flags training = flags;
                    training.erase("--plan");
                    training["--train-data"] = no_tokens.string();  // looked at only when the plan fits
                    training["--output-dir"] = (dir.path / "out").string();
                    const std::string error = run_train_gpt(arguments_of(training)).error;
                    if (has(error, no_tokens.string())) continue;  // --num-slots auto took fewer slots, and that fits
                    CAPTURE(error);
                    REQUIRE(has(error, "too much"));
                    if (has(error, "No choice of")) continue;
                    std::istringstream lines(error.substr(error.find("It would fit with:")));
                    std::string line;
                    std::getline(lines, line);
                    while (std::getline(lines, line)) {
                        CAPTURE(line);
                        const Program better = run_train_gpt(arguments_of(followed(flags, line)));
                        CHECK(better.error == "");
                        CHECK(has(better.out, "budget: fits"));
                        ++lines_followed;
                    }
                }
            }
        CHECK(lines_followed > 40);
    }
}
