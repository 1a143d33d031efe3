// Real files of config.json and adapter_config.json: those of well-known models and of PEFT versions, unchanged. Each
// key refused here would be a model that a user cannot train.
#include <doctest/doctest.h>

#include <string>

#include "tests/temporary_files.h"
#include "train/files/adapter_config.h"
#include "train/files/model_config_reader.h"
#include "train/spec/lora.h"
#include "train/spec/model_config.h"
#include "train/spec/tensor_table.h"

using namespace slab::train;
using slab::test::error_of;
using slab::test::FreshDirectory;
using slab::test::has;
using slab::test::put;

namespace {

struct RealModel {
    const char* name;
    const char* config;
    Family family;
    int L, C, NH, NKV, HD, I, V;
    double billions;  // of parameters, as the model's card says
    float rope_theta;
    int bos, eos;
};

const RealModel kModels[] = {
    {"gpt2", R"({"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
        "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
        "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null, "summary_first_dropout": 0.1,
        "summary_proj_to_labels": true, "summary_type": "cls_index", "summary_use_proj": true,
        "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}}, "vocab_size": 50257})",
     Family::gpt2, 12, 768, 12, 12, 64, 3072, 50257, 0.124, 10000, 50256, 50256},
    {"gpt2, saved by transformers 5",
     R"({"activation_function": "gelu_new", "add_cross_attention": false, "architectures": ["GPT2LMHeadModel"],
        "attn_pdrop": 0.1, "bos_token_id": 50256, "dtype": "float32", "embd_pdrop": 0.1, "eos_token_id": 50256,
        "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_embd": 768, "n_head": 12,
        "n_inner": null, "n_layer": 12, "n_positions": 1024, "pad_token_id": null, "reorder_and_upcast_attn": false,
        "resid_pdrop": 0.1, "scale_attn_by_inverse_layer_idx": false, "scale_attn_weights": true,
        "summary_activation": null, "summary_first_dropout": 0.1, "summary_proj_to_labels": true,
        "summary_type": "cls_index", "summary_use_proj": true, "tie_word_embeddings": true,
        "transformers_version": "5.17.0", "use_cache": true, "vocab_size": 50257})",
     Family::gpt2, 12, 768, 12, 12, 64, 3072, 50257, 0.124, 10000, 50256, 50256},
    {"Llama-2-7b-hf", R"({"_name_or_path": "meta-llama/Llama-2-7b-hf", "architectures": ["LlamaForCausalLM"],
        "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
        "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "llama", "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 32, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_scaling": null, "tie_word_embeddings": false, "torch_dtype": "float16",
        "transformers_version": "4.31.0.dev0", "use_cache": true, "vocab_size": 32000})",
     Family::llama, 32, 4096, 32, 32, 128, 11008, 32000, 6.738, 10000, 1, 2},
    {"TinyLlama-1.1B-Chat-v1.0", R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "bos_token_id": 1,
        "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
        "intermediate_size": 5632, "max_position_embeddings": 2048, "model_type": "llama", "num_attention_heads": 32,
        "num_hidden_layers": 22, "num_key_value_heads": 4, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_scaling": null, "rope_theta": 10000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "transformers_version": "4.35.0", "use_cache": true, "vocab_size": 32000})",
     Family::llama, 22, 2048, 32, 4, 64, 5632, 32000, 1.1, 10000, 1, 2},
    {"Meta-Llama-3-8B-Instruct", R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
        "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": 128009, "hidden_act": "silu",
        "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 8192,
        "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 500000.0,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.40.0.dev0",
        "use_cache": true, "vocab_size": 128256})",
     Family::llama, 32, 4096, 32, 8, 128, 14336, 128256, 8.03, 500000, 128000, 128009},
    {"Llama-3.2-1B-Instruct", R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
        "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "head_dim": 64,
        "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
        "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32,
        "num_hidden_layers": 16, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
        "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.45.0.dev0",
        "use_cache": true, "vocab_size": 128256})",
     Family::llama, 16, 2048, 32, 8, 64, 8192, 128256, 1.236, 500000, 128000, 128001},
    {"Llama-3.2-1B, saved by transformers 5", R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
        "attention_dropout": 0.0, "bos_token_id": 128000, "dtype": "bfloat16", "eos_token_id": 128001, "head_dim": 64,
        "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
        "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32,
        "num_hidden_layers": 16, "num_key_value_heads": 8, "pad_token_id": null, "pretraining_tp": 1,
        "rms_norm_eps": 1e-05, "rope_parameters": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192, "rope_theta": 500000.0, "rope_type": "llama3"},
        "tie_word_embeddings": true, "transformers_version": "5.17.0", "use_cache": true, "vocab_size": 128256})",
     Family::llama, 16, 2048, 32, 8, 64, 8192, 128256, 1.236, 500000, 128000, 128001},
    {"SmolLM2-135M-Instruct", R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
        "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 576,
        "initializer_range": 0.041666666666666664, "intermediate_size": 1536, "is_llama_config": true,
        "max_position_embeddings": 8192, "mlp_bias": false, "model_type": "llama", "num_attention_heads": 9,
        "num_hidden_layers": 30, "num_key_value_heads": 3, "pad_token_id": 2, "pretraining_tp": 1,
        "rms_norm_eps": 1e-05, "rope_interleaved": false, "rope_scaling": null, "rope_theta": 100000,
        "tie_word_embeddings": true, "torch_dtype": "bfloat16",
        "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
        "transformers_version": "4.42.3", "use_cache": true, "vocab_size": 49152})",
     Family::llama, 30, 576, 9, 3, 64, 1536, 49152, 0.1345, 100000, 1, 2},
    {"Mistral-7B-v0.1", R"({"architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
        "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
        "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.34.0.dev0",
        "use_cache": true, "vocab_size": 32000})",
     Family::mistral, 32, 4096, 32, 8, 128, 14336, 32000, 7.242, 10000, 1, 2},
    {"Mistral-7B-Instruct-v0.3", R"({"architectures": ["MistralForCausalLM"], "attention_dropout": 0.0,
        "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
        "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0, "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "transformers_version": "4.42.0.dev0", "use_cache": true, "vocab_size": 32768})",
     Family::mistral, 32, 4096, 32, 8, 128, 14336, 32768, 7.248, 1000000, 1, 2},
    {"Mistral-7B-v0.3, saved by transformers 5", R"({"architectures": ["MistralForCausalLM"],
        "attention_dropout": 0.0, "bos_token_id": 1, "dtype": "bfloat16", "eos_token_id": 2, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
        "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "pad_token_id": null, "rms_norm_eps": 1e-05,
        "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}, "sliding_window": null,
        "tie_word_embeddings": false, "transformers_version": "5.17.0", "use_cache": true, "vocab_size": 32768})",
     Family::mistral, 32, 4096, 32, 8, 128, 14336, 32768, 7.248, 1000000, 1, 2},
    {"Qwen2-0.5B", R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
        "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02,
        "intermediate_size": 4864, "max_position_embeddings": 131072, "max_window_layers": 24, "model_type": "qwen2",
        "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0, "sliding_window": 131072, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
        "transformers_version": "4.40.1", "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})",
     Family::qwen2, 24, 896, 14, 2, 64, 4864, 151936, 0.494, 1000000, 151643, 151643},
    {"Qwen2.5-7B-Instruct", R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0,
        "bos_token_id": 151643, "eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 3584,
        "initializer_range": 0.02, "intermediate_size": 18944, "max_position_embeddings": 32768,
        "max_window_layers": 28, "model_type": "qwen2", "num_attention_heads": 28, "num_hidden_layers": 28,
        "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 131072,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.43.1", "use_cache": true,
        "use_sliding_window": false, "vocab_size": 152064})",
     Family::qwen2, 28, 3584, 28, 4, 128, 18944, 152064, 7.616, 1000000, 151643, 151645},
    {"Qwen2.5-0.5B with layer_types, as transformers 5 saves them (4 layers of it)",
     R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "dtype": "bfloat16",
        "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02,
        "intermediate_size": 4864, "layer_types": ["full_attention", "full_attention", "full_attention",
        "full_attention"], "max_position_embeddings": 32768, "max_window_layers": 24, "model_type": "qwen2",
        "num_attention_heads": 14, "num_hidden_layers": 4, "num_key_value_heads": 2, "pad_token_id": null,
        "rms_norm_eps": 1e-06, "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
        "sliding_window": null, "tie_word_embeddings": true, "transformers_version": "5.17.0", "use_cache": true,
        "use_sliding_window": false, "vocab_size": 151936})",
     Family::qwen2, 4, 896, 14, 2, 64, 4864, 151936, 0.196, 1000000, 151643, 151643},
    {"Qwen3-0.6B", R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
        "initializer_range": 0.02, "intermediate_size": 3072, "max_position_embeddings": 40960,
        "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000,
        "sliding_window": null, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
        "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})",
     Family::qwen3, 28, 1024, 16, 8, 128, 3072, 151936, 0.596, 1000000, 151643, 151645},
};

struct RealAdapter {
    const char* name;
    const char* config;
    int r;
    float alpha, dropout, scale;
    size_t targets;
};

const RealAdapter kAdapters[] = {
    {"PEFT 0.2: alpaca-lora",
     R"({"base_model_name_or_path": "decapoda-research/llama-7b-hf", "bias": "none", "enable_lora": null,
        "fan_in_fan_out": false, "inference_mode": true, "lora_alpha": 16, "lora_dropout": 0.05,
        "merge_weights": false, "modules_to_save": null, "peft_type": "LORA", "r": 16,
        "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"], "task_type": "CAUSAL_LM"})",
     16, 16, 0.05f, 1, 4},
    {"PEFT 0.4", R"({"auto_mapping": null, "base_model_name_or_path": "meta-llama/Llama-2-7b-hf", "bias": "none",
        "fan_in_fan_out": false, "inference_mode": true, "init_lora_weights": true, "layers_pattern": null,
        "layers_to_transform": null, "lora_alpha": 16.0, "lora_dropout": 0.1, "modules_to_save": null,
        "peft_type": "LORA", "r": 64, "revision": null, "target_modules": ["q_proj", "v_proj"],
        "task_type": "CAUSAL_LM"})",
     64, 16, 0.1f, 0.25f, 2},
    {"PEFT 0.7", R"({"alpha_pattern": {}, "auto_mapping": null, "base_model_name_or_path": "mistralai/Mistral-7B-v0.1",
        "bias": "none", "fan_in_fan_out": false, "inference_mode": true, "init_lora_weights": true,
        "layers_pattern": null, "layers_to_transform": null, "loftq_config": {}, "lora_alpha": 32,
        "lora_dropout": 0.05, "megatron_config": null, "megatron_core": "megatron.core", "modules_to_save": null,
        "peft_type": "LORA", "r": 8, "rank_pattern": {}, "revision": null,
        "target_modules": ["gate_proj", "up_proj", "down_proj"], "task_type": "CAUSAL_LM", "use_rslora": false})",
     8, 32, 0.05f, 4, 3},
    {"PEFT 0.11", R"({"alpha_pattern": {}, "auto_mapping": null, "base_model_name_or_path": "Qwen/Qwen2-0.5B",
        "bias": "none", "fan_in_fan_out": null, "inference_mode": true, "init_lora_weights": true,
        "layer_replication": null, "layers_pattern": null, "layers_to_transform": null, "loftq_config": {},
        "lora_alpha": 16, "lora_dropout": 0, "megatron_config": null, "megatron_core": "megatron.core",
        "modules_to_save": null, "peft_type": "LORA", "r": 16, "rank_pattern": {}, "revision": null,
        "target_modules": ["k_proj", "q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        "task_type": null, "use_dora": false, "use_rslora": true})",
     16, 16, 0, 4, 7},
    {"PEFT 0.15", R"({"alpha_pattern": {}, "auto_mapping": {"base_model_class": "LlamaForCausalLM",
        "parent_library": "transformers.models.llama.modeling_llama"}, "base_model_name_or_path": "/data/base",
        "bias": "none", "corda_config": null, "eva_config": {"rho": 2.0, "tau": 0.99, "use_label_mask": true,
        "label_mask_value": -100, "whiten": false, "adjust_scaling_factors": true}, "exclude_modules": null,
        "fan_in_fan_out": false, "inference_mode": true, "init_lora_weights": "eva", "layer_replication": null,
        "layers_pattern": null, "layers_to_transform": null, "loftq_config": {}, "lora_alpha": 1, "lora_bias": false,
        "lora_dropout": 0.0, "megatron_config": null, "megatron_core": "megatron.core", "modules_to_save": null,
        "peft_type": "LORA", "r": 4, "rank_pattern": {}, "revision": null, "target_modules": ["v_proj"],
        "task_type": "CAUSAL_LM", "trainable_token_indices": null, "use_dora": false, "use_rslora": false})",
     4, 1, 0, 0.25f, 1},
    {"PEFT 0.21", R"({"alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null, "auto_mapping": null,
        "base_model_name_or_path": "HuggingFaceTB/SmolLM2-135M", "bias": "none", "corda_config": null,
        "ensure_weight_tying": false, "eva_config": null, "exclude_modules": null, "fan_in_fan_out": false,
        "inference_mode": true, "init_lora_weights": true, "kasa_config": null, "layer_replication": null,
        "layers_pattern": "layers", "layers_to_transform": [0, 1], "loftq_config": {}, "lora_alpha": 8,
        "lora_bias": false, "lora_dropout": 0.0, "lora_ga_config": null, "megatron_config": null,
        "megatron_core": "megatron.core", "modules_to_save": null, "monteclora_config": null, "peft_type": "LORA",
        "peft_version": "0.21.0", "qalora_group_size": 16, "r": 8, "rank_pattern": {}, "revision": "main",
        "target_modules": ["self_attn.q_proj", "mlp.up_proj"], "target_parameters": null, "task_type": "CAUSAL_LM",
        "trainable_token_indices": null, "use_bdlora": null, "use_dora": false, "use_qalora": false,
        "use_rslora": false, "velora_config": null})",
     8, 8, 0, 1, 2},
};

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("real files: config.json of well-known models is read as it is") {
        const FreshDirectory dir;
        for (const RealModel& real : kModels) {
            CAPTURE(real.name);
            put(dir.path / "config.json", real.config);
            ModelConfig c;
            REQUIRE(error_of([&] { c = read_model_config(dir.path / "config.json"); }) == "");
            CHECK(c.family == real.family);
            CHECK(c.L == real.L);
            CHECK(c.C == real.C);
            CHECK(c.NH == real.NH);
            CHECK(c.NKV == real.NKV);
            CHECK(c.HD == real.HD);
            CHECK(c.I == real.I);
            CHECK(c.V == real.V);
            CHECK(c.rope_theta == real.rope_theta);
            CHECK(c.bos_token == real.bos);
            CHECK(c.eos_token == real.eos);
            CHECK(static_cast<double>(parameter_count(c)) == doctest::Approx(real.billions * 1e9).epsilon(0.005));
            CHECK(c.rope_scaling.llama3 == has(real.config, "\"llama3\""));
        }
    }

    TEST_CASE("real files: a window bites where the model has one, and only there") {
        const FreshDirectory dir;
        for (const RealModel& real : kModels) {
            CAPTURE(real.name);
            put(dir.path / "config.json", real.config);
            const ModelConfig c = read_model_config(dir.path / "config.json");
            const std::string error = error_of([&] { check_sequence_len(c, 8192); });
            CHECK(has(error, "sliding_window") == (std::string(real.name) == "Mistral-7B-v0.1"));
            CHECK((error == "") == (c.family != Family::gpt2 && !has(error, "sliding_window")));
        }
    }

    TEST_CASE("real files: adapter_config.json of several PEFT versions is read as it is") {
        const FreshDirectory dir;
        put(dir.path / "config.json", kModels[2].config);
        const ModelConfig model = read_model_config(dir.path / "config.json");
        for (const RealAdapter& real : kAdapters) {
            CAPTURE(real.name);
            put(dir.path / "adapter_config.json", real.config);
            LoraSettings lora;
            REQUIRE(error_of([&] { lora = read_adapter_config(dir.path / "adapter_config.json", model); }) == "");
            CHECK(lora.r == real.r);
            CHECK(lora.alpha == real.alpha);
            CHECK(lora.dropout == real.dropout);
            CHECK(lora.scale() == real.scale);
            CHECK(adapted_modules(model, lora, 1).size() == real.targets);
        }
    }

    TEST_CASE("real files: a GPT-2 adapter says fan_in_fan_out for its Conv1D layers") {
        const FreshDirectory dir;
        put(dir.path / "config.json", kModels[0].config);
        const ModelConfig model = read_model_config(dir.path / "config.json");
        put(dir.path / "adapter_config.json",
            R"({"base_model_name_or_path": "gpt2", "bias": "none", "fan_in_fan_out": true, "inference_mode": true,
                "init_lora_weights": true, "layers_pattern": null, "layers_to_transform": null, "lora_alpha": 32,
                "lora_dropout": 0.1, "modules_to_save": null, "peft_type": "LORA", "r": 8, "revision": null,
                "target_modules": ["c_attn"], "task_type": "CAUSAL_LM"})");
        const LoraSettings lora = read_adapter_config(dir.path / "adapter_config.json", model);
        CHECK(adapted_modules(model, lora, 11).size() == 1);
        CHECK(lora.scale() == 4);
    }
}
