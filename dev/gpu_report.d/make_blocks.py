#!/usr/bin/env python3
"""Writes a Llama of a given shape as a GGUF file in the mix of types that llama-quantize calls Q4_K_M.

    make_blocks.py FILE.gguf [--layers 16 --hidden 4096 --intermediate 11008 --heads 32 --kv-heads 32 --vocab 32000]

Blocks are random and repeat: quanta of every value, scales that keep weights near 0.02. For runs whose time and bits are
compared, not their loss. The format: github.com/ggml-org/ggml, docs/gguf.md. Needs numpy.
"""

import argparse
import struct

import numpy as np

F32, F16, Q4_K, Q6_K = 0, 1, 12, 14
BLOCK = {F32: (1, 4), F16: (1, 2), Q4_K: (256, 144), Q6_K: (256, 210)}
DRAWN = 4096  # blocks; every tensor repeats them
ALIGNMENT = 32


def drawn_blocks(kind, rng):
    if kind == F16:
        return (rng.standard_normal(1 << 20, dtype=np.float32) * 0.02).astype(np.float16).tobytes()
    blocks = rng.integers(0, 256, (DRAWN, BLOCK[kind][1]), dtype=np.uint8)
    scales = {Q4_K: ((0, 4e-5), (2, 3e-4)), Q6_K: ((208, 5e-6),)}[kind]
    for offset, scale in scales:
        values = (scale * rng.uniform(0.5, 1, (DRAWN, 1))).astype(np.float16)
        blocks[:, offset : offset + 2] = values.view(np.uint8)
    return blocks.tobytes()


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    for flag, value in (("layers", 16), ("hidden", 4096), ("intermediate", 11008), ("heads", 32), ("vocab", 32000)):
        parser.add_argument(f"--{flag}", type=int, default=value)
    parser.add_argument("--kv-heads", type=int, help="default: as many as heads")
    o = parser.parse_args()
    kv_heads = o.kv_heads or o.heads
    kv = o.hidden // o.heads * kv_heads

    tensors = [("token_embd.weight", F16, (o.vocab, o.hidden)), ("output_norm.weight", F32, (o.hidden,)),
               ("output.weight", F16, (o.vocab, o.hidden))]
    for i in range(o.layers):
        more = Q6_K if i % 2 == 0 else Q4_K  # half of attn_v and ffn_down
        layer = [("attn_norm", F32, (o.hidden,)), ("attn_q", Q4_K, (o.hidden, o.hidden)), ("attn_k", Q4_K, (kv, o.hidden)),
                 ("attn_v", more, (kv, o.hidden)), ("attn_output", Q4_K, (o.hidden, o.hidden)), ("ffn_norm", F32, (o.hidden,)),
                 ("ffn_gate", Q4_K, (o.intermediate, o.hidden)), ("ffn_up", Q4_K, (o.intermediate, o.hidden)),
                 ("ffn_down", more, (o.hidden, o.intermediate))]
        tensors += [(f"blk.{i}.{name}.weight", kind, shape) for name, kind, shape in layer]

    values = [("general.architecture", 8, text("llama"))]
    for key, value in (("block_count", o.layers), ("context_length", 32768), ("embedding_length", o.hidden),
                       ("feed_forward_length", o.intermediate), ("attention.head_count", o.heads),
                       ("attention.head_count_kv", kv_heads)):
        values.append((f"llama.{key}", 4, struct.pack("<I", value)))
    values.append(("llama.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-6)))

    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    for key, kind, value in values:
        header += text(key) + struct.pack("<I", kind) + value
    offset, sizes = 0, []
    for name, kind, shape in tensors:
        elems, size = BLOCK[kind]
        header += text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in reversed(shape))
        header += struct.pack("<IQ", kind, offset)
        sizes.append(int(np.prod(shape)) // elems * size)
        offset += -(-sizes[-1] // ALIGNMENT) * ALIGNMENT
    header += bytes(-len(header) % ALIGNMENT)

    rng = np.random.default_rng(1)
    drawn = {kind: drawn_blocks(kind, rng) for kind in (F16, Q4_K, Q6_K)}
    drawn[F32] = np.ones(1, dtype=np.float32).tobytes()
    with open(o.file, "wb") as file:
        file.write(header)
        for (name, kind, shape), size in zip(tensors, sizes):
            whole = drawn[kind]
            for _ in range(size // len(whole)):
                file.write(whole)
            file.write(whole[: size % len(whole)])
            file.write(bytes(-size % ALIGNMENT))
    print(f"{o.file}: {o.layers} layers, {len(header) + offset:,} bytes")


if __name__ == "__main__":
    main()
