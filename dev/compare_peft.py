#!/usr/bin/env python3
"""Times a LoRA training step with PyTorch + PEFT at the shape that bench_step has, resident on one GPU.

Random weights in bf16, adapters and AdamW's state in float32 under bf16 autocast, as the Trainer runs it; LoRA on all
linear layers, no dropout, PyTorch's own flash attention, gradient clipping at 1. Prints one line a variant: the median
time of a step and the peak of allocated memory, measured after the warm-up and so without the compiler's own.
"""

import argparse
import gc
import statistics
import sys
import time


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--intermediate", type=int, default=11008)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=0, help="0: as many as heads")
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--sequence-len", type=int, default=2048)
    parser.add_argument("--micro-batch-size", type=int, default=1)
    parser.add_argument("--lora-r", type=int, default=16)
    parser.add_argument("--steps", type=int, default=10, help="timed steps")
    parser.add_argument("--warmup", type=int, default=3, help="steps before them")
    parser.add_argument("--compile", action="store_true", help="torch.compile instead of eager")
    parser.add_argument("--checkpointing", action="store_true", help="recompute each layer in backward")
    parser.add_argument("--bf16-adapters", action="store_true", help="adapters and AdamW in bf16, no autocast")
    return parser.parse_args()


def build_model(args):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        hidden_size=args.hidden,
        intermediate_size=args.intermediate,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        num_key_value_heads=args.kv_heads or args.heads,
        vocab_size=args.vocab,
        max_position_embeddings=args.sequence_len,
        tie_word_embeddings=False,
        use_cache=False,
    )
    with torch.device("cuda"):
        base = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    if args.checkpointing:
        base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        base.enable_input_require_grads()
    lora = LoraConfig(
        r=args.lora_r, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    model = get_peft_model(base, lora, autocast_adapter_dtype=not args.bf16_adapters).to("cuda")
    model.train()
    return model


def measure(args):
    import torch

    torch.manual_seed(0)
    model = build_model(args)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, weight_decay=0.0, fused=True)
    forward = torch.compile(model) if args.compile else model
    shape = (args.micro_batch_size, args.sequence_len)
    tokens = torch.randint(0, args.vocab, shape, device="cuda")

    def step():
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=not args.bf16_adapters):
            loss = forward(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    began = time.monotonic()
    for _ in range(args.warmup):
        loss = step()
    torch.cuda.synchronize()
    warmup_s = time.monotonic() - began
    if not torch.isfinite(loss):
        raise RuntimeError(f"the loss is {loss.item()}")
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    times_ms = []
    for _ in range(args.steps):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        end.record()
        end.synchronize()
        times_ms.append(start.elapsed_time(end))
    return statistics.median(times_ms), torch.cuda.max_memory_allocated(), warmup_s


def main():
    args = parse_arguments()
    try:
        import peft
        import torch
        import transformers
    except ImportError as error:
        sys.exit(f"compare_peft.py: {error}; PyTorch, transformers and PEFT are wanted")
    if not torch.cuda.is_available():
        sys.exit("compare_peft.py: PyTorch sees no GPU here")
    step_ms, peak_bytes, warmup_s = measure(args)
    variant = ("compiled" if args.compile else "eager") + (", checkpointing" if args.checkpointing else "")
    variant += ", adapters bf16" if args.bf16_adapters else ", adapters fp32 under autocast"
    tokens = args.micro_batch_size * args.sequence_len
    print(
        f"PyTorch {torch.__version__}, transformers {transformers.__version__}, PEFT {peft.__version__}: {variant}, "
        f"{args.layers} layers, B {args.micro_batch_size}, T {args.sequence_len}: step {step_ms:.1f} ms, "
        f"{tokens / step_ms * 1e3:,.0f} tok/s, peak {peak_bytes / 2**30:.2f} GiB allocated "
        f"(first {args.warmup} steps took {warmup_s:.0f} s)"
    )


if __name__ == "__main__":
    main()
