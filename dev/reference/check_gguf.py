#!/usr/bin/env python3
"""Compares our reading of a GGUF file with transformers' own: logits and greedy continuations of ten prompts.

    check_gguf.py MODEL.gguf [--build build] [FLAGS of logits_gpt, after --]

transformers decodes the file to float32 and continues each prompt greedily by 32 tokens. build/logits_gpt then computes
the logits of prompt and continuation. They must agree within 1e-3 everywhere (absolute), and our largest logit at every
place of a continuation must be the token that follows: so by induction our own greedy continuation is the same.
Exit 1 on a failure.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time

import torch
import transformers
from safetensors.torch import load_file, save_file

TOLERANCE = 1e-3
CONTINUATION = 32
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "Water boils at",
    "<|im_start|>user\nWhat is gravity?<|im_end|>\n<|im_start|>assistant\n",
    "The three most important things about writing are",
    "1, 1, 2, 3, 5, 8, 13,",
    "In 1969, Neil Armstrong",
    "Dear Sir or Madam,\n\nI am writing to",
    "Das Wetter in Berlin ist heute",
]


@torch.no_grad()
def reference_rows(path):
    """[(tokens [n + 32], how many are the prompt's, logits [n + 32, V])], and the model's parameters."""
    where, name = os.path.split(os.path.abspath(path))
    tokenizer = transformers.AutoTokenizer.from_pretrained(where, gguf_file=name)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        where, gguf_file=name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    rows = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False).input_ids
        begin = ids.shape[1]
        cache = transformers.DynamicCache()
        step = ids
        for _ in range(CONTINUATION):
            logits = model(input_ids=step, past_key_values=cache, use_cache=True).logits
            step = logits[:, -1:].argmax(-1)
            ids = torch.cat([ids, step], dim=1)
        rows.append((ids[0], begin, model(input_ids=ids, use_cache=False).logits[0]))
        print(f"  {prompt!r} -> {tokenizer.decode(ids[0, begin : begin + 12])!r}...", flush=True)
    return rows, model.num_parameters()


def our_logits(args, rows, where):
    T = max(len(ids) for ids, _, _ in rows)
    filled = torch.zeros(len(rows), T, dtype=torch.int32)
    for row, (ids, _, _) in zip(filled, rows):
        row[: len(ids)] = ids
    tokens, out = os.path.join(where, "tokens.safetensors"), os.path.join(where, "logits.safetensors")
    save_file({"input_ids": filled}, tokens)
    began = time.time()
    subprocess.run([os.path.join(args.build, "logits_gpt"), args.model, tokens, out, *args.flags], check=True)
    print(f"logits_gpt took {time.time() - began:.1f} s")
    return load_file(out)["logits"]


def main():
    parser = argparse.ArgumentParser(description="Compare our reading of a GGUF file with transformers'.")
    parser.add_argument("model", metavar="MODEL.gguf")
    parser.add_argument("--build", default="build", help="where logits_gpt is; a float32 build")
    parser.add_argument("flags", nargs="*", help="flags of logits_gpt, after --")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    rows, parameters = reference_rows(args.model)
    with tempfile.TemporaryDirectory() as where:
        ours = our_logits(args, rows, where)
    failures, worst, largest, closest = 0, 0.0, 0.0, float("inf")
    for prompt, (ids, begin, want), got in zip(PROMPTS, rows, ours):
        got = got[: len(ids)]
        error = (got - want).abs().max().item()
        follows = got[begin - 1 : -1].argmax(-1) == ids[begin:]
        two = want[begin - 1 : -1].topk(2).values
        worst, largest = max(worst, error), max(largest, want.abs().max().item())
        closest = min(closest, (two[:, 0] - two[:, 1]).min().item())
        if not (error <= TOLERANCE and follows.all()):
            failures += 1
            print(f"FAIL {prompt!r}: logits differ by {error:.2e}, {int(follows.sum())} of {len(follows)} tokens follow")
    print(
        f"{'FAIL' if failures else 'PASS'} {os.path.basename(args.model)}, {parameters} parameters: {len(PROMPTS)} prompts, "
        f"{sum(len(ids) for ids, _, _ in rows)} places, logits up to {largest:.1f} differ by {worst:.2e} at most (allowed "
        f"{TOLERANCE:.0e}), {CONTINUATION} greedy tokens each as transformers'; closest call between two tokens {closest:.2e}"
    )
    sys.exit(failures != 0)


if __name__ == "__main__":
    main()
