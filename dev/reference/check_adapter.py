#!/usr/bin/env python3
"""Loads an adapter that the trainer saved with PEFT, and shows that it is whole and does something.

    check_adapter.py ADAPTER_DIR BASE_DIR [--logits FILE]

Keys of file and model must be the same, and every shape must fit. Every module's B times A must be finite and not zero.
The logits must differ from the bare base's. --logits compares them with ours: FILE is a safetensors file with input_ids
[B, T] and logits [B, T, V]. A case's expected.safetensors will do for its own adapter. Exit 1 on a failure.
"""

import argparse
import hashlib
import sys

import torch
import transformers

import reference

TOLERANCE = 1e-4  # max|got - want| / max|want|, as parity_gpt has it in float32


def module_scales(model):
    """{module name: largest element of B A}; a module without effect has 0, a broken one NaN."""
    scales = {}
    for name, module in model.named_modules():
        for adapter, A in getattr(module, "lora_A", {}).items():
            scales[name] = (module.lora_B[adapter].weight @ A.weight).abs().max().item()
    return scales


def logits_and_ids(path, V):
    """(input_ids [B, T], logits [B, T, V] or None): from the file, or a fixed row of tokens."""
    if path is None:
        return (torch.arange(24) * 7919 % V).view(1, -1), None
    tensors = reference.read_tensors(path)
    if "logits" in tensors:
        return tensors["input_ids"].long(), tensors["logits"]
    return tensors["input_ids"][0, 0].long(), tensors["logits_step0_micro0"]


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description="Check with PEFT an adapter that the trainer saved.")
    parser.add_argument("adapter", metavar="ADAPTER_DIR")
    parser.add_argument("base", metavar="BASE_DIR")
    parser.add_argument("--logits", metavar="FILE", help="logits to compare with")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

    base = transformers.AutoModelForCausalLM.from_pretrained(
        args.base, dtype=torch.float32, attn_implementation="eager"
    )
    try:
        model = reference.load_adapter(base, args.adapter).eval()
    except (RuntimeError, ValueError, OSError) as error:
        sys.exit(f"FAIL {error}")
    input_ids, want = logits_and_ids(args.logits, base.config.vocab_size)
    logits = model(input_ids=input_ids, use_cache=False).logits
    with model.disable_adapter():
        effect = (model(input_ids=input_ids, use_cache=False).logits - logits).abs().max().item()
    scales = module_scales(model)
    failures = [f"{name}: B A is {scale}" for name, scale in scales.items() if not 0 < scale < float("inf")]
    if not 0 < effect < float("inf"):
        failures.append(f"the adapter moves the logits by {effect}")
    print(f"{len(scales)} modules, each with A and B; smallest largest element of B A {min(scales.values()):.3e}")
    print(f"logits move by up to {effect:.3e}")
    print(f"logits sha256 {hashlib.sha256(logits.contiguous().numpy().tobytes()).hexdigest()[:16]}")
    print("last row starts", " ".join(f"{x:.6f}" for x in logits[-1, -1, :8].tolist()))
    if want is not None:
        error = ((logits - want).abs().max() / want.abs().max()).item()
        print(f"logits error {error:.2e}, allowed {TOLERANCE:.0e}")
        if not error <= TOLERANCE:
            failures.append("the logits differ from the file's")
    for failure in failures:
        print("FAIL", failure)
    if failures:
        sys.exit(1)
    print("PASS")


if __name__ == "__main__":
    main()
