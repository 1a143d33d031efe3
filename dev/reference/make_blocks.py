#!/usr/bin/env python3
"""Makes tests/blocks: encoded weights and their values, by the `gguf` package and by bitsandbytes' rules for NF4.

    make_blocks.py --out tests/blocks      writes all of it; a rerun gives the same files

    NAME.blocks, NAME.values     blocks whose quanta take every value, with all kinds of finite scales; in float32
    weights.values               float32: Gaussian, heavy tails, halves, zeros, the smallest and the largest
    q8_0.encoded, nf4.encoded    the same weights encoded

NF4's code values are bitsandbytes'; its encoder (backends/default/ops.py) counts the midpoints that are below
x * (1 / absmax), in float32, as this script does. With --bitsandbytes the library itself decodes the blocks, and the
script fails where the bits differ. The wheel's CPU library needs no torch:

    pip download --no-deps bitsandbytes==0.50.2 && unzip bitsandbytes-*.whl bitsandbytes/libbitsandbytes_cpu.so
"""

import argparse
import ctypes
import os
import zlib

import gguf
import numpy as np

Q = gguf.GGMLQuantizationType
# Where a block holds scales in F16.
SCALES = {Q.Q8_0: [0], Q.Q4_0: [0], Q.Q4_1: [0, 2], Q.Q5_0: [0], Q.Q5_1: [0, 2], Q.Q4_K: [0, 2], Q.Q5_K: [0, 2], Q.Q6_K: [208]}
LEVELS = {Q.Q8_0: 256, Q.Q4_0: 16, Q.Q4_1: 16, Q.Q5_0: 32, Q.Q5_1: 32, Q.Q4_K: 16, Q.Q5_K: 32, Q.Q6_K: 64}
SPECIAL = np.array([0.0, -0.0, 6e-8, -6e-8, 65504.0, -65504.0, 6.1e-5, 1.0], dtype=np.float16)

NF4 = np.array([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
                -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
                0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023,
                1.0], dtype=np.float32)
NF4_MIDPOINTS = np.array([-0.8480964004993439, -0.6106329262256622, -0.4599952697753906, -0.33967943489551544,
                          -0.23460740596055984, -0.13791173323988914, -0.045525018125772476, 0.03979014977812767,
                          0.1202552504837513, 0.2035212516784668, 0.2920137718319893, 0.3893125355243683,
                          0.5016634166240692, 0.6427869200706482, 0.8614784181118011], dtype=np.float32)
BLOCK = 64


def rng_of(name):
    return np.random.default_rng(zlib.crc32(name.encode()))


def ggml_blocks(kind):
    rng = rng_of(kind.name)
    values, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (max(16, 4096 // values), size), dtype=np.uint8)
    for k, offset in enumerate(SCALES[kind]):
        scale = rng.standard_normal(len(blocks)).astype(np.float16)
        scale[: len(SPECIAL)] = np.roll(SPECIAL, 3 * k)
        blocks[:, offset : offset + 2] = scale[:, None].view(np.uint8)
    decoded = gguf.quants.dequantize(blocks, kind)
    # A block of scale 1 shows its quanta as they are: with it every level must occur.
    plain = blocks.copy()
    one = np.array([1.0], dtype=np.float16).view(np.uint8)
    zero = np.zeros(2, dtype=np.uint8)
    for k, offset in enumerate(SCALES[kind]):
        plain[:, offset : offset + 2] = zero if k else one
    if kind in (Q.Q4_K, Q.Q5_K):
        plain[:, 4:16] = 1  # scales 1 of the first groups; the others' lower bits
    if kind == Q.Q6_K:
        plain[:, 192:208] = 1
    levels = np.unique(gguf.quants.dequantize(plain, kind))
    assert len(levels) >= LEVELS[kind], (kind, len(levels))
    return blocks.tobytes(), decoded.astype(np.float32)


def nf4_values(absmax, codes):
    return (NF4[codes] * absmax[:, None]).astype(np.float32)


def pack_nf4(absmax, codes):
    packed = (codes[:, 0::2] << 4 | codes[:, 1::2]).astype(np.uint8)
    return b"".join(a.tobytes() + p.tobytes() for a, p in zip(absmax, packed))


def check_nf4(library, absmax, codes, values):
    """The values are those of bitsandbytes' dequantize_4bit on the CPU."""
    packed = np.ascontiguousarray(codes[:, 0::2] << 4 | codes[:, 1::2], dtype=np.uint8)
    theirs = np.full(values.shape, np.nan, dtype=np.float32)
    at = lambda array: ctypes.c_void_p(array.ctypes.data)
    ctypes.CDLL(library).cdequantize_blockwise_cpu_nf4_fp32(
        at(packed), at(absmax), at(theirs), ctypes.c_longlong(BLOCK), ctypes.c_longlong(1), ctypes.c_longlong(codes.size))
    if not np.array_equal(theirs.view(np.uint32), values.view(np.uint32)):
        raise SystemExit("NF4: bitsandbytes decodes to other bits")
    print(f"NF4: {values.size} values have the bits of bitsandbytes' CPU library")


def nf4_blocks(library):
    rng = rng_of("NF4")
    codes = rng.integers(0, 16, (32, BLOCK), dtype=np.uint8)
    absmax = np.abs(rng.standard_normal(len(codes))).astype(np.float32)
    absmax[:4] = [0.0, 1e-40, 3.3e38, 1.0]
    values = nf4_values(absmax, codes)
    if library:
        check_nf4(library, absmax, codes, values)
    return pack_nf4(absmax, codes), values


def encode_nf4(weights):
    absmax = np.abs(weights).max(axis=1)
    with np.errstate(divide="ignore", over="ignore"):
        scale = np.float32(1) / absmax
    usable = np.isfinite(scale)
    scale, absmax = np.where(usable, scale, np.float32(0)), np.where(usable, absmax, np.float32(0))
    scaled = (weights * scale[:, None]).astype(np.float32)
    codes = (scaled[:, :, None] > NF4_MIDPOINTS).sum(axis=2).astype(np.uint8)
    return pack_nf4(absmax.astype(np.float32), codes)


def weights():
    """Rows of 64: blocks of both encoders."""
    rng = rng_of("weights")
    rows = [rng.standard_normal((24, BLOCK)) * 0.02, rng.standard_t(5, (24, BLOCK)) * 0.02]
    halves = (rng.integers(-254, 255, (8, BLOCK)) * 0.5)
    halves[:, 0] = halves[:, 32] = 127.0  # so d is 1 and every odd one lies between two quanta
    rows.append(halves)
    midpoints = np.concatenate([NF4_MIDPOINTS, np.nextafter(NF4_MIDPOINTS, np.float32(2)), NF4, [1.0, -1.0]])
    rows.append(np.resize(midpoints, (2, BLOCK)))
    rows.append(np.zeros((1, BLOCK)))
    rows.append(np.resize([6e4 * 127, -3e4 * 127, 100.0], (1, BLOCK)))
    rows.append(np.resize([1e-6, -3e-7, 0.0, 7e-8], (1, BLOCK)))
    rows.append(np.resize([1.0, 0.0, -0.0, -1.0], (1, BLOCK)))
    return np.concatenate(rows).astype(np.float32)


def main():
    parser = argparse.ArgumentParser(description="Make the blocks that the tests read.")
    parser.add_argument("--out", metavar="DIR", required=True, help="where to write them")
    parser.add_argument("--bitsandbytes", metavar="LIB", help="compare NF4 with this libbitsandbytes_cpu.so")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)

    def put(name, data):
        with open(os.path.join(args.out, name), "wb") as file:
            file.write(data)

    assert np.array_equal(NF4_MIDPOINTS, (NF4[:-1] + NF4[1:]) * np.float32(0.5)), "midpoints are not those of the codes"
    for kind in SCALES:
        blocks, values = ggml_blocks(kind)
        put(kind.name.lower() + ".blocks", blocks)
        put(kind.name.lower() + ".values", values.tobytes())
    blocks, values = nf4_blocks(args.bitsandbytes)
    put("nf4.blocks", blocks)
    put("nf4.values", values.tobytes())
    w = weights()
    put("weights.values", w.tobytes())
    put("q8_0.encoded", gguf.quants.quantize(w, Q.Q8_0).tobytes())
    put("nf4.encoded", encode_nf4(w))


if __name__ == "__main__":
    main()
