#!/usr/bin/env python3
"""Makes parity cases: a tiny base, an adapter, and what transformers and PEFT make of them (README.md: what they mean).

    make_cases.py --list                          names of the cases that cases.py describes
    make_cases.py --out tests/fixtures [NAME...]  writes them, all when none is named
    make_cases.py --check CASE_DIR...             computes given cases anew and compares

A case's random numbers depend on its name and seed alone. Each case is also run in float64. Its float32 results must be
far closer to that than parity_gpt's tolerance, or the case is refused: it would test rounding, not the trainer.
"""

import argparse
import json
import os
import shutil
import sys
import zlib

import peft
import torch
import transformers
from safetensors.torch import save_file

import reference
from cases import CASES

STEPS = 5
ROUNDING_SHARE = 0.1  # of the tolerance, that a case's own rounding may take up
TOLERANCE = 1e-4  # parity_gpt's in float32 builds; times ten after five steps
OPTIMIZER = {
    "kind": "adamw",
    "lr": 0.005,
    "beta1": 0.9,
    "beta2": 0.95,
    "eps": 1e-8,
    "weight_decay": 0.01,
    "max_grad_norm": 1.0,
}


def noise(shape, std, rng):
    return torch.randn(shape, generator=rng) * std


def build_base(model_args, rng):
    """A model with no weight at a neutral value: matrices around 0, norms around 1, biases not zero."""
    args = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None, "initializer_range": 0.08, **model_args}
    config = transformers.AutoConfig.for_model(args.pop("family"), **args)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() > 1:
                p.copy_(noise(p.shape, 0.08, rng))
            else:
                p.copy_(noise(p.shape, 0.1, rng) + (0.0 if name.endswith(".bias") else 1.0))
    return model


def rewrite_gpt2_keys(path, weights, model):
    """GPT-2's older key spellings: another prefix than transformer., causal-mask buffers."""
    prefix = weights.get("gpt2_prefix", "transformer.")
    tensors = {
        prefix + k.removeprefix("transformer.") if k.startswith("transformer.") else k: t  # lm_head has no prefix
        for k, t in reference.read_tensors(path).items()
    }
    T = model.config.n_positions
    for layer in range(model.config.n_layer):
        if "mask_buffers" in weights:
            mask = torch.ones(T, T).tril().view(1, 1, T, T).to(getattr(torch, weights["mask_buffers"]))
            tensors[f"{prefix}h.{layer}.attn.bias"] = mask
        if weights.get("masked_bias"):
            tensors[f"{prefix}h.{layer}.attn.masked_bias"] = torch.tensor(-10000.0)
    save_file(tensors, path, metadata={"format": "pt"})


def rewrite_config(path, how):
    """transformers 4's spelling of config.json, and single keys set or dropped."""
    with open(path) as f:
        config = json.load(f)
    if how.get("spelling") == "transformers4":
        config["torch_dtype"] = config.pop("dtype")
        config["transformers_version"] = "4.46.0"
        if "rope_parameters" in config:
            rope = config.pop("rope_parameters")
            config["rope_theta"] = rope.pop("rope_theta")
            kind = rope.pop("rope_type")
            scaling = {how.get("rope_type_key", "rope_type"): kind, **rope}
            config["rope_scaling"] = None if kind == "default" else scaling
        if config.get("head_dim", 0) * config.get("num_attention_heads", 0) == config.get("hidden_size"):
            del config["head_dim"]
    for key in how.get("drop", []):
        del config[key]
    config.update(how.get("set", {}))
    with open(path, "w") as f:
        json.dump(config, f, indent=2, sort_keys=True)
        f.write("\n")


def write_base(case, case_dir, rng):
    base = os.path.join(case_dir, "base")
    weights = case.get("weights", {})
    model = build_base(case["model"], rng)
    model.to(getattr(torch, weights.get("dtype", "float32")))
    model.save_pretrained(base, max_shard_size=weights.get("max_shard_size", "1GB"))
    # Says how to sample, which no parity case does.
    if os.path.exists(os.path.join(base, "generation_config.json")):
        os.remove(os.path.join(base, "generation_config.json"))
    if case["model"]["family"] == "gpt2":
        rewrite_gpt2_keys(os.path.join(base, "model.safetensors"), weights, model)
    rewrite_config(os.path.join(base, "config.json"), case.get("config", {}))


def write_adapter(case, case_dir, rng):
    """A fresh adapter, but with B not zero, so that A has a gradient in the first step."""
    model = transformers.AutoModelForCausalLM.from_pretrained(os.path.join(case_dir, "base"), dtype=torch.float32)
    fan_in_fan_out = case["model"]["family"] == "gpt2"
    lora = {"lora_dropout": 0.0, "bias": "none", "task_type": "CAUSAL_LM", "fan_in_fan_out": fan_in_fan_out}
    model = peft.get_peft_model(model, peft.LoraConfig(**{**lora, **case["lora"]}))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if ".lora_A." in name:  # kaiming-uniform with a = sqrt(5): uniform within 1/sqrt(inputs)
                p.copy_((torch.rand(p.shape, generator=rng) * 2 - 1) / p.shape[1] ** 0.5)
            elif ".lora_B." in name:
                p.copy_(noise(p.shape, 0.05, rng))
    adapter = os.path.join(case_dir, "adapter")
    model.save_pretrained(adapter)
    os.remove(os.path.join(adapter, "README.md"))
    # PEFT writes the modules in the order of a set, another at every run, and the path of the base, which moves.
    path = os.path.join(adapter, "adapter_config.json")
    with open(path) as f:
        config = json.load(f)
    config["target_modules"] = sorted(config["target_modules"])
    config["base_model_name_or_path"] = None
    with open(path, "w") as f:
        json.dump(config, f, indent=2, sort_keys=True)
        f.write("\n")


def make_batches(batch, V, rng):
    """input_ids and labels, int32 [steps, micro-batches, B, T]; each row masks another share of its tokens."""
    shape = (STEPS, batch["accum"], batch["B"], batch["T"])
    input_ids = torch.randint(0, V, shape, generator=rng)
    share = torch.rand(shape[:3], generator=rng) * 0.7
    labels = input_ids.masked_fill(torch.rand(shape, generator=rng) < share[..., None], reference.IGNORE)
    if batch.get("masked_micro"):
        for step in range(STEPS):
            labels[step, step % batch["accum"]] = reference.IGNORE
    return input_ids.int(), labels.int()


def write_expected(case, case_dir, rng):
    """Computes the case from the files written so far. Returns the worst rounding found, in parts of the tolerance."""
    V = case["model"]["vocab_size"]
    input_ids, labels = make_batches(case["batch"], V, rng)
    settings = {"steps": STEPS, **{key: case["batch"][key] for key in ("accum", "B", "T")}}
    if "lora" not in case:
        settings.update({"adapter": "none", "freeze_layers": case.get("freeze_layers", 0)})
    settings["optimizer"] = {**OPTIMIZER, **case.get("optimizer", {})}
    tensors, losses, grad_norms = result = reference.compute(case_dir, settings, input_ids, labels)
    exact = reference.compute(case_dir, settings, input_ids, labels, torch.float64)
    rows = reference.errors(result, exact, reference.initial_tensors(case_dir, settings))
    name, error, scale = max(rows, key=lambda row: row[1] / row[2])
    if error > ROUNDING_SHARE * TOLERANCE * scale:
        case_dir = case_dir.removesuffix(".partial")
        raise SystemExit(
            f"{case_dir}: rounding alone moves {name} by {error:.1e}, "
            f"at most {ROUNDING_SHARE * TOLERANCE * scale:.0e} is allowed; "
            'give the case another seed or, where gradients are small throughout, "optimizer": {"eps": 1e-5}'
        )

    settings.update({"losses": losses, "grad_norms": grad_norms, "loss": reference.LOSS_TEXT})
    settings["versions"] = {m.__name__: m.__version__ for m in (torch, transformers, peft)}
    with open(os.path.join(case_dir, "expected.json"), "w") as f:
        json.dump(settings, f, indent=1)
        f.write("\n")
    tensors = {key: t.contiguous() for key, t in tensors.items()}
    save_file({"input_ids": input_ids, "labels": labels, **tensors}, os.path.join(case_dir, "expected.safetensors"))
    return error / (TOLERANCE * scale)


def make(name, out):
    """Builds the case beside its place and renames it: no case is ever half there, and a refused one leaves none."""
    case = CASES[name]
    case_dir = os.path.join(out, name)
    partial = case_dir + ".partial"
    shutil.rmtree(partial, ignore_errors=True)
    os.makedirs(partial)
    rng = torch.Generator().manual_seed(zlib.crc32(name.encode()) + case.get("seed", 0))
    try:
        write_base(case, partial, rng)
        if "lora" in case:
            write_adapter(case, partial, rng)
        worst = write_expected(case, partial, rng)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    shutil.rmtree(case_dir, ignore_errors=True)
    os.rename(partial, case_dir)
    size_bytes = 0
    for where, _, files in os.walk(case_dir):
        for file in files:
            os.chmod(os.path.join(where, file), 0o644)
            size_bytes += os.path.getsize(os.path.join(where, file))
    print(f"{name:22} {size_bytes / 1024:6.0f} KiB  worst rounding {worst:.2f} of the tolerance")


def check(case_dir):
    """Prints the worst error of each kind and every failure. Returns whether all are within the tolerance."""
    settings, input_ids, labels, want = reference.read_expected(case_dir)
    got = reference.compute(case_dir, settings, input_ids, labels)
    # A case from elsewhere may hold elements that are rounding and nothing else; write_expected() lets none through.
    rows = reference.errors(got, want, reference.initial_tensors(case_dir, settings), without_noise=True)
    worst = {}
    for name, error, scale in rows:
        kind = name.split(".")[0]
        worst[kind] = max(worst.get(kind, 0.0), error)
        if not error <= TOLERANCE * scale:
            print(f"FAIL {name} {error:.2e} {TOLERANCE * scale:.0e}")
    failed = sum(not error <= TOLERANCE * scale for _, error, scale in rows)
    summary = "  ".join(f"{kind} {error:.1e}" for kind, error in worst.items())
    print(f"{'FAIL' if failed else 'PASS'} {case_dir}: {summary}; {len(rows) - failed} passed, {failed} failed")
    return failed == 0


def main():
    parser = argparse.ArgumentParser(description="Make or check parity cases.")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--out", metavar="DIR", help="where to write the cases")
    parser.add_argument("--check", nargs="+", metavar="CASE_DIR", help="compute these cases anew and compare")
    parser.add_argument("names", nargs="*", help="cases to write, all when none is named")
    args = parser.parse_args()
    unknown = [name for name in args.names if name not in CASES]
    if unknown:
        parser.error(f"unknown case {', '.join(unknown)}; --list prints the known ones")
    if not (args.list or args.out or args.check):
        parser.error("one of --list, --out DIR, --check CASE_DIR is wanted")
    torch.set_num_threads(1)  # the order of sums, and so the last bits, must not depend on the machine's cores
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if args.list:
        print("\n".join(CASES))
    if args.out:
        for name in args.names or CASES:
            make(name, args.out)
    if args.check and not all([check(case_dir) for case_dir in args.check]):
        sys.exit(1)


if __name__ == "__main__":
    main()
