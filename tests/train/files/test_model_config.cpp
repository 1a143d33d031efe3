// config.json: both spellings, each family's defaults, and the refusals. A switch that is read wrongly gives a model
// that trains and is wrong. So each is set here once and checked, and each refusal must name key and value.
#include <doctest/doctest.h>

#include <algorithm>

#include "data/base/json_file.h"
#include "tests/temporary_files.h"
#include "train/files/model_config_reader.h"
#include "train/files/model_config_writer.h"
#include "train/spec/model_config.h"
#include "train/spec/tensor_table.h"

using namespace slab::train;
using nlohmann::json;
using slab::test::content;
using slab::test::error_of;
using slab::test::FreshDirectory;
using slab::test::has;
using slab::test::put;
namespace fs = std::filesystem;

namespace {

// JSON as the tests write it: the inside of an object, with ' for ". (Initializer lists of json compile for minutes.)
json object(std::string text) {
    std::replace(text.begin(), text.end(), '\'', '"');
    return json::parse("{" + text + "}");
}

ModelConfig parse(const FreshDirectory& dir, const json& config) {
    put(dir.path / "config.json", config.dump());
    return read_model_config(dir.path / "config.json");
}
ModelConfig parse(const FreshDirectory& dir, const char* config) {
    return parse(dir, object(config));
}

// A small config of the family, changed by the keys of `patch`.
json small(const std::string& family, const std::string& patch = "") {
    json config =
        object(family == "gpt2" ? "'n_layer': 2, 'n_embd': 48, 'n_head': 3, 'n_positions': 64, 'vocab_size': 100"
                                : "'num_hidden_layers': 2, 'hidden_size': 48, 'num_attention_heads': 4, "
                                  "'num_key_value_heads': 2, 'vocab_size': 100, 'intermediate_size': 80, "
                                  "'max_position_embeddings': 64");
    config["model_type"] = family;
    const json over = object(patch);
    for (const auto& [key, value] : over.items()) config[key] = value;
    return config;
}

std::string error_with(const FreshDirectory& dir, const std::string& family, const std::string& patch) {
    const std::string error = error_of([&] { parse(dir, small(family, patch)); });
    if (!error.empty()) CHECK(has(error, (dir.path / "config.json").string()));
    return error;
}

// All values that training depends on.
bool same(const ModelConfig& a, const ModelConfig& b) {
    const RotaryScaling &p = a.rope_scaling, &q = b.rope_scaling;
    return a.family == b.family && a.norm == b.norm && a.activation == b.activation && a.L == b.L && a.C == b.C &&
           a.NH == b.NH && a.NKV == b.NKV && a.HD == b.HD && a.I == b.I && a.V == b.V &&
           a.max_positions == b.max_positions && a.norm_eps == b.norm_eps &&
           a.learned_positions == b.learned_positions && a.rotary == b.rotary && a.qkv_bias == b.qkv_bias &&
           a.o_bias == b.o_bias && a.mlp_bias == b.mlp_bias && a.qk_norm == b.qk_norm && a.tied_head == b.tied_head &&
           a.rope_theta == b.rope_theta && p.llama3 == q.llama3 && p.factor == q.factor &&
           p.low_freq_factor == q.low_freq_factor && p.high_freq_factor == q.high_freq_factor &&
           p.original_max_position_embeddings == q.original_max_position_embeddings &&
           a.sliding_window == b.sliding_window && a.layer_types == b.layer_types && a.bos_token == b.bos_token &&
           a.eos_token == b.eos_token;
}

const char* const rotary_families[] = {"llama", "mistral", "qwen2", "qwen3"};
const std::string llama3_freqs = "'factor': 8.0, 'low_freq_factor': 1.0, 'high_freq_factor': 4.0";
const std::string llama3_rope = "'rope_type': 'llama3', 'original_max_position_embeddings': 32, " + llama3_freqs;
const std::string llama3_scaling = "'rope_scaling': {" + llama3_rope + "}";

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("model config: a family's defaults are those of transformers") {
        FreshDirectory dir;
        const ModelConfig gpt2 = parse(dir, "'model_type': 'gpt2'");
        CHECK(gpt2.family == Family::gpt2);
        CHECK(gpt2.norm == NormKind::layer_norm);
        CHECK(gpt2.activation == Activation::gelu_tanh);
        CHECK((gpt2.L == 12 && gpt2.C == 768 && gpt2.NH == 12 && gpt2.NKV == 12 && gpt2.HD == 64));
        CHECK((gpt2.I == 3072 && gpt2.V == 50257 && gpt2.max_positions == 1024));
        CHECK(gpt2.norm_eps == 1e-5f);
        CHECK((gpt2.learned_positions && gpt2.qkv_bias && gpt2.o_bias && gpt2.mlp_bias && gpt2.tied_head));
        CHECK_FALSE((gpt2.rotary || gpt2.qk_norm));
        CHECK((gpt2.bos_token == 50256 && gpt2.eos_token == 50256));
        CHECK(parameter_count(gpt2) == 124439808);
        REQUIRE(gpt2.notices.size() == 1);
        CHECK(has(gpt2.notices[0], "attn_pdrop absent, which means 0.1, embd_pdrop"));
        CHECK(describe(gpt2) ==
              "gpt2, 12 layers, hidden 768, 12 heads of 64, intermediate 3072, vocabulary 50257, tied head, "
              "124.4 M parameters");

        const ModelConfig llama = parse(dir, "'model_type': 'llama'");
        CHECK(llama.norm == NormKind::rms_norm);
        CHECK(llama.activation == Activation::swiglu);
        CHECK((llama.L == 32 && llama.C == 4096 && llama.NH == 32 && llama.NKV == 32 && llama.HD == 128));
        CHECK((llama.I == 11008 && llama.V == 32000 && llama.max_positions == 2048));
        CHECK((llama.norm_eps == 1e-6f && llama.rope_theta == 10000));
        CHECK_FALSE((llama.learned_positions || llama.qkv_bias || llama.o_bias || llama.mlp_bias || llama.qk_norm));
        CHECK_FALSE((llama.tied_head || llama.rope_scaling.llama3));
        CHECK((llama.rotary && llama.bos_token == 1 && llama.eos_token == 2 && llama.sliding_window == 0));
        CHECK(parameter_count(llama) == 6738415616);
        CHECK(llama.notices.empty());

        const ModelConfig mistral = parse(dir, "'model_type': 'mistral'");
        CHECK((mistral.NKV == 8 && mistral.I == 14336 && mistral.max_positions == 131072));
        CHECK(mistral.sliding_window == 4096);
        CHECK(parameter_count(mistral) == 7241732096);

        const ModelConfig qwen2 = parse(dir, "'model_type': 'qwen2'");
        CHECK((qwen2.V == 151936 && qwen2.I == 22016 && qwen2.NKV == 32 && qwen2.HD == 128));
        CHECK((qwen2.qkv_bias && !qwen2.o_bias && !qwen2.qk_norm && !qwen2.tied_head));
        CHECK((qwen2.bos_token == -1 && qwen2.eos_token == -1 && qwen2.sliding_window == 0));

        const ModelConfig qwen3 = parse(dir, small("qwen3"));
        CHECK((qwen3.HD == 128 && qwen3.qk_norm && !qwen3.qkv_bias && !qwen3.o_bias));
    }

    TEST_CASE("model config: known models have the known number of parameters") {
        FreshDirectory dir;
        CHECK(parameter_count(parse(
                  dir,
                  "'model_type': 'qwen2', 'hidden_size': 896, 'num_attention_heads': 14, 'num_key_value_heads': 2, "
                  "'num_hidden_layers': 24, 'intermediate_size': 4864, 'tie_word_embeddings': true")) == 494032768);
        CHECK(parameter_count(parse(
                  dir,
                  "'model_type': 'qwen3', 'hidden_size': 1024, 'num_attention_heads': 16, 'num_key_value_heads': 8, "
                  "'num_hidden_layers': 28, 'intermediate_size': 3072, 'tie_word_embeddings': true")) == 596049920);
        CHECK(parameter_count(parse(dir,
                                    "'model_type': 'llama', 'hidden_size': 2048, 'num_attention_heads': 32, "
                                    "'num_key_value_heads': 8, 'num_hidden_layers': 16, 'intermediate_size': 8192, "
                                    "'vocab_size': 128256, 'tie_word_embeddings': true")) == 1235814400);
    }

    TEST_CASE("model config: what the keys mean") {
        FreshDirectory dir;
        const ModelConfig llama =
            parse(dir, small("llama",
                             "'attention_bias': true, 'mlp_bias': true, 'head_dim': 10, 'rms_norm_eps': 1e-05, "
                             "'tie_word_embeddings': true, 'bos_token_id': null, 'eos_token_id': [7, 8], "
                             "'attention_dropout': 0.25, 'hidden_act': 'swish'"));
        CHECK((llama.qkv_bias && llama.o_bias && llama.mlp_bias && llama.HD == 10 && llama.norm_eps == 1e-5f));
        CHECK((llama.tied_head && llama.bos_token == -1 && llama.eos_token == 7));
        REQUIRE(llama.notices.size() == 1);  // of the list none: which token ends a record is the tokenizer's to say
        CHECK(has(llama.notices[0], "attention_dropout 0.25"));
        CHECK(parse(dir, small("llama", "'num_key_value_heads': null")).NKV == 4);
        CHECK(parse(dir, small("mistral", "'num_key_value_heads': null")).NKV == 4);
        CHECK(parse(dir, small("llama", "'head_dim': null")).HD == 12);
        CHECK(parse(dir, small("llama", "'hidden_size': 50, 'head_dim': 12")).HD == 12);
        CHECK(parse(dir, small("qwen3", "'head_dim': 20, 'attention_bias': true")).o_bias);
        CHECK(parse(dir, small("qwen2", "'head_dim': 20")).HD == 20);
        CHECK(parse(dir, small("llama", "'eos_token_id': -1")).eos_token == -1);
        CHECK(parse(dir, small("llama", "'eos_token_id': []")).eos_token == -1);
        const ModelConfig outside = parse(dir, small("llama", "'eos_token_id': 100"));
        CHECK((outside.eos_token == -1 && outside.notices.size() == 1));
        CHECK(parse(dir, small("gpt2")).eos_token == -1);  // 50256 by default, and not in this vocabulary

        const ModelConfig gpt2 =
            parse(dir, small("gpt2",
                             "'n_inner': 100, 'activation_function': 'gelu_pytorch_tanh', 'tie_word_embeddings': "
                             "false, 'attn_pdrop': 0, 'embd_pdrop': 0.0, 'resid_pdrop': 0.1"));
        CHECK((gpt2.I == 100 && gpt2.HD == 16 && !gpt2.tied_head));
        REQUIRE(gpt2.notices.size() == 1);
        CHECK(gpt2.notices[0] == "the base model's own dropout (resid_pdrop 0.1 in config.json) is trained as 0");
        CHECK(parse(dir,
                    "'model_type': 'gpt2', 'hidden_size': 24, 'num_attention_heads': 3, 'num_hidden_layers': 5, "
                    "'max_position_embeddings': 9, 'vocab_size': 10")
                  .L == 5);
        CHECK(has(error_with(dir, "gpt2", "'hidden_size': 24"), "wanted what \"n_embd\" says"));
    }

    TEST_CASE("model config: rotary positions in both spellings") {
        FreshDirectory dir;
        for (const char* family : rotary_families) {
            CAPTURE(family);
            CHECK(parse(dir, small(family, "'rope_theta': 5e5")).rope_theta == 5e5f);
            CHECK(parse(dir, small(family, "'rope_theta': 5e5, 'rope_scaling': null")).rope_theta == 5e5f);
            CHECK(parse(dir, small(family, "'rope_parameters': {'rope_theta': 5e5, 'rope_type': 'default'}"))
                      .rope_theta == 5e5f);
            CHECK(parse(dir, small(family, "'rope_parameters': {}")).rope_theta == 10000);

            const std::string five = "'rope_parameters': {'rope_theta': 5e5, " + llama3_rope + "}";
            const ModelConfig want = parse(dir, small(family, five));
            CHECK((want.rope_scaling.llama3 && want.rope_scaling.factor == 8 && want.rope_theta == 5e5f));
            CHECK((want.rope_scaling.low_freq_factor == 1 && want.rope_scaling.high_freq_factor == 4));
            CHECK(want.rope_scaling.original_max_position_embeddings == 32);
            std::string old = llama3_scaling;
            old.replace(old.find("rope_type"), 9, "type");
            const std::string both = "'rope_scaling': {'type': 'llama3', " + llama3_rope + "}";
            for (const std::string& scaling : {llama3_scaling, old, both, five}) {
                CHECK(same(want, parse(dir, small(family, "'rope_theta': 5e5, " + scaling))));
            }

            const std::string without = "'rope_scaling': {'rope_type': 'llama3', " + llama3_freqs + "}";
            const auto original = [&](const std::string& patch) {
                return parse(dir, small(family, patch)).rope_scaling.original_max_position_embeddings;
            };
            CHECK(original(without) == 64);
            CHECK(original("'original_max_position_embeddings': 16, " + without) == 16);
            CHECK(has(error_with(dir, family, "'original_max_position_embeddings': 16, " + llama3_scaling),
                      "\"rope_scaling.original_max_position_embeddings\" is 32"));

            for (const std::string type : {"linear", "dynamic", "yarn", "longrope", "mrope"}) {
                for (const std::string key : {"type", "rope_type"}) {
                    const std::string error =
                        error_with(dir, family, "'rope_scaling': {'" + key + "': '" + type + "', 'factor': 2.0}");
                    CHECK(has(error, "\"rope_scaling." + key + "\" is \"" + type + "\""));
                }
                CHECK(has(error_with(dir, family, "'rope_parameters': {'rope_type': '" + type + "'}"),
                          "\"rope_parameters.rope_type\" is"));
            }
            const std::pair<std::string, const char*> refused[] = {
                {llama3_scaling + ", " + five, "\"rope_scaling\" is {"},
                {"'rope_theta': 1e4, " + five, "\"rope_parameters.rope_theta\" is 500000.0"},
                {"'rope_scaling': {'rope_type': 'default', 'factor': 2.0}", "\"rope_scaling.factor\" is 2.0"},
                {"'rope_scaling': {'rope_type': 'llama3'}", "\"rope_scaling.factor\" is absent"},
                {"'rope_scaling': {'rope_type': 3}", "\"rope_scaling.rope_type\" is 3"},
                {"'rope_scaling': {'rope_type': 'llama3', 'type': 'default'}", "\"rope_scaling.type\" is"},
                {"'rope_scaling': 'llama3'", "\"rope_scaling\" is \"llama3\"; wanted an object"},
                {"'rope_scaling': {'rope_type': 'default', 'beta_fast': 3}", "\"rope_scaling.beta_fast\" is 3"},
                {"'rope_parameters': {'full_attention': {'rope_theta': 10000.0}}", "full_attention\" is {"},
                {"'rope_theta': 0", "\"rope_theta\" is 0"},
                {"'rope_theta': '10000'", "\"rope_theta\" is \"10000\""},
                {"'rope_theta': 1e+39", "\"rope_theta\" is 1e+39"},
                {"'partial_rotary_factor': 0.5", "\"partial_rotary_factor\" is 0.5"},
                {"'rope_parameters': {'partial_rotary_factor': 0.25}", "partial_rotary_factor\" is 0.25"},
                {"'rope_interleaved': true", "\"rope_interleaved\" is true"},
            };
            for (const auto& [patch, message] : refused) {
                CAPTURE(message);
                CHECK(has(error_with(dir, family, patch), message));
            }
            CHECK(error_with(dir, family, "'partial_rotary_factor': 1.0, 'rope_interleaved': false") == "");
            for (const std::string bad :
                 {"'factor': 0.5", "'factor': '8'", "'low_freq_factor': 0", "'low_freq_factor': 4.0",
                  "'high_freq_factor': -1", "'original_max_position_embeddings': 0",
                  "'original_max_position_embeddings': 32.0"}) {
                CAPTURE(bad);
                json config = small(family, llama3_scaling);
                config["rope_scaling"].update(object(bad));
                CHECK(has(error_of([&] { parse(dir, config); }), "\"rope_scaling."));
            }
        }
    }

    TEST_CASE("model config: windows that do not bite are fine, others are refused by length") {
        FreshDirectory dir;
        const auto window = [&](const char* family, const std::string& patch) {
            return parse(dir, small(family, patch)).sliding_window;
        };
        CHECK(window("mistral", "'sliding_window': null") == 0);
        CHECK(window("mistral", "'sliding_window': 30") == 30);
        CHECK(window("mistral", "") == 4096);
        for (const char* family : {"qwen2", "qwen3"}) {
            CAPTURE(family);
            const std::string in_use = "'use_sliding_window': true, 'sliding_window': 30, ";
            const std::string listed = "'layer_types': ['sliding_attention', 'full_attention'], 'max_window_layers': 2";
            CHECK(window(family, in_use + "'max_window_layers': 1") == 30);
            CHECK(parse(dir, small(family, in_use + "'max_window_layers': 1")).layer_types ==
                  std::vector<std::string>{"full_attention", "sliding_attention"});
            CHECK(window(family, in_use + "'max_window_layers': 2") == 0);
            CHECK(window(family, in_use + "'layer_types': ['full_attention', 'full_attention']") == 0);
            CHECK(window(family, in_use + listed) == 30);
            CHECK(window(family, "'sliding_window': 30, 'max_window_layers': 1") == 0);
            CHECK(window(family, "") == 0);
            CHECK(has(error_with(dir, family, listed), "\"layer_types\" is [\"sliding_attention\""));
            CHECK(has(error_with(dir, family, "'layer_types': ['full_attention', 'chunked_attention']"),
                      "\"layer_types\""));
            CHECK(has(error_with(dir, family, "'layer_types': ['full_attention']"), "one for each layer"));
            CHECK(has(error_with(dir, family, "'layer_types': 'full_attention'"), "\"layer_types\""));
            CHECK(has(error_with(dir, family, "'layer_types': [1, 2]"), "\"layer_types\""));
        }
        CHECK(has(error_with(dir, "mistral", "'sliding_window': 0"), "\"sliding_window\" is 0"));
        CHECK(has(error_with(dir, "mistral", "'sliding_window': -3"), "\"sliding_window\" is -3"));
        CHECK(has(error_with(dir, "llama", "'sliding_window': 30"), "\"sliding_window\" is 30"));
        CHECK(has(error_with(dir, "llama", "'layer_types': ['full_attention', 'sliding_attention']"), "no window"));

        const ModelConfig mistral = parse(dir, small("mistral", "'sliding_window': 30"));
        check_sequence_len(mistral, 30);
        CHECK(
            has(error_of([&] { check_sequence_len(mistral, 31); }), "sequence length 31 is given; wanted at most 30"));
        const ModelConfig gpt2 = parse(dir, small("gpt2"));
        check_sequence_len(gpt2, 64);
        CHECK(has(error_of([&] { check_sequence_len(gpt2, 65); }), "wanted at most 64"));
        check_sequence_len(parse(dir, small("llama")), 1000);  // rotary positions go on
    }

    TEST_CASE("model config: what is refused, by key and value") {
        FreshDirectory dir;
        const struct {
            const char* family;
            const char* patch;
            const char* message;
        } cases[] = {
            {"llama", "'model_type': 'gpt_neox'", "\"model_type\" is \"gpt_neox\"; wanted \"gpt2\", \"llama\""},
            {"llama", "'model_type': null", "\"model_type\" is null"},
            {"llama", "'model_type': 3", "\"model_type\" is 3"},
            {"llama", "'hidden_act': 'gelu'", "\"hidden_act\" is \"gelu\"; wanted \"silu\""},
            {"gpt2", "'activation_function': 'gelu'", "\"activation_function\" is \"gelu\""},
            {"gpt2", "'activation_function': 'relu'", "\"activation_function\" is \"relu\""},
            {"gpt2", "'scale_attn_weights': false", "\"scale_attn_weights\" is false; wanted true"},
            {"gpt2", "'scale_attn_by_inverse_layer_idx': true", "\"scale_attn_by_inverse_layer_idx\" is true"},
            {"gpt2", "'add_cross_attention': true", "\"add_cross_attention\" is true"},
            {"gpt2", "'n_head': 5", "\"n_embd\" is 48; wanted a multiple of n_head = 5"},
            {"gpt2", "'attn_pdrop': 1.5", "\"attn_pdrop\" is 1.5"},
            {"llama", "'quantization_config': {'bits': 4}", "unquantized"},
            {"llama", "'num_key_value_heads': 3", "\"num_key_value_heads\" is 3; wanted a divisor"},
            {"mistral", "'num_attention_heads': 5, 'hidden_size': 50", "\"num_key_value_heads\" is 2"},
            {"llama", "'num_attention_heads': 5, 'num_key_value_heads': 5", "\"hidden_size\" is 48"},
            {"llama", "'head_dim': 11", "\"head_dim\" is 11; wanted an even"},
            {"llama", "'hidden_size': 52", "\"head_dim\" is absent; wanted an even"},
            {"llama", "'num_attention_heads': 65535, 'num_key_value_heads': 1, 'head_dim': 16384", "\"head_dim\""},
            {"llama", "'num_attention_heads': 65536", "\"num_attention_heads\" is 65536"},  // CUDA's grids end there
            {"llama", "'some_new_thing': true", "\"some_new_thing\" is true"},
            {"llama", "'some_new_thing': 'on'", "\"some_new_thing\" is \"on\""},
            {"llama", "'text_config': {'a': 1}", "\"text_config\""},
            {"mistral", "'attention_bias': true", "\"attention_bias\" is true"},
            {"qwen2", "'mlp_bias': true", "\"mlp_bias\" is true"},
            {"llama", "'mlp_bias': 1", "\"mlp_bias\" is 1; wanted true or false"},
            {"llama", "'tie_word_embeddings': 'no'", "\"tie_word_embeddings\" is \"no\""},
            {"llama", "'eos_token_id': '</s>'", "\"eos_token_id\""},
            {"llama", "'eos_token_id': [1, 'x']", "\"eos_token_id\""},
            {"llama", "'eos_token_id': 9223372036854775808", "\"eos_token_id\""},
            {"llama", "'bos_token_id': 18446744073709551615", "\"bos_token_id\""},
            {"llama", "'rms_norm_eps': 0", "\"rms_norm_eps\" is 0"},
            {"llama", "'rms_norm_eps': '1e-6'", "\"rms_norm_eps\" is \"1e-6\""},
            {"llama", "'rms_norm_eps': 2", "\"rms_norm_eps\" is 2"},
        };
        for (const auto& c : cases) {
            CAPTURE(c.message);
            const std::string error = error_with(dir, c.family, c.patch);
            CAPTURE(error);
            CHECK(has(error, c.message));
        }
        const std::string neutral =
            "'a': null, 'b': false, 'c': 0, 'd': 0.0, 'e': '', 'f': [], 'g': {}, 'quantization_config': null, 'top_p': "
            "0.9, 'architectures': ['X'], 'id2label': {'0': 'a'}, 'torch_dtype': 'float16'";
        for (const char* family : {"gpt2", "llama", "mistral", "qwen2", "qwen3"}) {
            CHECK(error_with(dir, family, neutral) == "");
        }
    }

    TEST_CASE("model config: false, 0 and null are no way to leave a key out whose default is true") {
        FreshDirectory dir;
        for (const char* family : {"gpt2", "llama", "mistral", "qwen2", "qwen3"}) {
            CAPTURE(family);
            for (const char* value : {"false", "0", "null", "''", "[]", "{}"})
                CHECK(has(error_with(dir, family, std::string("'is_causal': ") + value),
                          "wanted true, the only value that is implemented"));
            CHECK(error_with(dir, family, "'is_causal': true") == "");
            CHECK(has(error_with(dir, family, "'tie_word_embeddings': null"), "null is neither"));
        }
        for (const char* value : {"false", "0", "null"})
            CHECK(has(error_with(dir, "gpt2", std::string("'scale_attn_weights': ") + value), "scale_attn_weights"));
        CHECK(has(error_with(dir, "qwen3", "'head_dim': null"), "\"head_dim\" is null"));
        CHECK(has(error_with(dir, "llama", "'hidden_act': null"), "\"hidden_act\" is null"));
        CHECK(has(error_with(dir, "llama", "'partial_rotary_factor': 0"), "partial_rotary_factor"));
    }

    TEST_CASE("model config: keys that are not known and say nothing are named, those of published files are not") {
        FreshDirectory dir;
        const ModelConfig told = parse(dir, small("llama",
                                                  "'use_qk_norm': false, 'softcap': 0, 'rope_interleaved': "
                                                  "false, 'other': null"));
        REQUIRE(told.notices.size() == 1);
        CHECK(told.notices[0] ==
              "config.json has keys that are not known here: \"softcap\" 0, \"use_qk_norm\" false. "
              "They are taken as not in use");
        const ModelConfig other = parse(dir, small("qwen2", "'architectures': ['Qwen2ForSequenceClassification']"));
        REQUIRE(other.notices.size() == 1);
        CHECK(has(other.notices[0], "\"Qwen2ForSequenceClassification\""));
        CHECK(parse(dir, small("qwen2", "'architectures': ['Qwen2ForCausalLM']")).notices.empty());
    }

    TEST_CASE("model config: absurd sizes of every key") {
        FreshDirectory dir;
        const char* const absurd[] = {"0",
                                      "-1",
                                      "2147483648",
                                      "1099511627776",
                                      "-9223372036854775808",
                                      "18446744073709551615",
                                      "1.5",
                                      "64.0",
                                      "'64'",
                                      "true",
                                      "1e300",
                                      "[64]",
                                      "{'a': 1}"};
        const auto check = [&](const char* family, const std::string& key) {
            for (const char* value : absurd) {
                const json patch = object("'" + key + "': " + value);
                CAPTURE(patch.dump());
                json config = small(family);
                config.update(patch);
                CHECK(has(error_of([&] { parse(dir, config); }), "\"" + key + "\" is " + patch[key].dump()));
            }
        };
        for (const char* key : {"n_layer", "n_embd", "n_head", "n_positions", "n_inner", "vocab_size"})
            check("gpt2", key);
        for (const char* family : rotary_families) {
            for (const char* key : {"num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads",
                                    "head_dim", "vocab_size", "intermediate_size", "max_position_embeddings"}) {
                check(family, key);
            }
        }
        CHECK(has(error_with(dir, "llama", "'num_hidden_layers': 10001"), "from 1 to 10000"));
        CHECK(has(error_with(dir, "gpt2", "'n_layer': 10001"), "from 1 to 10000"));
    }

    TEST_CASE("model config: the file itself") {
        FreshDirectory dir;
        const fs::path path = dir.path / "config.json";
        const auto error_of_text = [&](const std::string& text) {
            put(path, text);
            const std::string error = error_of([&] { read_model_config(path); });
            CHECK(has(error, path.string()));
            return error;
        };
        const std::string whole = small("llama", llama3_scaling).dump();
        for (size_t bytes = 0; bytes < whole.size(); ++bytes) CHECK(error_of_text(whole.substr(0, bytes)) != "");
        CHECK(has(error_of_text("[]"), "wanted an object"));
        CHECK(has(error_of_text("{}"), "\"model_type\" is absent"));
        CHECK(has(error_of_text(R"({"model_type":"llama","vocab_size":10,"vocab_size":11})"),
                  "key \"vocab_size\" is given twice, again at column 39"));
        CHECK(has(error_of_text(R"({"a":1} x)"), "line 1: is not valid JSON at column 9: found \"x\""));
        CHECK(has(error_of_text(R"({"a":NaN})"), "not valid JSON"));
        CHECK(has(error_of_text(R"({"a":1e999})"), "not valid JSON"));
        CHECK(has(error_of_text(std::string(1000, '[')), "nested deeper than 32"));
        put(path, "{}");
        fs::resize_file(path, slab::data::kMaxJsonBytes + 1);
        CHECK(has(error_of([&] { read_model_config(path); }), "wanted JSON of at most"));
        CHECK(has(error_of([&] { read_model_config(dir.path / "none.json"); }), "No such file"));
        CHECK(has(error_of([&] { read_model_config(dir.path); }), "is a directory"));
    }

    TEST_CASE("model config: what is written is read back the same") {
        FreshDirectory dir;
        const auto check = [&](const ModelConfig& config) {
            CAPTURE(describe(config));
            put(dir.path / "out.json", model_config_json(config, "bfloat16"));
            const ModelConfig back = read_model_config(dir.path / "out.json");
            CHECK(same(config, back));
            CHECK(back.notices.empty());
            const json out = json::parse(content(dir.path / "out.json"));
            CHECK(out["architectures"].is_array());
            CHECK(out["torch_dtype"] == "bfloat16");
        };
        size_t cases = 0;
        for (const auto& item : fs::directory_iterator("tests/fixtures")) {
            check(read_model_config(item.path() / "base" / "config.json"));
            ++cases;
        }
        CHECK(cases >= 5);
        for (const char* family : {"gpt2", "llama", "mistral", "qwen2", "qwen3"}) {
            const std::string patch = "'bos_token_id': null, 'eos_token_id': 9, 'tie_word_embeddings': true";
            check(parse(dir, small(family, patch)));
        }
        for (const char* family : rotary_families) {
            check(parse(dir,
                        small(family, "'rope_theta': 5e5, 'head_dim': 20, 'rms_norm_eps': 3e-7, " + llama3_scaling)));
        }
        check(parse(dir, small("llama", "'attention_bias': true, 'mlp_bias': true")));
        check(parse(dir, small("qwen3", "'attention_bias': true")));
        check(parse(dir, small("mistral", "'sliding_window': 99")));
        check(parse(dir, small("qwen2",
                               "'use_sliding_window': true, 'sliding_window': 99, 'layer_types': ['sliding_attention', "
                               "'full_attention']")));
        check(parse(dir, small("gpt2", "'n_inner': 77")));
        const std::string text = content(dir.path / "out.json");
        CHECK(has(text, "\"layer_norm_epsilon\": 1e-05"));
    }
}
