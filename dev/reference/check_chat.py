#!/usr/bin/env python3
"""Compares how build/tokenize renders conversations with transformers' apply_chat_template, and writes the fixture that
CI tests.

    check_chat.py [--build build] [--conversations 300]        Llama 3, ChatML, Qwen2 and SmolLM2, vocabularies of
                                                               tests/tokenizers
    check_chat.py --gguf KIND=FILE [...]                       with the vocabulary of a GGUF file; smollm= compares with
                                                               transformers' own reading of the file, too
    check_chat.py --fixture tests/chat_cases.json              writes the fixture

The text is compared for every conversation, ids and loss mask for most. Left out there are messages with the spelling of
a special token: transformers makes the token of it, we leave it text outside of replies.
One line a case, `PASS|FAIL name ...`; exits 1 on any failure. Needs `transformers`, for --gguf `gguf`.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

from tokenizers import pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import compare_tokenizers

HERE = pathlib.Path(__file__).parent
TOKENIZERS = HERE.parent.parent / "tests" / "tokenizers"

REPLY = "{%% if m['role'] == 'assistant' %%}%s{%% generation %%}%s{%% endgeneration %%}%s{%% else %%}%s{%% endif %%}"


def chatml(system):
    """The form that SmolLM2 and Qwen2 publish; `system` stands where a conversation begins with no system message."""
    default = ("{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n" + system +
               "<|im_end|>\n' }}{% endif %}") if system else ""
    header, content, end = "{{ '<|im_start|>' + m['role'] + '\n' }}", "{{ m['content'] }}{{ '<|im_end|>' }}", "{{ '\n' }}"
    return "{% for m in messages %}" + default + REPLY % (header, content, end, header + content + end) + "{% endfor %}"


LLAMA3_HEADER = "{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' }}"
LLAMA3_CONTENT = "{{ m['content'] | trim }}{{ '<|eot_id|>' }}"
LLAMA3 = ("{{ bos_token }}{% for m in messages %}" + REPLY % (LLAMA3_HEADER, LLAMA3_CONTENT, "", LLAMA3_HEADER + LLAMA3_CONTENT) +
          "{% endfor %}")

FORMS = {  # name: kind of tests/tokenizers, template
    "llama3": ("llama3", LLAMA3),
    "chatml": ("smollm", chatml("")),
    "qwen2": ("qwen2", chatml("You are a helpful assistant.")),
    "smollm2": ("smollm", chatml("You are a helpful AI assistant named SmolLM, trained by Hugging Face")),
}
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|endoftext|>"]
BLANKS = ["", "", "", " ", "\n", "\t\n ", "\u00a0", "\u2003\u3000", "\x1f", "\x85\r\n"]


def conversations(count, seed, longest=60):
    rng = random.Random(seed)

    def content():
        kind = rng.randrange(12)
        if kind == 0:
            return rng.choice(["", " ", "\n\n"])
        if kind == 1:
            return rng.choice(SPECIAL) + rng.choice(["", "x", "\n"]) + rng.choice(SPECIAL)
        text = (compare_tokenizers.mixed_text(longest, rng.randrange(1 << 30)) if kind < 6 else
                " ".join(rng.choice(["Add", "12", "345", "and", "  7", "the", "it's", "Größe", "é", "2026", "\n", "日本"])
                         for _ in range(rng.randrange(1, 12))))
        return rng.choice(BLANKS) + text[:2 * longest] + rng.choice(BLANKS)

    def plain(text):  # so that ids can be compared
        while any(special in text for special in SPECIAL):
            for special in SPECIAL:
                text = text.replace(special, "")
        return text

    for i in range(count):
        roles = ["system"] * (rng.random() < 0.4) + ["user", "assistant"] * rng.randrange(1, 5)
        yield [{"role": role, "content": plain(content()) if i % 3 else content()} for role in roles]


def theirs(tokenizer, messages):
    out = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    return (tokenizer.apply_chat_template(messages, tokenize=False), list(out["input_ids"]), list(out["assistant_masks"]))


def comparable(messages):
    return all(special not in m["content"] for m in messages for special in SPECIAL)


def ours(build, source, all_messages):
    """Ids and loss mask of each conversation, through a file of rows."""
    T = 4096
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        (folder / "chat.jsonl").write_text("".join(json.dumps({"messages": m}) + "\n" for m in all_messages))
        subprocess.run([f"{build}/tokenize", "--tokenizer", source, "--val-fraction", "0", "--sequence-len", str(T), "--output-dir",
                        folder / "out", folder / "chat.jsonl"], check=True, capture_output=True)
        tokens = compare_tokenizers.tokens_of(folder / "out" / "train.bin")
        mask = (folder / "out" / "train.mask").read_bytes()[1024:]
    for row in range(len(all_messages)):
        begin = row * T
        end = next((i for i in range(begin + 1, begin + T) if mask[i] & 2), begin + T)
        yield tokens[begin:end], [bit & 1 for bit in mask[begin:end]]


def keeper(tokenizer):
    """SmolLM2's vocabulary has no token for 21 byte values, some controls and leads of unassigned planes: we drop them."""
    vocabulary = tokenizer.get_vocab()
    lost = {byte for byte, spelling in compare_tokenizers.BYTE_CHARACTERS.items() if spelling not in vocabulary}
    return lambda text: "".join(c for c in text if not lost.intersection(c.encode())) if lost else text


def compare(name, tokenizer, source, build, count):
    all_messages, kept = list(conversations(count, name)), keeper(tokenizer)
    texts = ids = same_texts = same_ids = 0
    first = ""
    for messages, (got, got_mask) in zip(all_messages, ours(build, source, all_messages)):
        text, want, want_mask = theirs(tokenizer, messages)
        shown = tokenizer.decode(got)
        if tokenizer.backend_tokenizer.normalizer is not None:
            text = tokenizer.backend_tokenizer.normalizer.normalize_str(text)
        if kept(text) != text:
            continue
        texts += 1
        same_texts += shown == text
        if shown != text:
            first = first or f"\n  got    {shown!r}\n  wanted {text!r}"
        if not comparable(messages):
            continue
        ids += 1
        same_ids += got == want and got_mask == want_mask
        if got != want or got_mask != want_mask:
            at = next((i for i, (a, b) in enumerate(zip(zip(got, got_mask), zip(want, want_mask))) if a != b), -1)
            first = first or f"\n  place {at} of {text!r}\n  got    {got[at:at + 8]}\n  wanted {want[at:at + 8]}"
    passed = same_texts == texts and same_ids == ids and ids >= count // 2
    print(f"{'PASS' if passed else 'FAIL'} {name}: {same_texts} of {texts} texts, {same_ids} of {ids} ids and masks{first}")
    return passed


def trained(form):
    kind, template = FORMS[form]
    config = json.loads((TOKENIZERS / kind / "tokenizer_config.json").read_text())
    return PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZERS / kind / "tokenizer.json"), chat_template=template,
                                   bos_token=config["bos_token"], eos_token=config["eos_token"],
                                   clean_up_tokenization_spaces=False)


def save(form, tokenizer, directory):
    """As a model's directory has them: the tokenizer's files, and the template beside them."""
    directory.mkdir(parents=True)
    tokenizer.backend_tokenizer.save(str(directory / "tokenizer.json"), pretty=False)
    (directory / "tokenizer_config.json").write_text(json.dumps({"bos_token": tokenizer.bos_token, "eos_token": tokenizer.eos_token}))
    (directory / "chat_template.jinja").write_text(tokenizer.chat_template)


def compare_gguf(kind, path, build, count):
    form = {"llama3": "llama3", "qwen2": "qwen2", "smollm": "smollm2"}[kind]
    with tempfile.TemporaryDirectory() as temporary:
        tokenizer_file = pathlib.Path(temporary) / "tokenizer.json"
        compare_tokenizers.real(kind, path).save(str(tokenizer_file))
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer_file), chat_template=FORMS[form][1],
                                            bos_token=compare_tokenizers.KINDS[kind].get("bos"), clean_up_tokenization_spaces=False)
    if kind != "smollm":  # vocabulary files have no template of their own
        with tempfile.TemporaryDirectory() as temporary:
            directory = pathlib.Path(temporary) / "model"
            tokenizer.eos_token = compare_tokenizers.KINDS[kind]["special"][0]
            save(form, tokenizer, directory)
            return compare(f"{form} with {path}", tokenizer, directory, build, count)
    passed = compare(f"{form} straight from {path}", tokenizer, path, build, count)
    # transformers' own reading of the file knows nothing of the pre-tokenizer that the file names (tokenizer.ggml.pre).
    reading = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    kept = keeper(tokenizer)
    texts = [kept(theirs(tokenizer, messages)[0]) for messages in conversations(count, form)]
    differ = lambda: sum(reading(text).input_ids != tokenizer(text, add_special_tokens=False).input_ids for text in texts)
    print(f"     transformers' reading of the file has the pre-tokenizer {reading.backend_tokenizer.pre_tokenizer}:")
    print(f"     {differ()} of {count} conversations have other ids")
    reading.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    left = differ()
    print(f"{'PASS' if left == 0 else 'FAIL'} smollm: with the Digits step before it, {left} of {count} have")
    return passed and left == 0


def write_fixture(path, count=10):
    forms = []
    for form, (kind, template) in FORMS.items():
        tokenizer, cases = trained(form), []
        for messages in conversations(count, "fixture " + form, longest=20):
            text, ids, mask = theirs(tokenizer, messages)
            case = {"messages": messages, "text": text}
            if comparable(messages):
                case |= {"ids": ids, "mask": mask}
            cases.append(json.dumps(case, separators=(",", ":")))
        forms.append('{"name": "%s", "tokenizer": "%s", "template": %s,\n"cases": [\n%s\n]}' %
                     (form, kind, json.dumps(template), ",\n".join(cases)))
    path.write_text("[\n" + ",\n".join(forms) + "\n]\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--conversations", type=int, default=300)
    parser.add_argument("--gguf", action="append", metavar="KIND=FILE")
    parser.add_argument("--fixture", type=pathlib.Path)
    options = parser.parse_args()
    if options.fixture:
        return write_fixture(options.fixture)
    passed = True
    for kind, path in (one.split("=", 1) for one in options.gguf or []):
        passed &= compare_gguf(kind, pathlib.Path(path), options.build, options.conversations)
    for form in FORMS if not options.gguf else []:
        with tempfile.TemporaryDirectory() as temporary:
            directory, tokenizer = pathlib.Path(temporary) / form, trained(form)
            save(form, tokenizer, directory)
            passed &= compare(form, tokenizer, directory, options.build, options.conversations)
    sys.exit(not passed)


if __name__ == "__main__":
    main()
