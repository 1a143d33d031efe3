#!/usr/bin/env python3
"""Writes a Llama of the benchmark's shape with random bf16 weights as a Hugging Face directory, one shard a layer.

make_base.py DIRECTORY [LAYERS]. For timing how long a model takes from its files to page-locked memory. All layers get
the same values: what is in them does not matter, and drawing them would take longer than the measurement.
"""

import json
import os
import sys

import torch
from safetensors.torch import save_file

HIDDEN, INTERMEDIATE, HEADS, VOCAB = 4096, 11008, 32, 32000


def main():
    directory = sys.argv[1]
    layers = int(sys.argv[2]) if len(sys.argv) > 2 else 32
    os.makedirs(directory, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def matrix(rows, cols):
        return (torch.randn(rows, cols, device=device) * 0.02).to(torch.bfloat16).cpu()

    layer = {
        "input_layernorm.weight": torch.ones(HIDDEN, dtype=torch.bfloat16),
        "post_attention_layernorm.weight": torch.ones(HIDDEN, dtype=torch.bfloat16),
        "mlp.gate_proj.weight": matrix(INTERMEDIATE, HIDDEN),
        "mlp.up_proj.weight": matrix(INTERMEDIATE, HIDDEN),
        "mlp.down_proj.weight": matrix(HIDDEN, INTERMEDIATE),
    }
    for name in ("q", "k", "v", "o"):
        layer[f"self_attn.{name}_proj.weight"] = matrix(HIDDEN, HIDDEN)
    outer = {
        "model.embed_tokens.weight": matrix(VOCAB, HIDDEN),
        "model.norm.weight": torch.ones(HIDDEN, dtype=torch.bfloat16),
        "lm_head.weight": matrix(VOCAB, HIDDEN),
    }
    shards = [{f"model.layers.{i}.{key}": value for key, value in layer.items()} for i in range(layers)] + [outer]
    where = {}
    for i, shard in enumerate(shards):
        name = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, os.path.join(directory, name), metadata={"format": "pt"})
        where.update({key: name for key in shard})
    total = sum(t.numel() * t.element_size() for shard in shards for t in shard.values())
    with open(os.path.join(directory, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": where}, f)
    with open(os.path.join(directory, "config.json"), "w") as f:
        json.dump(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "hidden_size": HIDDEN,
                "intermediate_size": INTERMEDIATE,
                "num_hidden_layers": layers,
                "num_attention_heads": HEADS,
                "num_key_value_heads": HEADS,
                "head_dim": HIDDEN // HEADS,
                "vocab_size": VOCAB,
                "max_position_embeddings": 32768,
                "rms_norm_eps": 1e-6,
                "rope_theta": 10000.0,
                "hidden_act": "silu",
                "tie_word_embeddings": False,
                "dtype": "bfloat16",
            },
            f,
        )
    print(f"{directory}: {layers} layers, {total:,} bytes")


if __name__ == "__main__":
    main()
