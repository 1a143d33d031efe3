// The command line and config files. Every flag refuses what makes no sense and says its name. A config file takes both
// spellings, and the config.toml of a run repeats it.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "tests/tiny_model.h"
#include "train/run/config_file.h"
#include "train/run/flag_table.h"
#include "train/run/run_setup.h"

using namespace slab;
using namespace slab::train;
using namespace slab::test;

namespace {

struct Parsed {
    TrainOptions options;
    int code = -1;  // -1: goes on
    std::string out, error;
};

Parsed parse(const std::vector<std::string>& arguments) {
    std::vector<const char*> argv = {"train_gpt"};
    for (const auto& argument : arguments) argv.push_back(argument.c_str());
    Parsed p;
    std::ostringstream out, error;
    try {
        p.code = parse_train_options(p.options, static_cast<int>(argv.size()), argv.data(), out, error).value_or(-1);
    } catch (const std::runtime_error& e) {
        p.code = 1;
        error << e.what();
    }
    p.out = out.str();
    p.error = error.str();
    return p;
}

// The three flags that every run has, and some more.
std::vector<std::string> with(std::vector<std::string> more) {
    std::vector<std::string> all = {"--base-model", "m", "--train-data", "t.bin", "--output-dir", "out"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
}

// All that a run can be told, but by flags that no config file takes; for comparing.
std::vector<std::string> fields(const TrainOptions& o) {
    std::vector<std::string> all;
    const auto add = [&](const auto&... values) {
        const auto one = [&](const auto& value) {
            std::ostringstream text;
            text.precision(17);
            text << value;
            all.push_back(text.str());
        };
        (one(values), ...);
    };
    add(o.base_model, o.from_scratch, o.train_data, o.val_data, o.output_dir, o.val_set_size, o.adapter, o.lora_r,
        o.lora_alpha, o.lora_dropout, o.lora_target_modules, o.use_rslora, o.adapter_in, o.freeze_layers,
        o.sequence_len, o.micro_batch_size, o.gradient_accumulation_steps, o.max_steps, o.num_epochs, o.learning_rate,
        o.lr_scheduler, o.warmup_ratio, o.warmup_steps, o.weight_decay, o.max_grad_norm, o.adam_beta1, o.adam_beta2,
        o.adam_epsilon, o.seed, o.offload.layer_offloading, o.offload.num_prefetch, o.offload.num_slots,
        o.offload.resident_layers, o.offload.vram_budget, o.offload.recompute, o.threads, o.eval_steps, o.save_steps,
        o.save_total_limit, o.logging_steps, o.log, o.trace, o.trace_steps, o.sample, o.sample_tokens,
        o.sample_temperature, o.top_k, o.top_p, o.sample_chat, o.sample_packing, o.train_on_inputs, o.chat_template,
        o.preview, o.preview_ids, o.slab_format, o.load_in_4bit);
    return all;
}

OffloadFlags offloading(const std::string& num_slots, const std::string& resident_layers) {
    OffloadFlags flags;
    flags.layer_offloading = true;
    flags.num_slots = num_slots;
    flags.resident_layers = resident_layers;
    return flags;
}

// The long flags that --help lists.
std::vector<std::string> flags_in_help() {
    std::vector<std::string> flags;
    std::istringstream lines(parse({"--help"}).out);
    for (std::string line; std::getline(lines, line);) {
        const size_t at = line.find("--");
        if (at == std::string::npos || line.find_first_not_of(' ') < at - (line.find("-h,") < at ? 3 : 0)) continue;
        flags.push_back(line.substr(at, line.find_first_of(" ,", at) - at));
    }
    return flags;
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("options: defaults are those that LoRA users know, and --recompute is block when offloading") {
        const Parsed p = parse(with({}));
        REQUIRE(p.code == -1);
        CHECK(p.options.adapter == "lora");
        CHECK(p.options.lora_r == 16);
        CHECK(p.options.lora_alpha == 32);
        CHECK(p.options.learning_rate == 2e-4);
        CHECK(p.options.lr_scheduler == "cosine");
        CHECK(p.options.warmup_ratio == 0.03);
        CHECK(p.options.sequence_len == 2048);
        CHECK(p.options.max_grad_norm == 1);
        ModelSettings s;
        apply_offload_flags(s, p.options.offload, 8);
        CHECK_FALSE(s.layer_offloading);
        CHECK(s.recompute == Recompute::none);
        OffloadFlags flags = offloading("", "");
        apply_offload_flags(s, flags, 8);
        CHECK(s.layer_offloading);
        CHECK(s.recompute == Recompute::block);
        CHECK(s.num_prefetch == 1);
        CHECK(s.num_slots == 2);
        flags.num_prefetch = 3;
        flags.recompute = "none";
        apply_offload_flags(s, flags, 8);
        CHECK(s.recompute == Recompute::none);
        CHECK(s.num_slots == 4);  // raised with the prefetch
    }

    TEST_CASE("options: --freeze-layers means --adapter none, and excludes lora asked for by name") {
        CHECK(parse(with({"--freeze-layers", "3"})).options.adapter == "none");
        CHECK(parse(with({"--freeze-layers", "0"})).options.adapter == "none");
        CHECK(parse(with({"--freeze-layers", "3", "--adapter", "none"})).code == -1);
        const Parsed both = parse(with({"--freeze-layers", "3", "--adapter", "lora"}));
        CHECK(both.code == 1);
        CHECK(has(both.error, "--freeze-layers"));
    }

    TEST_CASE("options: '_' is taken for '-', and an unknown flag is answered with the nearest known one") {
        const Parsed p = parse(with({"--learning_rate", "0.5", "--lora_target_modules=q_proj", "--layer_offloading"}));
        CHECK(p.code == -1);
        CHECK(p.options.learning_rate == 0.5);
        CHECK(p.options.lora_target_modules == "q_proj");
        CHECK(p.options.offload.layer_offloading);
        const Parsed wrong = parse(with({"--lerning-rate", "0.5"}));
        CHECK(wrong.code == 1);
        CHECK(has(wrong.error, "--lerning-rate"));
        CHECK(has(wrong.error, "did you mean --learning-rate"));
        CHECK(parse(with({"stray"})).code == 1);
        const Parsed far = parse(with({"--frobnicate", "0.5"}));
        CHECK(far.code == 1);
        CHECK(has(far.error, "unknown flag --frobnicate"));
        CHECK_FALSE(has(far.error, "did you mean"));
        CHECK(has(parse(with({"--lr", "0.5"})).error, "unknown flag --lr; did you mean --learning-rate?"));
    }

    TEST_CASE("options: every number has a range, and its default lies in it") {
        const TrainOptions defaults;
        for (const Flag& flag : flag_table())
            with_value(flag, defaults, [&](const auto& value) {
                using T = std::decay_t<decltype(value)>;
                if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool> && !std::is_same_v<T, uint64_t>) {
                    CAPTURE(flag.name);
                    REQUIRE(flag.rules.range.holds);
                    const bool not_given = flag.name == std::string("freeze-layers");  // has no number
                    CHECK(flag.rules.range.holds(static_cast<double>(value)) == !not_given);
                }
            });
    }

    TEST_CASE("options: what is missing is asked for by name; --plan needs only the model") {
        CHECK(has(parse({}).error, "--base-model"));
        CHECK(has(parse({"--base-model", "m"}).error, "--train-data"));
        CHECK(has(parse({"--base-model", "m", "--train-data", "t"}).error, "--output-dir"));
        CHECK(parse({"--base-model", "m", "--plan"}).code == -1);
        CHECK(parse({"--base-model", "m", "--train-data", "t"}).code == 1);
    }

    TEST_CASE("options: every flag refuses absurd values, naming itself") {
        const TinyBase base("qwen2", 3);
        const FreshDirectory dir;
        const std::string data = (dir.path / "t.bin").string(), out = (dir.path / "out").string();
        write_tiny_tokens(data, base.config.V, 120, 1);
        put(dir.path / "a_file", "");
        const std::string below_a_file = (dir.path / "a_file" / "below").string();
        const std::string huge = "99999999999999999999", nowhere = (dir.path / "no" / "where").string();

        struct Absurd {
            std::string flag;
            std::vector<std::string> values;
            std::vector<std::string> context = {};
        };
        const std::vector<std::string> streaming = {"--layer-offloading"};
        const std::vector<Absurd> table = {
            {"--base-model", {nowhere, ""}},
            {"--train-data", {""}},
            {"--val-set-size", {"-1", "1.5", "nan", "inf", "1e9", "1e30", "x"}},
            {"--output-dir", {"", below_a_file}},
            {"--adapter", {"dora", ""}},
            {"--lora-r", {"0", "-1", "4097", huge, "1.5", "x", ""}},
            {"--lora-alpha", {"0", "-1", "nan", "inf", "1e300", "1e-7", "2e6", "x"}},
            {"--lora-dropout", {"1", "-0.1", "nan", "0.99999999999", "x"}},
            {"--lora-target-modules", {"", ",", "nosuch", "q_proj,nosuch", "all-linear,q_proj"}},
            {"--freeze-layers", {"-1", "4", huge, "x"}},
            {"--sequence-len", {"0", "-1", huge, "16777217", "x", "9.5"}},
            {"--micro-batch-size", {"0", "-1", huge, "1048577", "x"}},
            {"--gradient-accumulation-steps", {"0", "-1", huge, "x"}},
            {"--max-steps", {"-1", huge, "x"}},
            {"--num-epochs", {"0", "-1", "nan", "inf", "x"}},
            {"--learning-rate", {"-1", "nan", "inf", "1000", "x"}},
            {"--lr-scheduler", {"step", ""}},
            {"--warmup-ratio", {"-0.1", "1.1", "nan", "x"}},
            {"--warmup-steps", {"-2", huge, "x"}},
            {"--weight-decay", {"-1", "nan", "inf", "x"}},
            {"--max-grad-norm", {"-1", "nan", "inf", "x"}},
            {"--adam-beta1", {"-0.1", "1", "nan", "0.99999999999", "x"}},
            {"--adam-beta2", {"-0.1", "1", "nan", "0.99999999999", "x"}},
            {"--adam-epsilon", {"0", "-1", "nan", "inf", "1e-60", "1e60", "x"}},
            {"--seed", {"-1", "1e30", huge, "x"}},
            {"--threads", {"-1", "1025", huge, "x"}},
            {"--num-prefetch", {"0", "-1", "2147483647", huge, "x"}, streaming},
            {"--num-prefetch", {"2"}},
            {"--num-slots", {"1", "0", "-3", huge, "2.5", "x"}, streaming},
            {"--num-slots", {"3"}},
            {"--num-slots", {"2"}, {"--layer-offloading", "--num-prefetch", "2"}},
            {"--resident-layers", {"4", "-1", "0,3", "1,x", "1.5", ",", huge, "x"}, streaming},
            {"--resident-layers", {"1"}},
            {"--vram-budget", {"0", "-1", "1e99", "12X", "x", "nan", "inf", "12GG"}},
            {"--recompute", {"some", ""}},
            {"--gpus", {"0", "-1", huge, "65", "x", "1,", ",", "0,x", "0,999", "1.5", "all,0"}},
            {"--exchange-every", {"0", "-1", "1025", huge, "x"}},
            {"--comm-timeout", {"0", "-1", huge, "x"}},
            {"--transport", {"pigeon", ""}},
            {"--slab-format", {"fp8", "Q8_0", "as_is", "4", ""}},
            {"--load-in-4bit", {"x"}},
            {"--load-in-8bit", {"true", "x"}},
            {"--eval-steps", {"-1", huge, "x"}, {"--val-set-size", "1"}},
            {"--eval-steps", {"3"}},  // nothing to evaluate on
            {"--save-steps", {"-1", huge, "x"}},
            {"--save-total-limit", {"-1", huge, "x"}},
            {"--logging-steps", {"0", "-1", huge, "x"}},
            {"--trace", {(dir.path / "no" / "trace.json").string()}},
            {"--trace-steps",
             {"0:1", "3:2", "3", "x", "1:", "1:2x", "1:1001", "7:1007", "1:5000", "1:" + huge},
             {"--trace", (dir.path / "t.json").string()}},
            {"--trace-steps", {"1:2"}},  // of no trace
            {"--sample-packing", {"x"}},
            {"--sample-packing", {"true"}},   // of a token file
            {"--train-on-inputs", {"true"}},  // of a token file
            {"--chat-template", {"alpaca", "llama3"}},
            {"--preview", {"-1", huge, "x"}},
            {"--preview-ids", {"true"}},  // of no preview
            {"--sample", {"Hello"}},      // of a model without a tokenizer
            {"--sample-tokens", {"0", "-1", huge, "x"}, {"--sample", "Hello"}},
            {"--sample-tokens", {"5"}},  // of no sample
            {"--sample-temperature", {"-1", "nan", "101", "x"}, {"--sample", "Hello"}},
            {"--sample-temperature", {"1"}},
            {"--sample-chat", {"true"}},
            {"--top-k", {"-1", huge, "x"}, {"--sample", "Hello"}},
            {"--top-k", {"1"}},
            {"--top-p", {"0", "-1", "1.1", "nan", "x"}, {"--sample", "Hello"}},
            {"--top-p", {"1"}},
        };
        // What the program says; `wanted` is in it.
        const auto check_refused = [&](const std::string& flag, const std::string& value,
                                       std::vector<std::string> arguments, const std::string& wanted) {
            const std::vector<std::string> usual = {"--base-model",   base.files.path.string(),
                                                    "--train-data",   data,
                                                    "--output-dir",   out,
                                                    "--sequence-len", "9",
                                                    "--max-steps",    "1",
                                                    "--lora-r",       "2",
                                                    "--threads",      "1"};
            const auto in_its_place = [&](const std::string& other) {  // a flag of another way to the same end
                return (flag == "--freeze-layers" && other == "--lora-r") ||
                       (flag == "--num-epochs" && other == "--max-steps");
            };
            for (size_t i = 0; i < usual.size(); i += 2)
                if (usual[i] != flag && !in_its_place(usual[i]))
                    arguments.insert(arguments.end(), {usual[i], usual[i + 1]});
            arguments.push_back(flag + "=" + value);
            CAPTURE(flag);
            CAPTURE(value);
            const Program program = run_train_gpt(arguments);
            CHECK(program.code == 1);
            CAPTURE(program.error);
            CHECK(has(program.error, flag));
            CHECK(has(program.error, wanted));
            CHECK_FALSE(std::filesystem::exists(out));  // nothing was begun
            std::filesystem::remove_all(out);
        };
        for (const auto& [flag, values, context] : table)
            for (const std::string& value : values) check_refused(flag, value, context, flag);

        // Above a bound the range is told, or the value would be in what is wanted.
        const std::string steps_end = "1099511627777", to_last_step = " to 1099511627776";
        const std::vector<std::array<std::string, 3>> above = {
            {"--lora-r", "4097", "1 to 4096"},
            {"--sequence-len", "16777217", "1 to 16777216"},
            {"--micro-batch-size", "1048577", "1 to 1048576"},
            {"--gradient-accumulation-steps", "1048577", "1 to 1048576"},
            {"--max-steps", steps_end, "0" + to_last_step},
            {"--num-epochs", "1000001", "more than 0, at most 1000000"},
            {"--learning-rate", "1000", "0 or more, below 1000"},
            {"--warmup-ratio", "1.5", "0 to 1"},
            {"--warmup-steps", steps_end, "0" + to_last_step},
            {"--weight-decay", "1000", "0 or more, below 1000"},
            {"--max-grad-norm", "1e60", "finite float32"},
            {"--adam-epsilon", "1e60", "finite float32"},
            {"--val-set-size", "1e15", "below 1000000000000000"},
            {"--threads", "1025", "0 to 1024"},
            {"--num-prefetch", "1048577", "1 to 1048576"},
            {"--num-slots", "2147483648", "up to 2147483647, or auto"},
            {"--vram-budget", "1048576T", "below 2^60 bytes"},
            {"--gpus", "65", "1 to 64"},
            {"--exchange-every", "1025", "1 to 1024"},
            {"--comm-timeout", "1000001", "1 to 1000000"},
            {"--eval-steps", steps_end, "0" + to_last_step},
            {"--save-steps", steps_end, "0" + to_last_step},
            {"--save-total-limit", steps_end, "0 (keep all)" + to_last_step},
            {"--logging-steps", steps_end, "1" + to_last_step},
            {"--preview", steps_end, "0" + to_last_step + " rows"},
            {"--sample-tokens", "1048577", "1 to 1048576"},
            {"--sample-temperature", "101", "0 to 100"},
            {"--top-p", "1.1", "at most 1"},
            {"--trace-steps", "1:1001", "at most 1000 steps"},
        };
        for (const auto& [flag, value, wanted] : above) {
            std::vector<std::string> context;
            if (flag.starts_with("--sample") || flag == "--top-p") context = {"--sample", "Hello"};
            if (flag == "--num-prefetch" || flag == "--num-slots") context = streaming;
            if (flag == "--trace-steps") context = {"--trace", (dir.path / "t.json").string()};
            check_refused(flag, value, context, "wanted");
            check_refused(flag, value, context, wanted);
        }

        // Files that are not there are named themselves.
        for (const char* flag : {"--train-data", "--val-data", "--adapter-in", "--resume-from-checkpoint", "--log"}) {
            std::vector<std::string> arguments = {"--base-model",
                                                  base.files.path.string(),
                                                  "--output-dir",
                                                  out,
                                                  "--sequence-len",
                                                  "9",
                                                  "--max-steps",
                                                  "1",
                                                  flag,
                                                  nowhere};
            if (std::string(flag) != "--train-data") arguments.insert(arguments.end(), {"--train-data", data});
            const Program program = run_train_gpt(arguments);
            CAPTURE(flag);
            CHECK(program.code == 1);
            CHECK(has(program.error, nowhere));
        }

        // No flag was forgotten here.
        const std::vector<std::string> without_absurd_value = {"--help",
                                                               "--config",
                                                               "--from-scratch",
                                                               "--val-data",
                                                               "--use-rslora",
                                                               "--adapter-in",
                                                               "--layer-offloading",
                                                               "--plan",
                                                               "--resume-from-checkpoint",
                                                               "--log",
                                                               "--version"};
        size_t known = 0;
        for (const std::string& flag : flags_in_help()) {
            CAPTURE(flag);
            const bool tried = std::any_of(table.begin(), table.end(), [&](const Absurd& a) { return a.flag == flag; });
            const bool excused =
                std::find(without_absurd_value.begin(), without_absurd_value.end(), flag) != without_absurd_value.end();
            CHECK(tried != excused);
            ++known;
        }
        CHECK(known > 45);
    }

    TEST_CASE("options: a number that begins with 0 is no octal one, and what is empty is not left out") {
        for (const char* number : {"010", "08", "0x10", "-010", "+010", "00", "007", "0b1"}) {
            CAPTURE(number);
            const Parsed p = parse(with({"--lora-r", number}));
            CHECK(p.code == 1);
            CHECK(has(p.error, std::string("--lora-r ") + number + ": begins with 0; wanted a decimal number"));
        }
        for (const char* number : {"010", "01.5", "0x1p3", "-00.5"})
            CHECK(has(parse(with({"--learning-rate", number})).error,
                      std::string("--learning-rate ") + number + ": begins with 0"));
        CHECK(parse(with({"--max-steps", "-0"})).code == -1);
        CHECK(parse(with({"--lora-r", "10"})).options.lora_r == 10);
        for (const char* number : {"0.5", "0.50", ".5", "+0.5", "0.5e0", "0.05e01"})
            CHECK(parse(with({"--warmup-ratio", number})).options.warmup_ratio == 0.5);
        for (const char* number : {"0", "-0", "0.0", "0e5"})
            CHECK(parse(with({"--weight-decay", number})).options.weight_decay == 0);

        for (const char* flag : {"--vram-budget", "--num-slots", "--adapter-in", "--val-data", "--sample", "--log",
                                 "--resume-from-checkpoint", "--lora-r", "--resident-layers"})
            for (const bool joined : {true, false}) {
                CAPTURE(flag);
                const Parsed p = joined ? parse(with({flag + std::string("="), "--layer-offloading"}))
                                        : parse(with({flag, "", "--layer-offloading"}));
                CHECK(p.code == 1);
                CHECK(has(p.error, flag + std::string(": is empty; wanted a ")));
            }
        CHECK(has(parse(with({"--plan="})).error, "--plan: is empty"));
    }

    TEST_CASE("options: combinations that exclude each other are refused, naming both") {
        const Parsed val = parse(with({"--val-data", "v.bin", "--val-set-size", "0.1"}));
        CHECK(val.code == 1);
        CHECK(has(val.error, "--val-set-size"));
        CHECK(has(val.error, "--val-data"));
        const Parsed adapter = parse(with({"--adapter-in", "a", "--adapter", "none"}));
        CHECK(adapter.code == 1);
        CHECK(has(adapter.error, "--adapter-in"));
    }

    TEST_CASE("options: a trace holds up to a thousand steps") {
        CHECK(parse_trace_steps("1:1000") == std::pair<int64_t, int64_t>{1, 1000});
        CHECK(parse_trace_steps("7:1006") == std::pair<int64_t, int64_t>{7, 1006});
        CHECK(parse_trace_steps("5:5") == std::pair<int64_t, int64_t>{5, 5});
        CHECK(has(error_of([] { parse_trace_steps("1:1001"); }), "at most 1000 steps"));
    }

    TEST_CASE("options: a flag that another leaves without effect is refused, naming both") {
        const std::vector<std::vector<std::string>> refused = {
            {"--lora-r", "4", "--adapter", "none"},
            {"--lora-r", "16", "--adapter", "none"},  // the default, and yet asked for
            {"--lora-alpha", "4", "--adapter", "none"},
            {"--lora-dropout", "0.1", "--freeze-layers", "2"},
            {"--lora-target-modules", "q_proj", "--freeze-layers", "0"},
            {"--use-rslora", "--adapter", "none"},
            {"--num-epochs", "2", "--max-steps", "10"},
            {"--warmup-ratio", "0.1", "--warmup-steps", "0"},
            {"--top-k", "5", "--sample-temperature", "0", "--sample", "x"},
            {"--top-p", "0.5", "--sample-temperature", "0", "--sample", "x"},
        };
        for (const auto& flags : refused) {
            CAPTURE(flags);
            const Parsed p = parse(with(flags));
            CHECK(p.code == 1);
            const size_t other = flags[1].starts_with("--") ? 1 : 2;
            CHECK(has(p.error, flags[0] + (other == 1 ? "" : " " + flags[1]) + ": without effect beside " +
                                   flags[other] + " " + flags[other + 1] + ";"));
        }
        CHECK(has(parse(with({"--lora-r", "4", "--lora-alpha", "8", "--adapter", "none"})).error,
                  "--lora-r 4, --lora-alpha 8: without effect beside --adapter none"));
        for (const std::vector<std::string>& fine :
             {std::vector<std::string>{"--adapter", "none", "--use-rslora=false"},
              {"--max-steps", "0", "--num-epochs", "2"},
              {"--warmup-steps", "-1", "--warmup-ratio", "0.1"},
              {"--adapter", "lora", "--lora-r", "4"},
              {"--sample", "x", "--sample-temperature", "0", "--top-k", "0", "--top-p", "1"}}) {
            CAPTURE(fine);
            CHECK(parse(with(fine)).error == "");
            CHECK(parse(with(fine)).options.notes.empty());
        }
        const Parsed limit = parse(with({"--save-total-limit", "2"}));
        REQUIRE(limit.options.notes.size() == 1);
        CHECK(has(limit.options.notes[0], "--save-total-limit 2: without --save-steps"));
    }

    TEST_CASE(
        "options: the command line puts a config file's flags aside with a note; within a file they are refused") {
        const FreshDirectory dir;
        const std::string file = (dir.path / "run.toml").string();
        put(file, "lora-r = 4\nlora_alpha = 8\nwarmup-ratio = 0.1\n");
        const Parsed p = parse(with({"--config", file, "--adapter", "none", "--warmup-steps", "3"}));
        CHECK(p.error == "");
        REQUIRE(p.options.notes.size() == 2);
        CHECK(p.options.notes[0] ==
              "--lora-r 4 (config file), --lora-alpha 8 (config file): without effect beside --adapter none");
        CHECK(has(p.options.notes[1], "--warmup-ratio 0.1 (config file): without effect beside --warmup-steps 3"));
        CHECK_FALSE(has(p.options.config_toml, "lora"));
        CHECK_FALSE(has(p.options.config_toml, "warmup-ratio"));
        CHECK(has(parse(with({"--config", file, "--adapter", "none", "--lora-r", "2"})).error, "--lora-r 2: without"));
        put(file, "lora-r = 4\nadapter = \"none\"\n");
        CHECK(has(parse(with({"--config", file})).error,
                  "--lora-r 4 (config file): without effect beside --adapter none (config file)"));
    }

    TEST_CASE("options: every flag is given once, but lists may come in parts") {
        for (const auto& [arguments, error] : std::vector<std::pair<std::vector<std::string>, std::string>>{
                 {{"--lora-r", "3", "--lora_r=5"}, "--lora-r: is given twice: 3, 5; wanted it once"},
                 {{"--train-data", "b.jsonl"}, "--train-data: is given twice"},
                 {{"--sample", "a b", "--seed", "1", "--sample", "c"}, "--sample: is given twice: a b, c"},
                 {{"--plan", "--plan"}, "--plan: is given twice; wanted it once"},
                 {{"--plan", "--plan=false"}, "--plan: is given twice: false"},
                 {{"--seed", "1", "--seed", "1", "--seed", "1"}, "--seed: is given several times: 1, 1, 1"},
                 {{"--resident-layers", "0", "--resident-layers", "3"}, "--resident-layers: is given twice: 0, 3"},
                 {{"--config", "a.toml", "--config", "b.toml"}, "--config: is given twice: a.toml, b.toml"}}) {
            const Parsed p = parse(with(arguments));
            CAPTURE(error);
            CAPTURE(p.error);
            CHECK(p.code == 1);
            CHECK(has(p.error, error));
        }
        const Parsed list = parse(with({"--lora-target-modules", "q_proj", "--lora_target_modules=v_proj,o_proj"}));
        CHECK(list.error == "");
        CHECK(list.options.lora_target_modules == "q_proj,v_proj,o_proj");
        CHECK(has(list.options.config_toml, "lora-target-modules = \"q_proj,v_proj,o_proj\"\n"));
    }

    TEST_CASE("options: a list in a config file is for flags that take lists, and the command line still wins") {
        const FreshDirectory dir;
        const std::string file = (dir.path / "run.toml").string();
        put(file, "lora-target-modules = ['q_proj', \"v_proj\"]\nresident-layers = [0, 3]\nlora-r = [4]\n");
        const Parsed p = parse(with({"--config", file, "--layer-offloading", "--lora-r", "8"}));
        CHECK(p.error == "");
        CHECK(p.options.lora_target_modules == "q_proj,v_proj");
        CHECK(p.options.offload.resident_layers == "0,3");
        CHECK(p.options.lora_r == 8);
        const Parsed other = parse(with({"--config", file, "--layer-offloading", "--lora-target-modules", "k_proj"}));
        CHECK(other.options.lora_target_modules == "k_proj");
        for (const char* key : {"train-data", "sample", "adapter-in"}) {
            put(file, std::string(key) + " = ['a', 'b']\n");
            CHECK(has(parse({"--base-model", "b", "--output-dir", "o", "--config", file}).error,
                      ", line 1: " + std::string(key) + " is a list; wanted one value"));
        }
    }

    TEST_CASE("options: an empty value is none") {
        for (const char* flag : {"--sample", "--val-data", "--adapter-in", "--num-slots", "--vram-budget", "--log",
                                 "--resume-from-checkpoint"}) {
            const Parsed empty = parse(with({flag, ""}));
            CHECK(empty.code == 1);
            CHECK(has(empty.error, flag + std::string(": is empty; wanted a value there")));
        }
    }

    TEST_CASE("options: resident layers are listed, or a number of them spread evenly") {
        const auto residents = [](const std::string& text, int L) {
            ModelSettings s;
            apply_offload_flags(s, offloading("", text), L);
            return s.resident_layers;
        };
        CHECK(residents("0,3,5", 8) == std::vector<int>{0, 3, 5});
        CHECK(residents("3,", 8) == std::vector<int>{3});
        CHECK(residents("0", 8).empty());
        CHECK(residents("1", 8) == std::vector<int>{4});
        CHECK(residents("2", 8) == std::vector<int>{2, 6});
        CHECK(residents("8", 8) == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7});
        CHECK(residents("3", 5) == std::vector<int>{0, 2, 4});
        CHECK(has(error_of([&] { residents("6", 5); }), "--resident-layers 6: only 5 layers"));
        // With --freeze-layers K only the first K layers are there to be spread over or listed.
        const ModelConfig config = tiny_config("llama", 8);
        ModelSettings frozen = tiny_full_settings(4);
        apply_offload_flags(frozen, offloading("", "2"), config.L);
        CHECK(frozen.resident_layers == std::vector<int>{1, 3});
        CHECK(make_layout(config, frozen).ring.streamed() == std::vector<int>{0, 2});
        CHECK(has(error_of([&] { apply_offload_flags(frozen, offloading("", "5"), config.L); }), "only 4 layers"));
        for (const int K : {0, 4}) {
            ModelSettings listed = tiny_full_settings(K);
            apply_offload_flags(listed, offloading("", "5,"), config.L);
            CHECK(has(error_of([&] { make_layout(config, listed); }), "layer 5, which is trained in full"));
        }
    }

    TEST_CASE("options: --num-slots auto takes the most slots that the budget holds") {
        const ModelConfig config = tiny_config("llama", 8);
        const OffloadFlags flags = offloading("auto", "2,5");
        ModelSettings settings = tiny_settings();
        apply_offload_flags(settings, flags, config.L);
        const ModelLayout least = make_layout(config, settings);
        REQUIRE(least.ring.slots() == 2);
        CHECK(make_layout(config, settings, flags, 0, 0).ring.slots() == 6);  // no limit: every layer
        for (int more = 0; more <= 5; ++more)
            for (const size_t left : {size_t{0}, least.ring.slot_bytes() - 1}) {
                const size_t budget =
                    1000 + least.device_bytes() + static_cast<size_t>(more) * least.ring.slot_bytes() + left;
                const ModelLayout layout = make_layout(config, settings, flags, 1000, budget);
                CHECK(layout.ring.slots() == std::min(2 + more, 6));
                CHECK(1000 + layout.device_bytes() <= budget);
            }
        CHECK(make_layout(config, settings, flags, 0, 1).ring.slots() == 2);  // does not fit: the plan says so
    }

    TEST_CASE("options: a config file takes both spellings, the command line beats it, it beats the defaults") {
        const FreshDirectory dir;
        const std::string file = (dir.path / "run.toml").string();
        put(file,
            "# a run\nbase_model = \"some/model\"\nlearning-rate = 1e-3\nlora_r = 4\nlayer_offloading = true\n"
            "lora_target_modules = 'q_proj,v_proj'\nuse_rslora = false\n");
        const Parsed p = parse({"--config", file, "--lora-r", "6", "--train-data", "t", "--output-dir", "o"});
        CHECK(p.error == "");
        REQUIRE(p.code == -1);
        CHECK(p.options.base_model == "some/model");
        CHECK(p.options.learning_rate == 1e-3);
        CHECK(p.options.lora_r == 6);
        CHECK(p.options.lora_alpha == 32);
        CHECK(p.options.lora_target_modules == "q_proj,v_proj");
        CHECK(p.options.offload.layer_offloading);
        CHECK_FALSE(p.options.use_rslora);
    }

    TEST_CASE("options: a config file's mistakes exit 1 and are named") {
        const FreshDirectory dir;
        const std::string file = (dir.path / "run.toml").string();
        const auto error_with = [&](const std::string& toml) {
            put(file, toml);
            const Parsed p = parse(with({"--config", file}));
            CHECK(p.code == 1);
            return p.error;
        };
        const std::string unknown = error_with("lerning_rate = 1\n");
        CHECK(has(unknown, "config file " + file + ", line 1"));
        CHECK(has(unknown, "lerning-rate"));
        CHECK(has(unknown, "did you mean learning-rate"));
        CHECK(has(error_with("lr = 1\n"), "unknown key lr; did you mean learning-rate?"));
        CHECK_FALSE(has(error_with("frobnicate = 1\n"), "did you mean"));
        CHECK(has(error_with("plan = true\n"), "unknown key plan"));  // of a single start, not of a run
        CHECK(has(error_with("resume_from_checkpoint = 'last'\n"), "unknown key resume-from-checkpoint"));
        CHECK(has(error_with("[lora]\nlora_r = 3\n"), "\"[lora]\"; wanted key = value"));
        CHECK(has(error_with("lora_r = \"many\"\n"), "--lora-r"));
        CHECK(has(error_with("lora_r = -3\n"), "--lora-r"));
        const std::string twice = error_with("lora_r = 3\nlora-r = 4\n");  // two spellings of one key
        CHECK(has(twice, "config file " + file + ", line 2"));
        CHECK(has(twice, "line 1 has it too"));
        CHECK(has(error_with("adapter = \"dora\"\n"), "--adapter"));
        CHECK(has(error_with("layer_offloading = \"perhaps\"\n"), "layer-offloading"));
        // What would be read as 0, as not there, or as true.
        for (const char* number : {"learning-rate", "max-steps", "seed"})
            CHECK(has(error_with(number + std::string(" = \"\"\n")), std::string(number) + ": is empty"));
        for (const char* text : {"val-data", "adapter-in", "vram-budget", "num-slots", "sample", "lora_target_modules"})
            CHECK(has(error_with(text + std::string(" = ''\n")), ": is empty; wanted a value there"));
        CHECK(has(error_with("learning-rate = []\n"), "line 1"));
        for (const char* number : {"010", "08", "'010'", "-010", "'0x10'"})
            CHECK(has(error_with(std::string("lora_r = ") + number + "\n"), "begins with 0"));
        for (const char* value : {"3", "\"on\"", "0"})
            CHECK(has(error_with(std::string("layer-offloading = ") + value + "\n"), "layer-offloading"));
        CHECK(has(parse(with({"--layer-offloading=3"})).error, "--layer-offloading 3: is neither true nor false"));
        CHECK(has(error_with(std::string(size_t{1} << 21, '#')), "has 2097152 bytes; wanted a config file of at most"));
        const Parsed missing = parse(with({"--config", file + ".missing"}));
        CHECK(missing.code == 1);
        CHECK(has(missing.error, "run.toml.missing"));
    }

    TEST_CASE("options: a config file that cannot be read to its end is an error, not a shorter one") {
        class Failing : public std::streambuf {  // two lines, then as a disk or std::bad_alloc fails
            std::string text_ = "lora-r = 4\nseed = 3\n";
            int_type underflow() override {
                if (eback() != nullptr) throw std::runtime_error("gone");
                setg(text_.data(), text_.data(), text_.data() + text_.size());
                return traits_type::to_int_type(text_[0]);
            }
        } failing;
        std::istream in(&failing);
        CHECK(has(error_of([&] { parse_config(in, "run.toml"); }), "run.toml: could not be read beyond line 2"));
    }

    TEST_CASE("options: values of a config file are TOML's") {
        const auto value_of = [](const std::string& text) {
            std::istringstream in("# comment\n\n  key = " + text + "\r\n");
            const auto entries = parse_config(in, "file");
            REQUIRE(entries.size() == 1);
            CHECK(entries[0].key == "key");
            CHECK(entries[0].line == 3);
            return entries[0].value;
        };
        CHECK(value_of("12") == "12");
        CHECK(value_of("-1.5e-3  # comment") == "-1.5e-3");
        CHECK(value_of("true") == "true");
        CHECK(value_of("\"a # b\"# c") == "a # b");
        CHECK(value_of("'a \\n \"b\"'") == "a \\n \"b\"");
        CHECK(value_of(R"("\b\t\n\f\r\"\\\u0041\u00e4\u20ac")") == "\b\t\n\f\r\"\\A\u00e4\u20ac");
        CHECK(value_of("[ \"q_proj\", 'v_proj' ]") == "q_proj,v_proj");
        CHECK(value_of("[0, 3, 5,]") == "0,3,5");
        for (const char* bad : {"", "[]", "[ ]", "#", "\"open", "'open", "\"\\x\"", "\"\\u12\"", "\"\\ud800\"",
                                "\"end\\", "1 2", "\"a\"b", "[1", "[1 2]", "[1]]", "{a = 1}", "= 1", "key"}) {
            CAPTURE(bad);
            std::istringstream in("key = " + std::string(bad));
            const std::string error = error_of([&] { parse_config(in, "the file"); });
            CHECK(has(error, "line 1"));
            CHECK(has(error, "wanted"));
        }
        for (const char* bad :
             {"key", "key 1", "= 1", "a.b = 1", "\"key\" = 1", "[[a]]", "key = 1\nkey = 2", "a_b = 1\na-b = 1"}) {
            CAPTURE(bad);
            std::istringstream in(bad);
            CHECK(has(error_of([&] { parse_config(in, "the file"); }), "the file, line "));
        }
        std::string every_byte;
        for (int c = 1; c < 256; ++c) every_byte += static_cast<char>(c);
        CHECK(value_of(config_value(every_byte)) == every_byte);
    }

    TEST_CASE("options: the config.toml of a run, read back, is the same run") {
        const FreshDirectory dir;
        const std::string file = (dir.path / "config.toml").string();
        const std::vector<std::vector<std::string>> runs = {
            {},
            {"--layer-offloading", "--num-prefetch", "2", "--num-slots", "auto", "--resident-layers", "0,2,5",
             "--vram-budget", "11.5GiB", "--recompute", "none", "--use-rslora", "--lora-dropout", "0.05"},
            {"--freeze-layers", "3", "--val-set-size", "0.1", "--eval-steps", "7", "--save-steps", "9"},
            {"--sample-packing", "--train-on-inputs", "--chat-template", "llama3", "--preview", "3", "--preview-ids"},
            {"--sample", "Hello", "--sample-chat", "--sample-tokens", "7", "--top-k", "5", "--top-p", "0.5"},
            {"--freeze-layers", "0", "--from-scratch", "--seed", "18446744073709551615"},
            {"--adapter", "none", "--learning-rate", "0.1", "--weight-decay", "0.30000000000000004"},
            {"--lora-target-modules", "q_proj,v_proj", "--lora-r", "3", "--lora-alpha", "2.5", "--warmup-steps", "-1"},
            {"--sample", "In the beginning", "--sample-temperature", "0", "--trace", "a b/t.json", "--log", "l,m.jsonl",
             "--trace-steps", "2:3"},
            {"--sample", "He said \"no\""},
            {"--sample", "it's"},
            {"--sample", "He said \"it's\""},
            {"--sample", "back\\slash \\n"},
            {"--sample", "two\nlines"},
            {"--sample", "[a, b]"},
            {"--sample", "# no comment; = \t"},
            {"--sample", "true"},
            {"--sample", " blanks "},
            {"--sample", "12"},
            {"--log", "c:\\new\\log.jsonl"},
        };
        for (const auto& run : runs) {
            CAPTURE(run);
            Parsed first = parse(with(run));
            REQUIRE(first.code == -1);
            put(file, first.options.config_toml);
            const TrainOptions usual;  // another run's log and trace would be this one's, overwritten
            first.options.log = usual.log;
            first.options.trace = usual.trace;
            first.options.trace_steps = usual.trace_steps;
            first.options.output_dir = std::filesystem::absolute(first.options.output_dir).string();
            CAPTURE(first.options.config_toml);
            const Parsed again = parse({"--config", file});
            CHECK(again.error == "");
            CHECK(fields(again.options) == fields(first.options));
            CHECK(again.options.config_toml == first.options.config_toml);
        }
    }

    TEST_CASE("options: the config.toml of a run names files so that they are found from another directory") {
        const FreshDirectory dir;
        const std::filesystem::path before = std::filesystem::current_path();
        std::filesystem::current_path(dir.path);
        std::filesystem::create_directory("base");
        put("t.bin", "");
        put("last", "");
        const Parsed p = parse({"--base-model", "base", "--train-data", "./t.bin", "--val-data", "org/none",
                                "--output-dir", "out", "--resume-from-checkpoint", "last", "--sample", "t.bin"});
        const std::filesystem::path here = std::filesystem::current_path();
        std::filesystem::current_path(before);
        REQUIRE(p.code == -1);
        CHECK(has(p.options.config_toml, "base-model = \"" + (here / "base").string() + "\"\n"));
        CHECK(has(p.options.config_toml, "train-data = \"" + (here / "./t.bin").string() + "\"\n"));
        CHECK(has(p.options.config_toml, "val-data = \"org/none\"\n"));
        CHECK(has(p.options.config_toml, "output-dir = \"" + (here / "out").string() + "\"\n"));
        CHECK(has(p.options.config_toml, "sample = \"t.bin\"\n"));
    }
}
