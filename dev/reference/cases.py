"""The cases, as plain data. A comment beside each says what it adds.

    model      a config class's arguments, with the family under "family"
    batch
    lora       absent: all or part of the model is trained in full, see "freeze_layers"
    optimizer
    weights    how the base is stored
    config     how config.json is spelled
    seed       another draw, where rounding spoilt the first

All but the first two are optional; make_cases.py has the defaults. Sizes stay tiny: the files are committed.
"""

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
LINEAR = ATTENTION + MLP
GPT2_LINEAR = ["c_attn", "c_proj", "c_fc"]


def llama_like(family, **changes):
    sizes = dict(
        vocab_size=131,
        hidden_size=32,
        intermediate_size=56,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=False,
    )
    return {"family": family, **sizes, **changes}


def gpt2(**changes):
    sizes = dict(vocab_size=131, n_positions=48, n_embd=32, n_layer=2, n_head=4)
    no_dropout = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return {"family": "gpt2", **sizes, **no_dropout, **changes}


LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,  # with head size 16: frequencies kept, blended and divided all occur
}
DECAY = {"weight_decay": 0.1}  # large enough that a tensor wrongly decayed, or wrongly not, fails

CASES = {
    # Families and attention shapes
    "mistral": {  # sliding_window null, grouped-query attention
        "model": llama_like("mistral", num_hidden_layers=3, sliding_window=None),
        "lora": {"target_modules": LINEAR, "r": 4, "lora_alpha": 8},
        "batch": {"accum": 2, "B": 2, "T": 24},
    },
    "mistral_window": {  # a window that T never reaches, head size apart from hidden/heads, one key/value head
        "model": llama_like(
            "mistral",
            sliding_window=40,
            head_dim=12,
            num_key_value_heads=1,
            rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        ),
        "lora": {"target_modules": ATTENTION, "r": 4, "lora_alpha": 6},
        "batch": {"accum": 1, "B": 2, "T": 40},
        "config": {"spelling": "transformers4", "drop": ["rope_scaling"]},
    },
    "llama_odd": {  # no size is a multiple of 8, three queries share one key/value head
        "model": llama_like(
            "llama",
            vocab_size=251,
            hidden_size=60,
            intermediate_size=101,
            num_attention_heads=3,
            num_key_value_heads=1,
            head_dim=20,
            rms_norm_eps=1e-4,
        ),
        "lora": {"target_modules": LINEAR, "r": 3, "lora_alpha": 7},
        "batch": {"accum": 1, "B": 3, "T": 37},
    },
    "llama_8layers": {  # deep enough for every slot count from 2 to 8
        "seed": 1,
        "model": llama_like("llama", num_hidden_layers=8, hidden_size=24, intermediate_size=40, vocab_size=67),
        "lora": {"target_modules": LINEAR, "r": 2, "lora_alpha": 4},
        "batch": {"accum": 2, "B": 1, "T": 20},
    },
    "llama_biases": {  # attention and MLP biases, none of them zero; no grouping
        "seed": 1,
        "model": llama_like("llama", attention_bias=True, mlp_bias=True, num_key_value_heads=4),
        "lora": {"target_modules": LINEAR, "r": 4, "lora_alpha": 8},
        "batch": {"accum": 1, "B": 2, "T": 24},
    },
    "qwen2_untied": {  # a head of its own, odd sizes
        "model": llama_like("qwen2", vocab_size=129, hidden_size=36, intermediate_size=67, num_attention_heads=6,
                            num_key_value_heads=3, use_sliding_window=False, rms_norm_eps=1e-4,
                            rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
        "lora": {"target_modules": LINEAR, "r": 3, "lora_alpha": 6},
        "batch": {"accum": 2, "B": 2, "T": 19},
    },
    "qwen3_untied": {  # a head of its own, head size apart from hidden/heads, odd sizes
        "model": llama_like("qwen3", vocab_size=137, hidden_size=38, intermediate_size=55, num_attention_heads=3,
                            num_key_value_heads=1, head_dim=14, use_sliding_window=False, rms_norm_eps=1e-4),
        "lora": {"target_modules": LINEAR, "r": 5, "lora_alpha": 9},
        "batch": {"accum": 2, "B": 2, "T": 23},
    },
    "llama_head128": {  # a head size and rows for which GPUs have tile shapes of their own
        "seed": 1,
        "model": llama_like("llama", vocab_size=53, hidden_size=40, intermediate_size=72, num_attention_heads=2,
                            num_key_value_heads=1, head_dim=128),
        "lora": {"target_modules": LINEAR, "r": 4, "lora_alpha": 8},
        "batch": {"accum": 1, "B": 2, "T": 131},
    },
    "qwen3_head64": {  # the same, with three queries a key/value head and norms on both
        "model": llama_like("qwen3", vocab_size=59, hidden_size=40, intermediate_size=56, num_attention_heads=3,
                            num_key_value_heads=1, head_dim=64, use_sliding_window=False),
        "lora": {"target_modules": ATTENTION, "r": 4, "lora_alpha": 8},
        "batch": {"accum": 2, "B": 1, "T": 197},
    },
    # How weights and config are stored
    "llama_bf16_shards": {  # BF16 in shards with an index
        "seed": 1,
        "model": llama_like("llama", num_hidden_layers=3, tie_word_embeddings=True),
        "lora": {"target_modules": LINEAR, "r": 4, "lora_alpha": 8},
        "batch": {"accum": 1, "B": 2, "T": 24},
        "weights": {"dtype": "bfloat16", "max_shard_size": "16KB"},
    },
    "llama_f16": {  # F16; and a config.json that leaves every default unsaid
        "seed": 1,
        "model": llama_like("llama", num_key_value_heads=4),
        "lora": {"target_modules": LINEAR, "r": 4, "lora_alpha": 8},
        "batch": {"accum": 1, "B": 2, "T": 24},
        "weights": {"dtype": "float16"},
        "config": {
            "drop": ["attention_bias", "attention_dropout", "head_dim", "mlp_bias", "num_key_value_heads",
                     "pretraining_tp", "rms_norm_eps", "rope_parameters", "tie_word_embeddings", "use_cache"]
        },
    },
    "llama_tf4": {  # transformers 4's config.json: rope_theta + rope_scaling, torch_dtype, no head_dim
        "model": llama_like("llama", hidden_size=64, rope_parameters=LLAMA3_ROPE, tie_word_embeddings=True),
        "lora": {"target_modules": LINEAR, "r": 4, "lora_alpha": 8},
        "batch": {"accum": 1, "B": 1, "T": 96},
        "weights": {"dtype": "bfloat16"},
        "config": {"spelling": "transformers4"},
    },
    "llama_tf4_type": {  # the older "type" for "rope_type"
        "model": llama_like("llama", num_attention_heads=2, num_key_value_heads=1, rope_parameters=LLAMA3_ROPE),
        "lora": {"target_modules": ["q_proj", "k_proj"], "r": 4, "lora_alpha": 8},
        "batch": {"accum": 1, "B": 1, "T": 96},
        "config": {"spelling": "transformers4", "rope_type_key": "type"},
    },
    "gpt2_noprefix": {  # keys and config.json as in the checkpoint first published: mask buffers, dropout, no dtype
        "model": gpt2(n_layer=3, resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1),
        "lora": {"target_modules": GPT2_LINEAR, "r": 4, "lora_alpha": 8},
        "batch": {"accum": 1, "B": 2, "T": 24},
        "weights": {"gpt2_prefix": "", "mask_buffers": "float32"},
        "config": {
            "spelling": "transformers4",
            "drop": ["torch_dtype"],
            "set": {"n_ctx": 48, "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}},
        },
    },
    "gpt2_buffers": {  # prefixed keys with both mask buffers, one boolean, one a scalar; defaults unsaid
        "model": gpt2(),
        "lora": {"target_modules": GPT2_LINEAR, "r": 4, "lora_alpha": 8},
        "batch": {"accum": 2, "B": 1, "T": 24},
        "weights": {"mask_buffers": "bool", "masked_bias": True},
        "config": {
            "drop": ["activation_function", "layer_norm_epsilon", "n_inner", "scale_attn_weights",
                     "tie_word_embeddings"]
        },
    },
    "gpt2_inner": {  # MLP width not 4C, odd sizes
        "model": gpt2(n_inner=101, n_embd=30, n_head=3, vocab_size=133, layer_norm_epsilon=1e-4),
        "lora": {"target_modules": GPT2_LINEAR, "r": 3, "lora_alpha": 6},
        "batch": {"accum": 1, "B": 3, "T": 29},
    },
    # Adapters
    "llama_rslora": {
        "model": llama_like("llama"),
        "lora": {"target_modules": LINEAR, "r": 6, "lora_alpha": 5, "use_rslora": True},
        "batch": {"accum": 1, "B": 2, "T": 24},
    },
    "llama_qv": {
        "model": llama_like("llama", num_hidden_layers=3),
        "lora": {"target_modules": ["q_proj", "v_proj"], "r": 5, "lora_alpha": 16},
        "batch": {"accum": 1, "B": 2, "T": 24},
    },
    "llama_down": {  # one module, and not of the attention
        "model": llama_like("llama", num_hidden_layers=3),
        "lora": {"target_modules": ["down_proj"], "r": 3, "lora_alpha": 3},
        "batch": {"accum": 1, "B": 2, "T": 24},
    },
    "gpt2_c_attn": {  # the usual GPT-2 adapter: the fused projection alone, fan_in_fan_out
        "model": gpt2(n_layer=3),
        "lora": {"target_modules": ["c_attn"], "r": 4, "lora_alpha": 8},
        "batch": {"accum": 1, "B": 2, "T": 24},
    },
    # Steps
    "llama_accum3": {  # every step has one micro-batch without a target, in each place in turn; no decay
        "model": llama_like("llama"),
        "lora": {"target_modules": LINEAR, "r": 4, "lora_alpha": 8},
        "batch": {"accum": 3, "B": 2, "T": 17, "masked_micro": True},
        "optimizer": {"weight_decay": 0.0},
    },
    "llama_clip": {  # every step is clipped to less than a tenth; strong decay
        "model": llama_like("llama"),
        "lora": {"target_modules": LINEAR, "r": 4, "lora_alpha": 8},
        "batch": {"accum": 2, "B": 1, "T": 24},
        "optimizer": {"max_grad_norm": 0.05, "lr": 0.01, "eps": 1e-4, **DECAY},
    },
    # Trained in full, without an adapter
    "full_llama": {  # tied head: two gradients meet in one tensor
        "model": llama_like("llama", vocab_size=83, tie_word_embeddings=True),
        "batch": {"accum": 2, "B": 2, "T": 20},
        "optimizer": DECAY,
    },
    "full_llama_biases": {  # every linear has a bias, a head of its own
        "seed": 1,
        "model": llama_like("llama", vocab_size=83, hidden_size=24, intermediate_size=40, attention_bias=True,
                            mlp_bias=True),
        "batch": {"accum": 1, "B": 2, "T": 20},
        "optimizer": DECAY,
    },
    "full_gpt2": {  # token and position embeddings too
        "model": gpt2(vocab_size=83, n_positions=24, n_embd=24, n_head=3),
        "batch": {"accum": 2, "B": 2, "T": 20},
        "optimizer": {"eps": 1e-5, **DECAY},
    },
    "full_gpt2_freeze2": {  # the first two layers, embeddings and tied head frozen
        "model": gpt2(vocab_size=83, n_positions=24, n_embd=24, n_head=3, n_layer=4),
        "freeze_layers": 2,
        "batch": {"accum": 1, "B": 2, "T": 20},
        "optimizer": {"eps": 1e-5, **DECAY},
    },
    "full_qwen3_freeze1": {  # q/k norms trained; the untied head trains, the embedding does not
        "model": llama_like("qwen3", vocab_size=83, num_hidden_layers=3, head_dim=10, use_sliding_window=False),
        "freeze_layers": 1,
        "batch": {"accum": 1, "B": 2, "T": 20},
        "optimizer": DECAY,
    },
}
