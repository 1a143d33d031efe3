#!/usr/bin/env python3
"""Compares the ids of build/tokenize with those of Hugging Face's `tokenizers`, and writes the fixtures that CI tests.

    compare_tokenizers.py [--build build] [--megabytes 1]      trains a vocabulary for each of the four pre-tokenizers
    compare_tokenizers.py --tokenizer DIR|FILE [...]           takes the tokenizer.json given instead
    compare_tokenizers.py --vocabulary KIND=FILE [...]         takes a real vocabulary: a .tiktoken file (Qwen's), Llama 3's
                                                               tokenizer.model, GPT-2's vocab.bpe with encoder.json
                                                               beside it, or a GGUF file (needs the package `gguf`)
    compare_tokenizers.py --text FILE                          compares on that text instead of the mixed one
    compare_tokenizers.py --fixtures tests/tokenizers         writes the fixtures

Needs the package `tokenizers`. The mixed text is the same in every run: many scripts, emoji and their sequences, combining
marks in and out of order, control bytes, runs of spaces and line ends, numbers, code, and characters drawn from all of
Unicode. One line a case, `PASS|FAIL name ...`; exits 1 on any failure.
"""
import argparse
import base64
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")


def split_then_bytes(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


# The printable character that stands for each byte in a vocabulary file.
PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
BYTE_CHARACTERS = {b: chr(b) for b in PRINTABLE} | {b: chr(256 + i) for i, b in enumerate(sorted({*range(256)} - {*PRINTABLE}))}

# As the models' own tokenizer.json files have them.
KINDS = {
    "gpt2": dict(pre=pre_tokenizers.ByteLevel(add_prefix_space=False), special=["<|endoftext|>"]),
    "llama3": dict(pre=split_then_bytes(LLAMA3), ignore_merges=True, bos="<|begin_of_text|>",
                   special=["<|end_of_text|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]),
    "qwen2": dict(pre=split_then_bytes(QWEN2), normalizer=normalizers.NFC(),
                  special=["<|endoftext|>", "<|im_start|>", "<|im_end|>"], plain=["<tool_call>", "</tool_call>"]),
    "smollm": dict(pre=pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                pre_tokenizers.ByteLevel(add_prefix_space=False)]),
                   special=["<|endoftext|>", "<|im_start|>", "<|im_end|>"]),
}

SAMPLES = [
    "The quick brown fox doesn't jump over the lazy dog; it's they're we've I'm you'll he'd. IT'S THEY'RE WE'VE I'M YOU'LL",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. L'été, où êtes-vous? ¿Qué pasó, señor? Ação!",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Ξεσκεπάζω τὴν ψυχοφθόρα βδελυγμία.",
    "いろはにほへと　ちりぬるを。漢字とカタカナ、ﾊﾝｶｸ。 天地玄黃，宇宙洪荒。日月盈昃，辰宿列張。 다람쥐 헌 쳇바퀴에 타고파",
    "صِف خَلقَ خَودِ كَمِثلِ الشَمسِ إِذ بَزَغَت ١٢٣ דג סקרן שט בים מאוכזב ऋषियों को सताने वाले दुष्ट राक्षसों २०२४ เป็นมนุษย์สุดประเสริฐ",
    "for (int i = 0; i < n; ++i) {\n\tsum += a[i] * 3.14159e-10;\n    if (x != 0xDEADBEEF) return -1; // done\n}\n",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪🇯🇵 😀😃 ❤️ ☃️ ①②③ ½ ⅷ ²³ ﬁ ﬆ '\u017f 'S 'K",
    "1 22 333 4444 55555 1234567890 3,14 2026-11-30T12:00:00Z +49 30 123456 v1.2.3",
    "<|endoftext|> <|im_start|>user\nhello<|im_end|>\n<tool_call>{\"a\": 1}</tool_call> <|eot_id|><|",
    "http://example.org/a_b?c=d&e=%20f#g  user@example.org  C:\\dir\\file.txt  ~/x/../y  --flag=value\r\n\r\n",
]
MARKS = [c for c in range(0x300, 0x1ae0) if unicodedata.combining(chr(c))] + [0x3099, 0x20d7, 0x1d165, 0xfe20]
LETTERS = "aeiouyAEIOUcnsz" + "αεηιουω" + "กขค" + "かきくはひ" + "अकखग" + "\u1100\u1161\u11a8\uac00\uac01" + "\u212b\u2126\ufb1d\u0344\u1f71"
SPACES = " \t\n\r\x0b\x0c\x85\xa0\u1680\u180e\u2000\u2003\u2009\u200a\u200b\u2028\u2029\u202f\u205f\u3000\ufeff"


def mixed_text(size_bytes, seed=1):
    rng = random.Random(seed)

    def any_character():
        while True:
            c = rng.choice([rng.randrange(0x800), rng.randrange(0x10000), rng.randrange(0x20000), rng.randrange(0x110000)])
            if not 0xD800 <= c < 0xE000:
                return chr(c)

    makers = [
        (30, lambda: rng.choice(SAMPLES) + rng.choice([" ", "\n", ""])),
        (30, lambda: " ".join(rng.choice(rng.choice(SAMPLES).split()) for _ in range(rng.randrange(1, 20)))),
        (6, lambda: rng.choice("  \n\t\r") * rng.choice([1, 2, 3, 10, 200])),
        (6, lambda: "".join(rng.choice(SPACES) for _ in range(rng.randrange(1, 8)))),
        (6, lambda: "".join(chr(rng.randrange(32)) for _ in range(rng.randrange(1, 6)))),
        (6, lambda: "".join(rng.choice(LETTERS) + "".join(chr(rng.choice(MARKS)) for _ in range(rng.randrange(5)))
                            for _ in range(rng.randrange(1, 10)))),
        (6, lambda: "".join(any_character() for _ in range(rng.randrange(1, 12)))),
        (6, lambda: "".join(chr(rng.randrange(0x1f300, 0x1fb00)) for _ in range(rng.randrange(1, 8)))),
        (4, lambda: str(rng.randrange(10 ** rng.randrange(1, 30)))),
        (4, lambda: rng.choice("abcxyz=-_.#!é中") * rng.choice([2, 5, 33, 70, 300])),
        (3, lambda: "'" + rng.choice(["s", "T", "rE", "VE", "m", "LL", "d", "x", "\u017f", ""]) + rng.choice(["", "a", " "])),
    ]
    pieces, size = [], 0
    while size < size_bytes:
        piece = rng.choices([m for _, m in makers], [w for w, _ in makers])[0]()
        pieces.append(piece)
        size += len(piece.encode())
    return "".join(pieces)


def train(kind, text, vocabulary_size):
    settings = KINDS[kind]
    tokenizer = Tokenizer(models.BPE(ignore_merges=settings.get("ignore_merges", False)))
    tokenizer.pre_tokenizer = settings["pre"]
    if "normalizer" in settings:
        tokenizer.normalizer = settings["normalizer"]
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary_size, show_progress=False,
                                  special_tokens=settings["special"] if kind == "smollm" else [],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([text], trainer)
    tokenizer.add_special_tokens(settings["special"])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in settings.get("plain", [])])
    if "bos" in settings:
        bos = settings["bos"]
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A {bos} $B:1",
                                          special_tokens=[(bos, tokenizer.token_to_id(bos))])])
    return tokenizer


def spelled(token_bytes):
    return "".join(BYTE_CHARACTERS[b] for b in token_bytes)


def from_ranks(ranks):
    """Merges of a vocabulary whose ids are priorities: every way to put a token together, as transformers converts."""
    merges = []
    for token, rank in ranks.items():
        ways = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        merges += [(rank, ranks[a], ranks[b], spelled(a), spelled(b)) for a, b in ways]
    return {spelled(token): rank for token, rank in ranks.items()}, [(a, b) for *_, a, b in sorted(merges)]


def real(kind, path):
    """The vocabulary of a published file with the rest as KINDS has it."""
    settings, added = KINDS[kind], KINDS[kind]["special"] + KINDS[kind].get("plain", [])
    if path.suffix == ".gguf":
        from gguf import GGUFReader
        fields = GGUFReader(path).fields
        tokens, types = (fields["tokenizer.ggml." + name].contents() for name in ("tokens", "token_type"))
        vocabulary = {token: i for i, token in enumerate(tokens)}
        merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
        added = [token for token, what in zip(tokens, types) if what == 3]
    elif path.name == "vocab.bpe":
        vocabulary = json.loads((path.parent / "encoder.json").read_text())
        merges = [tuple(line.split(" ")) for line in path.read_text().splitlines() if " " in line and not line.startswith("#")]
    else:
        lines = (line.split() for line in path.read_bytes().splitlines() if line)
        vocabulary, merges = from_ranks({base64.b64decode(token): int(rank) for token, rank in lines})
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=settings.get("ignore_merges", False)))
    tokenizer.pre_tokenizer, tokenizer.decoder = settings["pre"], decoders.ByteLevel()
    if "normalizer" in settings:
        tokenizer.normalizer = settings["normalizer"]
    tokenizer.add_special_tokens(added)
    return tokenizer


def save(tokenizer, kind, directory):
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"), pretty=False)
    if kind == "gpt2":  # files of earlier years spell merges "a b"
        document = json.loads((directory / "tokenizer.json").read_text())
        document["model"]["merges"] = [" ".join(pair) for pair in document["model"]["merges"]]
        (directory / "tokenizer.json").write_text(json.dumps(document, ensure_ascii=False))
    special = KINDS[kind]["special"]
    config = {"eos_token": special[-1] if kind == "qwen2" else special[0], "bos_token": KINDS[kind].get("bos")}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def tokens_of(path):
    data = path.read_bytes()
    magic, _, count = (int.from_bytes(data[i:i + 4], "little") for i in (0, 4, 8))
    width = 2 if magic == 20240520 else 4
    return [int.from_bytes(data[1024 + i * width:1024 + (i + 1) * width], "little") for i in range(count)]


def compare(name, source, text, build, ours=None):
    """`source`: a directory or tokenizer.json for `tokenizers`; `ours`: what build/tokenize is given instead."""
    source = pathlib.Path(source)
    theirs = Tokenizer.from_file(str(source / "tokenizer.json" if source.is_dir() else source))
    theirs.encode_special_tokens = True  # build/tokenize leaves their spelling as text
    want = theirs.encode(text, add_special_tokens=False).ids
    first = theirs.encode("", add_special_tokens=True).ids[:1]  # what build/tokenize puts before the text, too
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        (folder / "text").write_bytes(text.encode())
        report = subprocess.run([f"{build}/tokenize", "--tokenizer", ours or source, "--val-fraction", "0", "--output-dir",
                                 folder / "out", folder / "text"], check=True, capture_output=True, text=True).stdout
        got = tokens_of(folder / "out" / "train.bin")[len(first):-1]
    rate = next(line for line in report.splitlines() if line.startswith("encoded"))
    if got == want:
        print(f"PASS {name}: {len(want)} ids; {rate}")
        return True
    at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
    show = lambda ids: [theirs.decode([i]) for i in ids[max(0, at - 3):at + 8]]
    print(f"FAIL {name}: {len(got)} ids, wanted {len(want)}; the first to differ is {at}:\n  got    {show(got)}\n  wanted {show(want)}")
    return False


def fnv(ids):
    """FNV-1a over the ids, four bytes each, low byte first."""
    value = 0xCBF29CE484222325
    for i in ids:
        for byte in i.to_bytes(4, "little"):
            value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def every_character():
    """Each character between others that show what it is taken for, as tests/data/tokenizer/test_bpe_tokenizer.cpp makes it too."""
    return "".join(chr(c) + "a1 ."[c % 4] for c in range(0x32400) if not 0xD800 <= c < 0xE000)


def write_fixture(kind, directory):
    text = mixed_text(60000, seed=3)
    tokenizer = train(kind, " ".join(SAMPLES) * 3 + text, 620)
    save(tokenizer, kind, directory)
    texts = ["", " ", "a", "\n", "hello world", " leading", "trailing  ", "a\n\nb", "a \n b", *SAMPLES]
    texts += [mixed_text(300, seed) for seed in range(30)] + [mixed_text(4000, 99)]
    texts += ["<|endoftext|>", "a<|endoftext|><|im_start|>b", "<|eot_id|>  x", "x <|im_end|", "<<|im_end|>>", "<tool_call><tool_call"]
    texts += ["a" * n for n in (30, 31, 47, 48, 49, 50, 1000)] + [" " * 1000 + "x", "\n" * 100 + "x", "e\u0301" * 50]
    cases = []
    for one in texts:
        tokenizer.encode_special_tokens = False
        parsed = tokenizer.encode(one, add_special_tokens=False).ids
        tokenizer.encode_special_tokens = True
        as_text = tokenizer.encode(one, add_special_tokens=False).ids
        cases.append({"text": one, "ids": as_text} | ({"parsed": parsed} if parsed != as_text else {}))
    with open(directory / "expected.json", "w") as out:
        out.write('{"every_character": "%016x",\n"cases": [\n' % fnv(tokenizer.encode(every_character(), add_special_tokens=False).ids))
        out.write(",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--megabytes", type=float, default=1)
    parser.add_argument("--tokenizer", action="append")
    parser.add_argument("--vocabulary", action="append", metavar="KIND=FILE")
    parser.add_argument("--text", type=pathlib.Path)
    parser.add_argument("--fixtures", type=pathlib.Path)
    options = parser.parse_args()
    if options.fixtures:
        for kind in KINDS:
            write_fixture(kind, options.fixtures / kind)
        return
    text = options.text.read_text(newline="") if options.text else mixed_text(int(options.megabytes * 1e6))
    passed, trained = True, not (options.tokenizer or options.vocabulary)
    with tempfile.TemporaryDirectory() as temporary:
        for source in options.tokenizer or []:
            passed &= compare(source, source, text, options.build)
        for kind, path in (one.split("=", 1) for one in options.vocabulary or []):
            directory = pathlib.Path(temporary) / ("real-" + kind)
            save(real(kind, pathlib.Path(path)), kind, directory)
            passed &= compare(f"{kind} with {path}", directory, text, options.build)
            if path.endswith(".gguf"):
                passed &= compare(f"{kind} straight from {path}", directory, text, options.build, path)
        for kind in KINDS if trained else []:
            directory = pathlib.Path(temporary) / kind
            save(train(kind, text[:400000] + " ".join(SAMPLES) * 20, 8000), kind, directory)
            passed &= compare(kind, directory, text, options.build)
    sys.exit(not passed)


if __name__ == "__main__":
    main()
