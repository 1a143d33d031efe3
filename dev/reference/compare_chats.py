#!/usr/bin/env python3
"""Compares conversations that build/tokenize renders with transformers' apply_chat_template, for published chat templates.

    compare_chats.py FILE.jinja|DIRECTORY [...] [--build build] [--conversations 300] [--show]

One vocabulary serves every template: byte-level BPE, trained here, with the template's own special tokens added. Random
conversations have system messages, blanks around texts, other scripts, thoughts, tools and messages of the role tool,
each where transformers renders the template with them. Users' texts spell no special token.

Compared are the ids of each conversation. Of what is trained on: with generation blocks the mask must be transformers';
else the last reply's tokens must be the ids that follow transformers' generation prompt, up to the special token that ends
the turn. One line a template,
`PASS|FAIL name ...`; exits 1 on any failure. Needs `transformers`.
"""
import argparse
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile

from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

import compare_tokenizers

SPECIAL = re.compile(r"<\|[^<>|'\"{}\s]+\|>|<｜[^<>'\"{}\s]+｜>|<\[[a-z_]+\]>|\[/?[A-Z_]{3,}\]|<(?:start|end)_of_[a-z]+>|</?s>|<bos>|<eos>"
                     r"|<\|?(?:turn|tool|channel)\|?>|\]<\][a-z ]+\[>\[|\[e~\[|\]~b\]|\]~!b\[|<\|?(?:im_middle|im_end|im_user)\|?>")
PLAIN = re.compile(r"</?(?:think|tool_call|tool_response|tools|seed:[a-z_]+)>")
WORDS = ["Add", "12", "345", "and", "  7", "the", "it's", "Größe", "é", "2026", "\n", "日本", "Ünï", "вода", "ماء", "a\u0301", "```py\nx = 1\n```",
         "<b>", "{{ x }}", "{% if %}", "'", '"', "\\n", "&", "👍🏽"]
BLANKS = ["", "", "", "", " ", "\n", "\t\n ", "\u00a0", "\u3000", "\r\n"]
TOOLS = [{"type": "function", "function": {"name": name, "description": text, "parameters": {
    "type": "object", "properties": {"z": {"type": "string", "description": "Größe"}, "a": {"type": "integer"}}, "required": ["z"]}}}
    for name, text in (("find_town", "Finds a town."), ("add", "Adds <two> numbers & more."))]
CALL = {"id": "call00001", "type": "function", "function": {"name": "find_town", "arguments": {"z": "Ünï", "a": 3}}}


def text_of(rng, blanks=True):
    words = " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 12)))
    return rng.choice(BLANKS) + words + rng.choice(BLANKS) if blanks else words.strip() or "x"


def record(rng, features):
    """A record with these features at random."""
    chance = lambda feature: feature in features and rng.random() < 0.5
    messages = [{"role": "system", "content": text_of(rng)}] if chance("system") else []
    made, tools = {}, chance("tools")
    if tools:
        made["tools"] = TOOLS[:rng.randrange(1, 3)]
    for _ in range(rng.randrange(1, 4)):
        messages.append({"role": "user", "content": text_of(rng)})
        if tools and "calls" in features and rng.random() < 0.6:
            messages.append({"role": "assistant", "content": "" if rng.random() < 0.5 else text_of(rng), "tool_calls": [CALL]})
            messages.append({"role": "tool", "tool_call_id": "call00001", "name": "find_town", "content": text_of(rng)})
        reply = {"role": "assistant", "content": text_of(rng)}
        if chance("thoughts"):
            reply["reasoning_content"] = text_of(rng)
        messages.append(reply)
    return made | {"messages": messages}


def tokenizer_for(template, directory):
    base = compare_tokenizers.train("qwen2", compare_tokenizers.mixed_text(200_000), 600)
    special = sorted(set(SPECIAL.findall(template)) | {"<s>", "</s>"})
    base.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    base.add_tokens([AddedToken(token, special=False, normalized=False) for token in sorted(set(PLAIN.findall(template)))])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=base, bos_token="<s>", eos_token="</s>", chat_template=template,
                                        clean_up_tokenization_spaces=False)
    directory.mkdir()
    base.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    (directory / "chat_template.jinja").write_text(template)
    return tokenizer


def ids_of(tokenizer, conversation, **more):
    return list(tokenizer.apply_chat_template(conversation["messages"], tools=conversation.get("tools"), tokenize=True,
                                              return_dict=True, **more)["input_ids"])


def is_rendered(tokenizer, conversation):
    try:
        text = tokenizer.apply_chat_template(conversation["messages"], tools=conversation.get("tools"), tokenize=False)
    except Exception:  # the template's own, whatever it is
        return False
    # A template that leaves tools or thoughts out has no place for them; ours refuses these.
    said = [m.get("reasoning_content", "").strip() for m in conversation["messages"][-1:]]
    return all(s in text for s in said) and ("tools" not in conversation or "find_town" in text)


def features_of(tokenizer, template):
    found = set()
    for feature in ("system", "tools", "calls", "thoughts"):
        rng = random.Random(1)
        some = [record(rng, {feature, "tools"} if feature == "calls" else {feature}) for _ in range(20)]
        if feature in ("tools", "calls"):
            some = [c for c in some if "tools" in c] if "tools" in template else []
        if feature == "calls" and "tool_calls" not in template:  # left out silently; ours refuses them
            some = []
        if feature == "thoughts" and not re.search("reasoning_content|thinking", template):
            some = []
        if some and all(is_rendered(tokenizer, c) for c in some):
            found.add(feature)
    return found


def ours(build, source, conversations, *flags):
    """Ids and mask of each conversation, through a file of rows; and what was printed."""
    T = 16384
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        (folder / "chat.jsonl").write_text("".join(json.dumps(c) + "\n" for c in conversations))
        done = subprocess.run([f"{build}/tokenize", "--tokenizer", source, "--val-fraction", "0", "--sequence-len", str(T),
                               "--output-dir", folder / "out", *flags, folder / "chat.jsonl"], capture_output=True, text=True)
        if done.returncode:
            return [], done.stderr.strip()
        tokens = compare_tokenizers.tokens_of(folder / "out" / "train.bin")
        mask = (folder / "out" / "train.mask").read_bytes()[1024:]
    rows = []
    for begin in range(0, len(tokens) - 1, T):
        end = next((i for i in range(begin + 1, begin + T) if mask[i] & 2), begin + T)
        rows.append((list(tokens[begin:end]), [bit & 1 for bit in mask[begin:end]]))
    return rows, done.stdout


def last_turn(tokenizer, conversation, ids):
    """Where the last reply begins, by transformers; None where the generation prompt does not begin the whole."""
    try:
        prompt = ids_of(tokenizer, conversation | {"messages": conversation["messages"][:-1]}, add_generation_prompt=True)
    except Exception:
        return None
    return len(prompt) if ids[:len(prompt)] == prompt else None


def compare(path, build, count, show):
    template = path.read_text()
    with tempfile.TemporaryDirectory() as temporary:
        directory = pathlib.Path(temporary) / "model"
        tokenizer = tokenizer_for(template, directory)
        features = features_of(tokenizer, template)
        rng, conversations = random.Random(path.name), []
        for _ in range(10 * count):
            conversation = record(rng, features)
            if len(conversations) < count and is_rendered(tokenizer, conversation):
                conversations.append(conversation)
        want = [ids_of(tokenizer, c) for c in conversations]
        got, said = ours(build, directory, conversations, "--train-on-inputs")
        wrong = [i for i in range(len(want)) if i >= len(got) or got[i][0] != want[i]]
        # One conversation a file, so that those without a target do not move the rows.
        trained, said_of_mask = ours(build, directory, conversations)
        by_ids = {tuple(ids): mask for ids, mask in trained}
        special = set(tokenizer.all_special_ids) | {t for t, a in tokenizer.added_tokens_decoder.items() if a.special}
        blocks, last, begins = re.search(r"{%-?\s*generation", template), 0, 0
        for conversation, ids in zip(conversations, want):
            mask, begin = by_ids.get(tuple(ids)), last_turn(tokenizer, conversation, ids)
            if mask is None or "add_generation_prompt" not in template or (begin is None and not blocks):
                continue
            begins += 1
            if blocks:
                wanted = tokenizer.apply_chat_template(conversation["messages"], tools=conversation.get("tools"), tokenize=True,
                                                       return_dict=True, return_assistant_tokens_mask=True)["assistant_masks"]
                last += mask[1:] == list(wanted)[1:]
                continue
            ends = [i for i in range(begin, len(ids)) if ids[i] in special]
            end = ends[-1] + 1 if ends else len(ids)
            good = mask[begin:] == [1] * (end - begin) + [0] * (len(ids) - end) and (begin == 0 or mask[begin - 1] == 0 or not ends)
            last += good
            if show and not good:
                print("    ", tokenizer.decode(ids[begin - 3:]), mask[begin - 3:], begin, end, len(ids))
    if not want:
        print(f"SKIP {path.name}: transformers renders none of the conversations")
        return True
    passed = not wrong and len(want) == count and last == begins and len(trained) == count
    print(f"{'PASS' if passed else 'FAIL'} {path.name}: {len(want) - len(wrong)} of {len(want)} with transformers' ids "
          f"({', '.join(sorted(features)) or 'plain'}), {last} of {begins} last turns as generated, {len(trained)} with targets")
    if show or not passed:
        print("    " + said.replace("\n", "\n    "))
        print("    " + said_of_mask.replace("\n", "\n    "))
        for i in wrong[:1]:
            print("    ", json.dumps(conversations[i], ensure_ascii=False))
            print("    wanted", repr(tokenizer.decode(want[i])))
            if i < len(got):
                print("    got   ", repr(tokenizer.decode(got[i][0])))
    return passed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("templates", nargs="+", type=pathlib.Path)
    parser.add_argument("--build", default="build")
    parser.add_argument("--conversations", type=int, default=300)
    parser.add_argument("--show", action="store_true", help="what build/tokenize says, too")
    options = parser.parse_args()
    files = [f for path in options.templates for f in (sorted(path.glob("*.jinja")) if path.is_dir() else [path])]
    results = [compare(f, options.build, options.conversations, options.show) for f in files]
    print(f"{sum(results)} of {len(results)} templates pass")
    sys.exit(not all(results))


if __name__ == "__main__":
    main()
