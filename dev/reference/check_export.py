#!/usr/bin/env python3
"""Asks PEFT, transformers and llama.cpp whether adapters go in and out of slabstream unchanged.

    check_export.py [--build BUILD] [NAME...]

A NAME is a folder of tests/gguf (a tiny model, also as GGUF) or of tests/fixtures (a parity case). For each, logits of
fixed tokens are compared, each with its reference:

    peft in    base + PEFT's adapter in logits_gpt                          PEFT's own logits
    merged     `export_gpt --merge`, loaded by transformers                 PEFT's own logits
    gguf       `export_gpt --gguf-adapter` on the GGUF base in llama.cpp    PEFT's own logits
    trained    three steps of train_gpt, its adapter loaded by PEFT         logits_gpt with it
    full       three steps of `train_gpt --adapter none`, by transformers   logits_gpt of it

A model trained in full must also keep every key of its base's config.json but the type.

gguf needs `pip install gguf llama-cpp-py-sync` (llama.cpp built, with its C interface) and is left out, saying so,
without it. Needs a float32 build. Exit 1 on a failure.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy as np
import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

import reference

HERE = os.path.dirname(os.path.abspath(__file__))
TESTS = os.path.normpath(os.path.join(HERE, "..", "..", "tests"))
NAMES = ["gpt2", "llama", "llama3", "qwen2", "qwen3", "mistral", "llama_rslora", "gpt2_buffers", "llama_bf16_shards"]
TOLERANCE = 1e-4  # max|got - want| / max|want|, as parity_gpt has it in float32
ROUNDED = 3e-2  # where the merged weights are bf16
TABLES = 1e-3  # llama.cpp takes GELU from a table in F16
TOKENS = 20

try:
    import gguf
    from llama_cpp_py_sync._cffi_bindings import get_ffi, get_lib

    get_lib()  # which is built for a newer C library than some machines have
    NO_LLAMA_CPP = ""
except (ImportError, OSError, RuntimeError) as error:
    NO_LLAMA_CPP = str(error)


class LlamaCpp:
    """A GGUF model in llama.cpp, all of it in float32."""

    def __init__(self, path):
        self.ffi, self.lib = get_ffi(), get_lib()
        self.lib.llama_backend_init()
        params = self.lib.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = self.lib.llama_model_load_from_file(path.encode(), params)
        if self.model == self.ffi.NULL:
            raise RuntimeError(f"llama.cpp does not load {path}")

    def logits(self, ids, V, adapter=None):
        """[T, V] for the tokens [T], with the adapter's file applied."""
        lib, ffi = self.lib, self.ffi
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_threads, params.n_threads_batch = 256, 1, 1
        params.flash_attn_type, params.type_k, params.type_v = 0, 0, 0  # none; F32
        context = lib.llama_init_from_model(self.model, params)
        if adapter:
            loaded = lib.llama_adapter_lora_init(self.model, adapter.encode())
            if loaded == ffi.NULL:
                raise RuntimeError(f"llama.cpp refuses {adapter}")
            scale = ffi.new("float[]", [1.0])
            if lib.llama_set_adapters_lora(context, ffi.new("struct llama_adapter_lora *[]", [loaded]), 1, scale) != 0:
                raise RuntimeError(f"llama.cpp does not apply {adapter}")
        batch = lib.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, i, 1, 0, 1
        if lib.llama_decode(context, batch) != 0:
            raise RuntimeError("llama.cpp does not decode")
        values = np.frombuffer(ffi.buffer(lib.llama_get_logits(context), 4 * len(ids) * V), np.float32).copy()
        lib.llama_batch_free(batch)
        lib.llama_free(context)
        return torch.from_numpy(values).view(len(ids), V)


def without_tokenizer(path, out, V):
    """The GGUF file again, said to have no vocabulary: those of the tests are too small for llama.cpp's tokenizers."""
    reader = gguf.GGUFReader(path)
    arch = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(out, arch)
    for name, field in reader.fields.items():
        if name.startswith(("GGUF.", "tokenizer.", "general.architecture")) or name.endswith(".vocab_size"):
            continue
        writer.add_key_value(name, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)
    writer.add_vocab_size(V)
    writer.add_tokenizer_model("no_vocab")
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_adapter(base_dir, out):
    """A PEFT adapter on every linear layer, B not zero, so that it moves the logits."""
    base = transformers.AutoModelForCausalLM.from_pretrained(base_dir, dtype=torch.float32)
    config = peft.LoraConfig(r=4, lora_alpha=6, target_modules="all-linear", task_type="CAUSAL_LM")
    model = peft.get_peft_model(base, config)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if ".lora_" in name:
                p.copy_(torch.randn(p.shape) * 0.15)
    model.save_pretrained(out)


@torch.no_grad()
def their_logits(base_dir, ids, adapter=None):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        base_dir, dtype=torch.float32, attn_implementation="eager"
    )
    if adapter:
        model = reference.load_adapter(model, adapter)
    return model.eval()(input_ids=ids.long(), use_cache=False).logits


class Checks:
    def __init__(self, build, where):
        self.build, self.where, self.failures = build, where, 0

    def run(self, program, *arguments):
        subprocess.run([os.path.join(self.build, program), *arguments], check=True, stdout=subprocess.DEVNULL)

    def our_logits(self, base, ids, adapter=None):
        tokens, out = os.path.join(self.where, "tokens"), os.path.join(self.where, "logits")
        save_file({"input_ids": ids}, tokens)
        if os.path.exists(out):  # which logits_gpt does not replace
            os.remove(out)
        with_adapter = ["--adapter-in", adapter] if adapter else []
        self.run("logits_gpt", base, tokens, out, *with_adapter, "--threads", "1")
        return load_file(out)["logits"]

    def compare(self, name, what, got, want, tolerance=TOLERANCE):
        error = ((got - want).abs().max() / want.abs().max()).item()
        good = error <= tolerance
        self.failures += not good
        print(f"{'PASS' if good else 'FAIL'} {name:20} {what:10} {error:.2e}, allowed {tolerance:.0e}", flush=True)

    def check(self, name):
        where = os.path.join(self.where, name)
        os.makedirs(where)
        folder = os.path.join(TESTS, "gguf", name)
        gguf_base = os.path.join(folder, "model.gguf")
        if os.path.exists(gguf_base):
            base, adapter = folder, os.path.join(where, "adapter")
            make_adapter(base, adapter)
        else:
            case = os.path.join(TESTS, "fixtures", name)
            gguf_base, base, adapter = None, os.path.join(case, "base"), os.path.join(case, "adapter")
        config = transformers.AutoConfig.from_pretrained(base)
        V = config.vocab_size
        ids = (torch.arange(TOKENS) * 7919 % V).int().view(1, -1)
        bare, want = their_logits(base, ids), their_logits(base, ids, adapter)
        moved = ((want - bare).abs().max() / bare.abs().max()).item()
        if not moved > 100 * TOLERANCE:
            raise SystemExit(f"{name}: the adapter moves the logits by {moved:.1e} only: nothing would be tested")
        self.compare(name, "peft in", self.our_logits(base, ids, adapter), want)

        merged, lora = os.path.join(where, "merged"), os.path.join(where, "adapter.gguf")
        self.run("export_gpt", "--base-model", base, "--adapter", adapter, "--merge", merged, "--gguf-adapter", lora)
        tolerance = TOLERANCE if config.dtype in (None, torch.float32) else ROUNDED
        self.compare(name, "merged", their_logits(merged, ids), want, tolerance)
        if gguf_base and not NO_LLAMA_CPP:
            small = os.path.join(where, "model.gguf")
            without_tokenizer(gguf_base, small, V)
            model = LlamaCpp(small)
            tolerance = TABLES if config.model_type == "gpt2" else TOLERANCE
            self.compare(name, "gguf base", model.logits(ids[0].tolist(), V)[None], bare, tolerance)
            self.compare(name, "gguf", model.logits(ids[0].tolist(), V, lora)[None], want, tolerance)
        self.check_trained(name, base, ids, where)

    def check_trained(self, name, base, ids, where):
        tokens, run = os.path.join(where, "train.bin"), os.path.join(where, "run")
        header = np.zeros(256, np.int32)
        header[:3] = 20240520, 1, TOKENS
        with open(tokens, "wb") as f:
            f.write(header.tobytes() + ids[0].numpy().astype(np.uint16).tobytes())
        flags = "--sequence-len 9 --micro-batch-size 2 --max-steps 3 --learning-rate 0.02 --lora-r 3 --threads 1"
        self.run("train_gpt", "--base-model", base, "--train-data", tokens, "--output-dir", run, *flags.split())
        got = self.our_logits(base, ids, run)
        self.compare(name, "trained", got, their_logits(base, ids, run))

        full = os.path.join(where, "full")
        flags = flags.replace("--lora-r 3", "--adapter none")
        self.run("train_gpt", "--base-model", base, "--train-data", tokens, "--output-dir", full, *flags.split())
        self.compare(name, "full", self.our_logits(full, ids), their_logits(full, ids))
        kept, wanted = (json.load(open(os.path.join(d, "config.json"))) for d in (full, base))
        for config in kept, wanted:
            config.pop("dtype", None)
            config.pop("torch_dtype", None)
        self.failures += kept != wanted
        print(f"{'PASS' if kept == wanted else 'FAIL'} {name:20} keys of the base's config.json", flush=True)


def main():
    parser = argparse.ArgumentParser(description="Check adapters in and out against PEFT, transformers and llama.cpp.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: " + " ".join(NAMES))
    parser.add_argument("--build", default="build", help="where the programs are; a float32 build")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if NO_LLAMA_CPP:
        print(f"skipped: llama.cpp ({NO_LLAMA_CPP}; pip install gguf llama-cpp-py-sync)")
    with tempfile.TemporaryDirectory() as where:
        checks = Checks(args.build, where)
        for name in args.names or NAMES:
            checks.check(name)
    print("FAIL" if checks.failures else "PASS")
    sys.exit(checks.failures != 0)


if __name__ == "__main__":
    main()
