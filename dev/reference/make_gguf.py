#!/usr/bin/env python3
"""Makes the GGUF files of tests/gguf with the `gguf` package, and what its own reading of them gives.

    make_gguf.py --out tests/gguf      writes all of it; a rerun gives the same files

    quants.gguf        for every type NAME a tensor "NAME" of random blocks and its values, "NAME.values" in F32
    ARCH/model.gguf    a tiny model; beside it what the Hugging Face side has: config.json, model.safetensors in float32

Names come from gguf's own table, the reordering of q and k for the llama architecture is that of llama.cpp's
conversion. Each model is then loaded by transformers from the GGUF file, which must give the same weights.
"""

import argparse
import os
import shutil
import zlib

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import save_file

Q = gguf.GGMLQuantizationType
TYPES = [Q.F32, Q.F16, Q.BF16, Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q4_K, Q.Q5_K, Q.Q6_K]
# Where a type's blocks hold scales in F16: random bytes would make infinities of them.
SCALES = {Q.Q8_0: [0], Q.Q4_0: [0], Q.Q4_1: [0, 2], Q.Q5_0: [0], Q.Q5_1: [0, 2], Q.Q4_K: [0, 2], Q.Q5_K: [0, 2], Q.Q6_K: [208]}

LLAMA = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=24,
             vocab_size=20, max_position_embeddings=64, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2,
             head_dim=4, tie_word_embeddings=False)
GPT2 = dict(n_embd=16, n_layer=2, n_head=2, n_inner=24, vocab_size=20, n_positions=24, bos_token_id=3, eos_token_id=3)
LLAMA3_ROPE = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=128)
# name: transformers' family, sizes, the types of the GGUF's matrices in turn
MODELS = {
    "llama": ("llama", LLAMA, [Q.F32]),
    "llama3": ("llama", {**LLAMA, "head_dim": 8, "rope_parameters": LLAMA3_ROPE, "tie_word_embeddings": True, "attention_bias": True,
                         "mlp_bias": True}, [Q.F32]),
    "llama_mixed": ("llama", {**LLAMA, "hidden_size": 32, "head_dim": 8, "intermediate_size": 32}, [Q.Q8_0, Q.Q4_1, Q.F16, Q.Q4_0, Q.BF16]),
    "qwen2": ("qwen2", {k: v for k, v in LLAMA.items() if k != "head_dim"}, [Q.F32]),
    "qwen3": ("qwen3", {**LLAMA, "head_dim": 6, "tie_word_embeddings": True}, [Q.F32]),
    "gpt2": ("gpt2", GPT2, [Q.F32]),
}


def rng_of(name):
    return np.random.default_rng(zlib.crc32(name.encode()))


def random_blocks(kind, rows, cols, rng):
    """Bytes [rows, bytes of a row]: every bit pattern of the quanta, scales small enough to be finite."""
    if kind in (Q.F32, Q.F16, Q.BF16):
        return gguf.quants.quantize(rng.standard_normal((rows, cols), dtype=np.float32), kind)
    block_elems, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows * cols // block_elems, block_bytes), dtype=np.uint8)
    for offset in SCALES[kind]:
        scale = rng.standard_normal((len(blocks), 1)).astype(np.float16)
        scale[0] = np.float16(6e-8)  # the smallest there is
        blocks[:, offset : offset + 2] = scale.view(np.uint8)
    return blocks.reshape(rows, -1)


def write_quants(path):
    writer = gguf.GGUFWriter(path, "llama")
    for kind in TYPES:
        raw = random_blocks(kind, 2, 256, rng_of(kind.name))
        values = gguf.quants.dequantize(raw, kind).reshape(2, 256)
        plain = kind in (Q.F32, Q.F16)  # these are given to the writer as arrays of that type, the others as bytes
        writer.add_tensor(kind.name, raw, raw_dtype=None if plain else kind)
        writer.add_tensor(kind.name + ".values", values.astype(np.float32))
    write(writer)


def write(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def build(family, sizes, rng):
    config = transformers.AutoConfig.for_model(family, **sizes, pad_token_id=None)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            around = 0.0 if p.dim() > 1 or name.endswith(".bias") else 1.0
            p.copy_(torch.from_numpy(rng.standard_normal(tuple(p.shape)).astype(np.float32) * 0.1 + around))
    return model


def reorder(t, heads):
    return t.reshape(heads, 2, t.shape[0] // heads // 2, *t.shape[1:]).swapaxes(1, 2).reshape(t.shape)


def restore(t, heads):
    return t.reshape(heads, t.shape[0] // heads // 2, 2, *t.shape[1:]).swapaxes(1, 2).reshape(t.shape)


def add_metadata(writer, config, family):
    gpt2 = family == "gpt2"
    writer.add_name("a tiny model for tests")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.n_inner if gpt2 else config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    if gpt2:
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    else:
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if family == "llama":
        writer.add_vocab_size(config.vocab_size)
        writer.add_rope_dimension_count(config.head_dim)
    if getattr(config, "head_dim", 0) * config.num_attention_heads not in (0, config.hidden_size):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{i}" for i in range(config.vocab_size)])
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)


def rope_factors(config):
    """As convert_hf_to_gguf.py has them: plain frequencies divided by transformers' scaled ones."""
    kind = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"]
    scaled, _ = kind(config, device="cpu")
    theta = config.rope_parameters["rope_theta"]
    plain = 1.0 / theta ** (torch.arange(0, config.head_dim, 2).float() / config.head_dim)
    return (plain / scaled).numpy().astype(np.float32)


def write_model(name, out):
    family, sizes, kinds = MODELS[name]
    model = build(family, sizes, rng_of(name))
    config, where = model.config, os.path.join(out, name)
    os.makedirs(where)
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, family.upper()), config.num_hidden_layers)
    writer = gguf.GGUFWriter(os.path.join(where, "model.gguf"), family)
    add_metadata(writer, config, family)
    kept, matrices = {}, 0
    for key, p in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = p.numpy()
        theirs = values
        if key.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
            theirs = theirs.T
        heads = {"q_proj": config.num_attention_heads, "k_proj": getattr(config, "num_key_value_heads", 0)}
        heads = heads.get(key.split(".")[-2], 0) if family == "llama" else 0
        if heads:
            theirs = reorder(theirs, heads)
        kind = Q.F32
        if theirs.ndim == 2:
            kind = kinds[matrices % len(kinds)]
            matrices += 1
        raw = gguf.quants.quantize(np.ascontiguousarray(theirs), kind)
        plain = kind in (Q.F32, Q.F16)
        writer.add_tensor(names.get_name(key, try_suffixes=(".weight", ".bias")), raw, raw_dtype=None if plain else kind)
        if kind != Q.F32:
            theirs = gguf.quants.dequantize(raw, kind)
            values = restore(theirs, heads) if heads else theirs
        kept[key] = torch.from_numpy(np.array(values, dtype=np.float32, order="C"))
    if "rope_type" in getattr(config, "rope_parameters", {}) and config.rope_parameters["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", rope_factors(config))
    write(writer)
    config.dtype = "float32"
    config.save_pretrained(where)
    save_file(kept, os.path.join(where, "model.safetensors"), metadata={"format": "pt"})
    check(name, where, kept)


def check(name, where, kept):
    """transformers' own reading of the GGUF file gives the same weights; llama's biases it does not look for."""
    theirs = transformers.AutoModelForCausalLM.from_pretrained(where, gguf_file="model.gguf").state_dict()
    compared = [key for key in kept if key in theirs or not (name.startswith("llama") and key.endswith(".bias"))]
    for key in compared:
        if not torch.equal(theirs[key], kept[key]):
            raise SystemExit(f"{name}: transformers reads {key} otherwise")
    print(f"{name:12} {len(compared)} of {len(kept)} tensors are as transformers reads them")


def main():
    parser = argparse.ArgumentParser(description="Make the GGUF files that the tests read.")
    parser.add_argument("--out", metavar="DIR", required=True, help="where to write them; replaced when it exists")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    shutil.rmtree(args.out, ignore_errors=True)
    os.makedirs(args.out)
    write_quants(os.path.join(args.out, "quants.gguf"))
    for name in MODELS:
        write_model(name, args.out)


if __name__ == "__main__":
    main()
