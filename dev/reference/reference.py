"""What transformers and PEFT compute for a parity case, and how far two results are apart.

make_cases.py writes a case's files first and then calls compute() on the files, so what is expected always belongs to
the bytes on disk. The five-step run is written out here rather than left to the Trainer, because the case fixes every
detail of it: loss over the step's targets, clipping, AdamW.
"""

import json
import os

import torch
import torch.nn.functional as F
from peft import PeftModel, get_peft_model_state_dict
from safetensors import safe_open
from transformers import AutoModelForCausalLM, Trainer

IGNORE = -100  # label of a token that is no target

LOSS_TEXT = (
    "sum of cross-entropy over targets that are not -100, divided by their number over all micro-batches of the step; "
    "labels are shifted by one inside"
)


def read_tensors(path):
    with safe_open(path, "pt") as f:
        return {key: f.get_tensor(key) for key in f.keys()}


def load_model(case_dir, dtype):
    """The case's base, with its adapter when there is one. Eval mode: no dropout anywhere, as the trainer has it.

    Raises when a tensor was not taken from the files: transformers and PEFT only warn, and leave it at random.
    """
    model, info = AutoModelForCausalLM.from_pretrained(
        os.path.join(case_dir, "base"), dtype=dtype, attn_implementation="eager", output_loading_info=True
    )
    if info["missing_keys"] or info["mismatched_keys"]:
        raise RuntimeError(f"{case_dir}/base: not loaded: {info['missing_keys']} {info['mismatched_keys']}")
    adapter = os.path.join(case_dir, "adapter")
    if os.path.isdir(adapter):
        model = load_adapter(model, adapter)
    return model.to(dtype).eval()


def load_adapter(model, adapter_dir):
    """The model with the adapter on it, after making sure that it holds what the file holds, tensor for tensor."""
    model = PeftModel.from_pretrained(model, adapter_dir, is_trainable=True)
    file = read_tensors(os.path.join(adapter_dir, "adapter_model.safetensors"))
    loaded = get_peft_model_state_dict(model)
    if file.keys() != loaded.keys():
        raise RuntimeError(
            f"{adapter_dir}: keys the model wants and the file lacks: {sorted(loaded.keys() - file.keys())}; "
            f"keys of the file that belong nowhere: {sorted(file.keys() - loaded.keys())}"
        )
    for key, tensor in file.items():
        if not torch.equal(tensor.to(loaded[key].dtype), loaded[key].cpu()):
            raise RuntimeError(f"{adapter_dir}: {key} of the model differs from the file")
    return model


def freeze(model, freeze_layers):
    """freeze_layers = K > 0: the first K layers, all embeddings and whatever is tied to them do not train."""
    if freeze_layers == 0:
        return
    embeddings = [model.get_input_embeddings().weight]
    if hasattr(model.base_model, "wpe"):
        embeddings.append(model.base_model.wpe.weight)
    layers = model.base_model.h if hasattr(model.base_model, "h") else model.base_model.layers
    frozen = embeddings + [p for layer in layers[:freeze_layers] for p in layer.parameters()]
    for p in frozen:
        p.requires_grad_(False)


def trained(model):
    """Trained tensors by the key that a file has for them: PEFT's for an adapter, else the model's own."""
    if isinstance(model, PeftModel):
        return dict(get_peft_model_state_dict(model, state_dict=dict(model.named_parameters())))
    return {key: p for key, p in model.named_parameters() if p.requires_grad}


def make_optimizer(model, params, opt):
    """AdamW with the Trainer's own rule for what decays: every tensor that is neither a bias nor a norm's."""
    decays = set(Trainer.get_decay_parameter_names(None, model))
    decays = {id(p) for name, p in model.named_parameters() if name in decays}
    groups = [
        {"params": [p for p in params if id(p) in decays], "weight_decay": opt["weight_decay"]},
        {"params": [p for p in params if id(p) not in decays], "weight_decay": 0.0},
    ]
    betas = (opt["beta1"], opt["beta2"])
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=opt["lr"], betas=betas, eps=opt["eps"])


def compute(case_dir, settings, input_ids, labels, dtype=torch.float32):
    """Runs the case. input_ids and labels are [steps, micro-batches, B, T]. Returns (tensors, losses, grad_norms)."""
    torch.manual_seed(0)
    model = load_model(case_dir, dtype)
    if settings.get("adapter") == "none":
        freeze(model, settings["freeze_layers"])
    params = trained(model)
    optimizer = make_optimizer(model, list(params.values()), settings["optimizer"])
    tensors, losses, grad_norms = {}, [], []
    for step in range(settings["steps"]):
        targets = int((labels[step][:, :, 1:] != IGNORE).sum())
        loss_sum = 0.0
        for micro in range(settings["accum"]):
            logits = model(input_ids=input_ids[step, micro].long(), use_cache=False).logits
            if step == 0 and micro == 0:
                tensors["logits_step0_micro0"] = logits.detach().clone()
            want = labels[step, micro, :, 1:].long().reshape(-1)
            got = logits[:, :-1].reshape(-1, logits.shape[-1])
            loss = F.cross_entropy(got, want, ignore_index=IGNORE, reduction="sum") / targets
            loss.backward()
            loss_sum += loss.item()
        if step == 0:
            tensors.update({"grad." + key: p.grad.clone() for key, p in params.items()})
        norm = torch.nn.utils.clip_grad_norm_(list(params.values()), settings["optimizer"]["max_grad_norm"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss_sum)
        grad_norms.append(norm.item())
    tensors.update({"after5." + key: p.detach().clone() for key, p in params.items()})
    return tensors, losses, grad_norms


def initial_tensors(case_dir, settings):
    """Trained tensors before the first step, by key."""
    model = load_model(case_dir, torch.float32)
    if settings.get("adapter") == "none":
        freeze(model, settings["freeze_layers"])
    return {key: p.detach().clone() for key, p in trained(model).items()}


def is_noise(grad):
    """Elements whose first gradient is within float32 rounding of zero.

    AdamW's first update is lr * g / (|g| + eps): of such an element it takes the sign and size of the rounding, so
    where it stands after five steps says nothing about an implementation.
    """
    return grad.abs() < 1e-5 * grad.abs().max()


def errors(got, want, initial, without_noise=False):
    """[(name, error, scale of the tolerance)] by the measures of parity_gpt; scale 10 for after5.

    Losses and norms: relative. Logits and gradients: max|got - want| / max|want| of a tensor. after5: max|got - want| /
    max|want - initial|, what the five steps moved.
    got and want are (tensors, losses, grad_norms). A key that only one side has is an infinite error. without_noise
    leaves the elements of is_noise() out of after5.
    """
    rows = []
    for what, g, w in (("loss", got[1], want[1]), ("grad_norm", got[2], want[2])):
        rows += [(f"{what}.{i}", abs(a - b) / abs(b), 1) for i, (a, b) in enumerate(zip(g, w, strict=True))]
    for name in sorted(set(got[0]) | set(want[0])):
        if name not in got[0] or name not in want[0] or got[0][name].shape != want[0][name].shape:
            rows.append((name, float("inf"), 1))
            continue
        g, w = got[0][name].double(), want[0][name].double()
        if not name.startswith("after5."):
            rows.append((name, ((g - w).abs().max() / w.abs().max()).item(), 1))
            continue
        key = name.removeprefix("after5.")
        difference, size = (g - w).abs(), (w - initial[key].double()).abs().max()
        if without_noise:
            difference[is_noise(want[0]["grad." + key])] = 0.0
        rows.append((name, (difference.max() / size).item(), 10))
    return rows


def read_expected(case_dir):
    """(settings, input_ids, labels, (tensors, losses, grad_norms)) of a case."""
    with open(os.path.join(case_dir, "expected.json")) as f:
        settings = json.load(f)
    tensors = read_tensors(os.path.join(case_dir, "expected.safetensors"))
    input_ids, labels = tensors.pop("input_ids"), tensors.pop("labels")
    return settings, input_ids, labels, (tensors, settings["losses"], settings["grad_norms"])
