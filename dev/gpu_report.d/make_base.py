#!/usr/bin/env python3
"""Writes a Llama of a given shape with random bf16 weights as a Hugging Face directory, one shard a layer.

    make_base.py DIRECTORY [--layers 32 --hidden 4096 --intermediate 11008 --heads 32 --kv-heads 32 --vocab 32000 --tied]

For timing what does not depend on the weights' values. All matrices repeat the same drawn numbers, because drawing
billions of them would take longer than the measurement. Needs numpy.
"""

import argparse
import json
import os

import numpy as np

DRAWN = 1 << 20  # numbers; every matrix repeats them


def shape_of_command_line():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    for flag, value in (("layers", 32), ("hidden", 4096), ("intermediate", 11008), ("heads", 32), ("vocab", 32000)):
        parser.add_argument(f"--{flag}", type=int, default=value)
    parser.add_argument("--kv-heads", type=int, help="default: as many as heads")
    parser.add_argument("--tied", action="store_true", help="the head is the embedding")
    arguments = parser.parse_args()
    arguments.kv_heads = arguments.kv_heads or arguments.heads
    return arguments


def bf16(values):
    """The upper halves of float32 numbers, which is bf16 rounded towards zero."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def write_shard(path, shapes, matrix_numbers):
    """shapes: name -> shape. One-dimensional tensors are ones, as norms want them."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes.items():
        size_bytes = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size_bytes]}
        offset += size_bytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in shapes.values():
            numbers = bf16(np.ones(1)) if len(shape) == 1 else matrix_numbers
            elems = int(np.prod(shape))
            whole = numbers.tobytes()
            for _ in range(elems // numbers.size):
                file.write(whole)
            file.write(whole[: 2 * (elems % numbers.size)])
    return offset


def main():
    o = shape_of_command_line()
    os.makedirs(o.directory, exist_ok=True)
    head_dim = o.hidden // o.heads
    kv = o.kv_heads * head_dim
    layer = {
        "input_layernorm.weight": (o.hidden,),
        "post_attention_layernorm.weight": (o.hidden,),
        "mlp.gate_proj.weight": (o.intermediate, o.hidden),
        "mlp.up_proj.weight": (o.intermediate, o.hidden),
        "mlp.down_proj.weight": (o.hidden, o.intermediate),
        "self_attn.q_proj.weight": (o.hidden, o.hidden),
        "self_attn.k_proj.weight": (kv, o.hidden),
        "self_attn.v_proj.weight": (kv, o.hidden),
        "self_attn.o_proj.weight": (o.hidden, o.hidden),
    }
    outer = {"model.embed_tokens.weight": (o.vocab, o.hidden), "model.norm.weight": (o.hidden,)}
    if not o.tied:
        outer["lm_head.weight"] = (o.vocab, o.hidden)
    shards = [{f"model.layers.{i}.{key}": value for key, value in layer.items()} for i in range(o.layers)] + [outer]
    matrix_numbers = bf16(np.random.default_rng(1).standard_normal(DRAWN, dtype=np.float32) * 0.02)
    where, total = {}, 0
    for i, shard in enumerate(shards):
        name = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        total += write_shard(os.path.join(o.directory, name), shard, matrix_numbers)
        where.update({key: name for key in shard})
    with open(os.path.join(o.directory, "model.safetensors.index.json"), "w") as file:
        json.dump({"metadata": {"total_size": total}, "weight_map": where}, file)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": o.hidden,
        "intermediate_size": o.intermediate,
        "num_hidden_layers": o.layers,
        "num_attention_heads": o.heads,
        "num_key_value_heads": o.kv_heads,
        "head_dim": head_dim,
        "vocab_size": o.vocab,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": o.tied,
        "dtype": "bfloat16",
    }
    with open(os.path.join(o.directory, "config.json"), "w") as file:
        json.dump(config, file)
    print(f"{o.directory}: {o.layers} layers, {total:,} bytes")


if __name__ == "__main__":
    main()
