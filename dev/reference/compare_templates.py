#!/usr/bin/env python3
"""Random templates and contexts, rendered by jinja2 and by build/render_template: the text, or the fact of an error, must agree.

    pip install jinja2==3.1.6
    python compare_templates.py [--number 2000] [--seed 1] [--program build/render_template] [--keep FILE.jsonl]
    python compare_templates.py --fixture tests/template_cases.json    writes what jinja2 makes of template_cases.py

jinja2 is set up as transformers sets it up for chat templates: the immutable sandbox, trim_blocks and lstrip_blocks, loop
controls, generation blocks, transformers' tojson. What is refused here on purpose, and works in Python, is counted apart.
"""

import argparse
import datetime
import json
import random
import subprocess
import sys
import tempfile

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
import jinja2.utils

import template_cases

NOW = datetime.datetime(2026, 12, 1, 8, 5, 9)
# What an answer says when the program could go on but does not want to.
ON_PURPOSE = (
    "not implemented",
    "64 bits",
    "not ASCII",
    "capital sigma",
    "steps",
    "levels at most",
    "prints a ",
    "same object",
    "views of dicts",
    "root of a negative",
    " slice",  # of what has none: Jinja makes a constant one undefined, but raises an error for others
)


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_print"), [], [], body).set_lineno(line)

    def _print(self, caller):
        return caller()


class Namespace(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):
        self, args = args[0], args[1:]
        attributes = dict(*args, **kwargs)
        for name in attributes:
            Namespace._check(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name, value):
        Namespace._check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def _check(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(name)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals.update(raise_exception=raise_exception, strftime_now=NOW.strftime, namespace=Namespace)
    return env


class Maker:
    """Makes expressions of a wanted type most of the time, and of any type now and then."""

    TEXTS = [
        "user",
        "assistant",
        "system",
        "tool",
        "",
        " ",
        "a",
        "b",
        "ab",
        "A b",
        "x\ny",
        "  padded \n",
        "Zürich",
        "你好",
        "😀 e\u0301",
        "it's",
        'say "hi"',
        "<b>&",
        "</think>",
        "a,b,,c",
        "12",
        " -3 ",
        "4.5",
        "1_000",
        "0x1f",
        "\\n",
        "\u2028",
        "\u00a0nbsp\u00a0",
        "\x1c",
        "tab\there",
        "{}",
        "{0}-{1}",
        "%s",
        "%d|%5.2f",
        "\r\n",
        "ǆ ß ﬁ",
        "aXbXc",
        "___",
    ]

    JSON = ["", "", "(indent=2)", "(true)", "(sort_keys=true)", "(indent=1, separators=(',', ': '))", "(indent='--')"]

    def __init__(self, seed):
        self.r = random.Random(seed)
        self.names = {
            "text": ["name", "bos", "note"],
            "int": ["n", "zero", "k"],
            "float": ["f"],
            "bool": ["yes", "no"],
            "list": ["messages", "words", "numbers", "mixed", "empty"],
            "dict": ["first", "table", "nested"],
        }
        self.macros, self.loops, self.spaces, self.counter = [], 0, [], 0

    # --- contexts
    def context(self):
        r = self.r
        text = lambda: r.choice(self.TEXTS)
        message = lambda: {
            "role": r.choice(self.TEXTS[:4]),
            "content": r.choice([text(), text(), None, [{"type": "text", "text": text()}]]),
            **({"extra": r.choice([1, True, text(), {"k": text()}])} if r.random() < 0.3 else {}),
        }
        messages = [message() for _ in range(r.randint(0, 4))]
        context = {
            "messages": messages,
            "words": [text() for _ in range(r.randint(0, 4))],
            "numbers": [r.randint(-5, 9) for _ in range(r.randint(0, 5))],
            "mixed": r.sample([1, "a", None, True, 2.5, [1, 2], {"k": "v"}, "", 0], r.randint(0, 5)),
            "empty": [],
            "first": message(),
            "table": {text(): r.choice([text(), r.randint(0, 9)]) for _ in range(r.randint(0, 4))},
            "nested": {"a": {"b": {"c": text()}}, "items": 3, "list": [1, [2, [3]]], "n": None},
            "name": text(),
            "bos": "<s>",
            "note": text(),
            "n": r.randint(-3, 12),
            "zero": 0,
            "k": r.randint(0, 4),
            "f": r.choice([0.0, 1.5, -2.25, 1e16, 1e-7, 3.0, 0.1]),
            "yes": True,
            "no": False,
            "nothing": None,
        }
        for key in list(context):
            if r.random() < 0.01:
                del context[key]
        return context

    # --- expressions
    def literal(self, text):
        quote = self.r.choice("'\"")
        out = ""
        for c in text:
            if c in "\\" + quote:
                out += "\\" + c
            elif c in "\n\r\t" or (ord(c) < 32) or (ord(c) > 127 and self.r.random() < 0.2):
                out += {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(c) or (
                    f"\\x{ord(c):02x}" if ord(c) < 256 else f"\\U{ord(c):08x}"
                )
            else:
                out += c
        return quote + out + quote

    def any(self, depth):
        return self.of(
            self.r.choice(["text", "text", "int", "float", "bool", "list", "dict"] + ["odd"] * (self.r.random() < 0.1)),
            depth,
        )

    def of(self, kind, depth=3):
        r = self.r
        if r.random() < 0.004:
            kind = r.choice(["text", "int", "float", "bool", "list", "dict", "odd"])
        if depth <= 0 or r.random() < 0.2:
            return self.leaf(kind)
        made = getattr(self, "make_" + kind)(depth - 1)
        return f"({made})" if r.random() < 0.99 and not (made[0] == "(" and made[-1] == ")") else made

    def leaf(self, kind):
        r = self.r
        if kind == "odd":
            return r.choice(
                [
                    "nothing",
                    "missing",
                    "none",
                    "missing.x",
                    "first.extra",
                    "first['content']",
                    "messages[0]",
                    "nested.items",
                    "None",
                    "nested['items']",
                    "namespace",
                    "range",
                    "loop",
                    "()",
                    "(1,)",
                    "name.x",
                    "messages[-1].content",
                    "true",
                    "bos[0]",
                ]
            )
        if r.random() < 0.5:
            return r.choice(self.names[kind])
        if kind == "text":
            return self.literal(r.choice(self.TEXTS))
        if kind == "int":
            return str(r.choice([0, 1, 2, 3, 7, 10, -1, 100]))
        if kind == "float":
            return r.choice(["0.5", "2.0", "1e3", "1.25", "3.14159", "1_0.5", "2e-3"])
        if kind == "bool":
            return r.choice(["true", "false", "True", "False"])
        if kind == "list":
            return r.choice(
                ["[]", "[1, 2, 3]", "['a', 'B', 'c']", "(1, 2)", "range(3)", "[3, 1, 2]", "['x', 'X', 'x']", "messages"]
            )
        return r.choice(["{}", "{'a': 1, 'b': 'x'}", "{'B': 2, 'a': [1], 'c': none}", "dict(x=1, y='z')", "first"])

    def make_odd(self, d):
        r = self.r
        return r.choice(
            [
                lambda: f"{self.of('dict', d)}.{r.choice(['role', 'content', 'extra', 'a', 'items', 'get', 'keys', 'zzz'])}",
                lambda: f"{self.of('dict', d)}[{self.any(d)}]",
                lambda: f"{self.of('list', d)}[{self.of('int', d)}]",
                lambda: f"({self.any(d)} if {self.of('bool', d)})",
                lambda: f"{self.of('list', d)} | {r.choice(['first', 'last', 'max', 'min', 'sum'])}",
                lambda: f"{self.any(d)} {r.choice(['+', '-', '*', '/', '//', '%', '~', '<', '==', 'in', 'and', 'or'])} {self.any(d)}",
                lambda: f"{self.any(d)} | default({self.any(d)}{r.choice(['', ', true'])})",
                lambda: f"{self.of('dict', d)}.get({self.of('text', d)}{r.choice(['', ', 5'])})",
                lambda: f"namespace(a={self.any(d)}, b=2).{r.choice('abc')}",
                lambda: f"{self.any(d)}.{r.choice(['strip()', 'items()', 'x', 'upper()', 'append(1)', 'name'])}",
            ]
        )()

    def make_text(self, d):
        r = self.r
        t = lambda: self.of("text", d)
        i = lambda: self.of("int", d)
        return r.choice(
            [
                lambda: f"({t()} + {t()})",
                lambda: f"({t()} ~ {self.any(d)} ~ {t()})",
                lambda: f"{t()} | {r.choice(['trim', 'upper', 'lower', 'capitalize', 'title', 'string', 'e', 'safe', 'reverse'])}",
                lambda: f"{t()}.{r.choice(['strip', 'lstrip', 'rstrip'])}({r.choice(['', t(), 'none'])})",
                lambda: f"{t()}[{r.choice(['', i()])}:{r.choice(['', i()])}{r.choice(['', '', ':-1', ':2', ':' + i()])}]",
                lambda: f"{t()}.split({r.choice([t(), 'none', '', t() + ', 1', 'maxsplit=1'])})[{r.choice(['0', '-1'])}]",
                lambda: f"({t()} if {self.of('bool', d)} else {t()})",
                lambda: f"{t()} | replace({t()}, {t()}{r.choice(['', ', 1'])})",
                lambda: f"{t()}.replace({t()}, {t()}{r.choice(['', ', 1'])})",
                lambda: f"{self.any(d)} | tojson{r.choice(self.JSON)}",
                lambda: f"{self.of('list', d)} | join({r.choice(['', t()])})",
                lambda: f"{self.of('list', d)} | map('string') | join(', ')",
                lambda: f"{t()}.{r.choice(['upper', 'lower', 'title', 'capitalize'])}()",
                lambda: f"{self.any(d)} | string",
                lambda: f"({t()} * {self.r.randint(0, 3)})",
                lambda: f"{t()} | indent({r.choice(['', '2', '2, true', '1, false, true', repr('> ')])})",
                lambda: f"{r.choice(['%s|%r', '%5s.%-4s', '%.2s%%%s'])!r} % ({self.any(d)}, {self.any(d)})",
                lambda: f"'%d,%03d,%+d,%x' % ({i()}, {i()}, {i()}, {i()})",
                lambda: f"'%.2f %5.1f %e %g' % ({self.of('float', d)}, {i()}, {self.of('float', d)}, {self.of('float', d)})",
                lambda: f"'%s' | format({self.any(d)})",
                lambda: f"'{{}} {{}}'.format({self.any(d)}, {t()})",
                lambda: f"'{{1:>5}}{{0:<4}}|{{a!r}}|{{a[0]}}'.format({t()}, {i()}, a={t()})",
                lambda: f"'{{:05d}} {{:+.2f}} {{:,}}'.format({i()}, {self.of('float', d)}, {i()})",
                lambda: f"{t()}.{r.choice(['center', 'ljust', 'rjust'])}({r.randint(0, 9)}{r.choice(['', ', ' + repr('*')])})",
                lambda: f"{t()}.zfill({r.randint(0, 6)})",
                lambda: f"{t()}.{r.choice(['removeprefix', 'removesuffix'])}({t()})",
                lambda: f"{t()}.join({self.of('list', d)})",
                lambda: f"{t()}.{r.choice(['partition', 'rpartition'])}({t()}){r.choice(['[0]', '[2]', ''])}",
                lambda: f"{self.of('dict', d)} | {r.choice(['string', 'tojson', 'list | join'])}",
                lambda: self.call_macro(d),
                lambda: f"strftime_now({r.choice(['%d %b %Y', '%Y-%m-%d', '%H:%M:%S', '%B %-d, %A'])!r})",
            ]
        )()

    def make_int(self, d):
        r = self.r
        i = lambda: self.of("int", d)
        return r.choice(
            [
                lambda: f"({i()} {r.choice(['+', '-', '*', '//', '%'])} {i()})",
                lambda: f"{self.of(r.choice(['text', 'list', 'dict']), d)} | length",
                lambda: f"-{i()}",
                lambda: f"{self.any(d)} | int{r.choice(['', '(7)', '(0, 16)'])}",
                lambda: f"{i()} | abs",
                lambda: f"{self.of('text', d)}.{r.choice(['find', 'rfind', 'count', 'find', 'rfind', 'count', 'rindex', 'index'])}({self.of('text', d)}{r.choice(['', ', 1', ', -2', ', 0, 3'])})",
                lambda: f"{self.of('list', d)} | {r.choice(['sum', 'max', 'min', 'length', 'count'])}",
                lambda: f"({i()} ** {r.randint(0, 4)})",
                lambda: f"({i()} if {self.of('bool', d)} else {i()})",
                lambda: f"{self.of('list', d)}.{r.choice(['index', 'count'])}({self.any(d)})",
                lambda: self.loop_value("int"),
            ]
        )()

    def make_float(self, d):
        r = self.r
        f = lambda: self.of(r.choice(["float", "int"]), d)
        return r.choice(
            [
                lambda: f"({f()} {r.choice(['+', '-', '*', '/', '//', '%'])} {f()})",
                lambda: f"{self.any(d)} | float{r.choice(['', '(1.5)'])}",
                lambda: f"{f()} | round{r.choice(['', '(1)', '(2)', '(1, ' + repr('floor') + ')', '(0, ' + repr('ceil') + ')'])}",
                lambda: f"({f()} ** {r.choice(['2', '0.5', '-1'])})",
                lambda: f"{f()} | abs",
            ]
        )()

    def make_bool(self, d):
        r = self.r
        tests = [
            "defined",
            "undefined",
            "none",
            "string",
            "mapping",
            "sequence",
            "iterable",
            "number",
            "integer",
            "float",
            "boolean",
            "true",
            "false",
            "callable",
            "odd",
            "even",
            "lower",
            "upper",
            "escaped",
        ]
        return r.choice(
            [
                lambda: f"{self.any(d)} is {r.choice(['', 'not '])}{r.choice(tests)}",
                lambda: f"({self.any(d)} {r.choice(['==', '!='])} {self.any(d)})",
                lambda: f"({self.of('int', d)} {r.choice(['<', '<=', '>', '>='])} {self.of('float', d)})",
                lambda: f"({self.of('text', d)} {r.choice(['<', '<=', '==', 'in', 'not in'])} {self.of('text', d)})",
                lambda: f"({self.any(d)} {r.choice(['in', 'not in'])} {self.of(r.choice(['list', 'dict']), d)})",
                lambda: f"(not {self.any(d)})",
                lambda: f"({self.of('bool', d)} {r.choice(['and', 'or'])} {self.of('bool', d)})",
                lambda: f"{self.of('int', d)} is divisibleby({r.choice(['2', '3', '1'])})",
                lambda: f"{self.of('text', d)}.{r.choice(['startswith', 'endswith'])}({r.choice([self.of('text', d), '(' + repr('a') + ', ' + repr('b') + ')'])}{r.choice(['', ', 1'])})",
                lambda: f"({self.of('int', d)} < {self.of('int', d)} <= {self.of('int', d)})",
                lambda: f"{self.of('text', d)}.{r.choice(['isdigit', 'isalpha', 'isspace', 'isalnum', 'isnumeric', 'isdecimal', 'isupper', 'islower', 'isascii', 'isprintable'])}()",
                lambda: f"{self.any(d)} is {r.choice(['eq', 'ne', 'equalto', 'in'])}({self.any(d)})",
                lambda: f"{self.of('int', d)} is {r.choice(['lt', 'gt', 'ge', 'le', 'lessthan'])} {r.randint(0, 9)}",
                lambda: self.loop_value("bool"),
            ]
        )()

    def make_list(self, d):
        r = self.r
        l = lambda: self.of("list", d)
        return r.choice(
            [
                lambda: "[" + ", ".join(self.any(d) for _ in range(r.randint(0, 3))) + "]",
                lambda: f"({l()} + {l()})",
                lambda: f"{l()}[{r.choice(['', self.of('int', d)])}:{r.choice(['', self.of('int', d)])}{r.choice(['', '', '::-1'[1:], ':2'])}]",
                lambda: f"{l()} | {r.choice(['list', 'sort', 'reverse', 'reverse | list', 'unique | list', 'sort(reverse=true)', 'sort(case_sensitive=true)', 'batch(2) | list', 'batch(2, 0) | list', 'slice(2) | list', 'unique'])}",
                lambda: f"{l()} | {r.choice(['select', 'reject'])}({r.choice(['', repr('string'), repr('odd'), repr('defined'), repr('gt') + ', 2', repr('in') + ', [1, 2]'])}) | list",
                lambda: f"{l()} | {r.choice(['selectattr', 'rejectattr'])}({r.choice([repr('role'), repr('role') + ', ' + repr('equalto') + ', ' + repr('user'), repr('extra') + ', ' + repr('defined'), repr('content.0.type')])}){r.choice(['', ' | list'])}",
                lambda: f"{l()} | map({r.choice(['attribute=' + repr('role'), 'attribute=' + repr('extra') + ', default=1', repr('upper'), repr('default') + ', 2', 'attribute=0', repr('tojson'), repr('length')])}) | list",
                lambda: f"{self.of('dict', d)}.{r.choice(['items', 'keys', 'values'])}()",
                lambda: f"{self.of('dict', d)} | {r.choice(['items', 'dictsort', 'list', 'items | list', 'dictsort(true)', 'dictsort(by=' + repr('value') + ')', 'dictsort(reverse=true)'])}",
                lambda: f"{self.of('text', d)}.{r.choice(['split', 'rsplit'])}({r.choice(['', repr(','), repr(' '), repr('a') + ', 1', 'none, 1'])})",
                lambda: f"{self.of('text', d)}.splitlines({r.choice(['', 'true'])})",
                lambda: f"{self.of('text', d)} | list",
                lambda: f"range({r.choice([self.of('int', d), '1, 5', '5, 0, -2', '0, 9, 3'])})",
                lambda: f"({l()} * {r.randint(0, 2)})",
                lambda: f"({self.any(d)}, {self.any(d)})",
                lambda: f"{l()} | sort(attribute={r.choice(['role', 'content', 'role,content'])!r})",
                lambda: f"{l()} | map(attribute='role') | unique | list",
                lambda: f"{self.of('text', d)}.partition({self.of('text', d)})",
            ]
        )()

    def make_dict(self, d):
        r = self.r
        return r.choice(
            [
                lambda: "{"
                + ", ".join(
                    f"{self.of(r.choice(['text', 'text', 'int', 'bool', 'float']), d)}: {self.any(d)}"
                    for _ in range(r.randint(0, 3))
                )
                + "}",
                lambda: f"dict({self.of('dict', d)}, z={self.any(d)})",
                lambda: f"(messages | first)",
                lambda: f"messages[{self.of('int', d)}]",
                lambda: "dict([('a', 1), ('b', 2)])",
                lambda: "nested.a",
                lambda: f"dict(**{self.of('dict', d)})",
            ]
        )()

    def loop_value(self, kind):
        if not self.loops:
            return self.leaf(kind)
        return "loop." + self.r.choice(
            ["index", "index0", "length", "revindex", "revindex0", "depth"]
            if kind == "int"
            else ["first", "last", "changed(k)", "previtem is defined", "nextitem is defined"]
        )

    def call_macro(self, d):
        if not self.macros:
            return self.leaf("text")
        name, count = self.r.choice(self.macros)
        arguments = [self.any(d) for _ in range(self.r.randint(0, count))]
        if self.r.random() < 0.2:
            arguments.append(f"{self.r.choice(['p0', 'p1', 'q'])}={self.any(d)}")
        return f"{name}({', '.join(arguments)})"

    # --- statements
    def open(self, kind="%"):
        return "{" + kind + self.r.choice(["", "", "", "-", "-", "+"])

    def close(self, kind="%"):
        return self.r.choice(["", "", "", "-", "-", "+" if kind == "%" else ""]) + kind + "}"

    def tag(self, text):
        return f"{self.open()} {text} {self.close()}"

    def blank(self):
        return self.r.choice(["", "", "\n", "  ", "\n  ", " \n\n", "text", "\n<|im_start|>", "a\n", "\t"])

    def body(self, depth, scope=True):
        names = {k: list(v) for k, v in self.names.items()}
        macros = list(self.macros)
        text = self.statements(depth)
        if scope and self.r.random() < 0.9:
            self.names, self.macros = names, macros
        return text

    def fresh(self, kind):
        self.counter += 1
        name = self.r.choice([f"v{self.counter}", f"v{self.counter}", self.r.choice(["x", "y", "name", "n", "words"])])
        self.names[kind].append(name)
        return name

    def statements(self, depth):
        return "".join(self.blank() + self.statement(depth) for _ in range(self.r.randint(1, 4))) + self.blank()

    def statement(self, depth):
        r = self.r
        kinds = ["print"] * 6 + ["set"] * 3 + ["comment", "raw"]
        if depth > 0:
            kinds += (
                ["if"] * 3 + ["for"] * 4 + ["macro", "block", "with", "filter", "call", "generation", "space", "space"]
            )
        if self.loops:
            kinds += ["leave"]
        return getattr(self, "say_" + r.choice(kinds))(depth - 1)

    def say_print(self, depth):
        return f"{self.open('{')} {self.any(3)} {self.close('}')}"

    def say_comment(self, depth):
        return self.r.choice(["{# c #}", "{#- c -#}", "{# a\nb #}\n", "{#+ x +#}\n", "{##}"])

    def say_raw(self, depth):
        return f"{self.open()} raw {self.r.choice(['', '-'])}%}}{self.blank()}{{{{ x }}}}{self.blank()}{self.open()} endraw {self.close()}"

    def say_set(self, depth):
        r = self.r
        if r.random() < 0.15:
            value = f"{self.any(2)}, {self.any(2)}"
            return self.tag(f"set {self.fresh('text')}, {self.fresh('text')} = {value}")
        kind = r.choice(["text", "int", "float", "bool", "list", "dict"])
        value = self.of(kind, 3)
        return self.tag(f"set {self.fresh(kind)} = {value}")

    def say_space(self, depth):
        r = self.r
        if not self.spaces or r.random() < 0.3:
            self.counter += 1
            self.spaces.append(f"ns{self.counter}")
            return self.tag(
                f"set {self.spaces[-1]} = namespace(a={self.any(1)}, {r.choice(['b=1', 'text=' + repr('')])})"
            )
        name = r.choice(self.spaces)
        attribute = r.choice("abc")
        self.names[r.choice(["text", "int"])].append(f"{name}.{attribute}")
        return self.tag(f"set {name}.{attribute} = {self.any(2)}")

    def say_if(self, depth):
        r = self.r
        text = self.tag(f"if {self.of('bool', 3)}") + self.body(depth, False)
        for _ in range(r.choice([0, 0, 1])):
            text += self.tag(f"elif {self.of('bool', 2)}") + self.body(depth, False)
        if r.random() < 0.4:
            text += self.tag("else") + self.body(depth, False)
        return text + self.tag("endif")

    def say_for(self, depth):
        r = self.r
        source = self.of("list", 2)
        names, macros = {k: list(v) for k, v in self.names.items()}, list(self.macros)
        if r.random() < 0.2:
            target = f"{self.fresh('text')}, {self.fresh('text')}"
            source = r.choice(
                [
                    f"{self.of('dict', 1)}.items()",
                    f"{self.of('dict', 1)} | items",
                    f"{self.of('dict', 1)} | dictsort",
                    source,
                ]
            )
        else:
            target = self.fresh(r.choice(["text", "dict", "int"]))
        condition = f" if {self.of('bool', 2)}" if r.random() < 0.25 else ""
        self.loops += 1
        text = self.tag(f"for {target} in {source}{condition}") + self.body(depth)
        self.loops -= 1
        self.names, self.macros = names, macros
        if r.random() < 0.25:
            text += self.tag("else") + self.body(depth)
        return text + self.tag("endfor")

    def say_leave(self, depth):
        return self.tag(f"if {self.of('bool', 1)}") + self.tag(self.r.choice(["break", "continue"])) + self.tag("endif")

    def say_macro(self, depth):
        r = self.r
        count = r.randint(0, 2)
        self.counter += 1
        name = f"m{self.counter}"
        parameters = [f"p{i}" for i in range(count)]
        preset = r.randint(0, count)
        signature = ", ".join(p if i < preset else f"{p}={self.any(1)}" for i, p in enumerate(parameters))
        names, loops = {k: list(v) for k, v in self.names.items()}, self.loops
        self.loops = 0
        for p in parameters:
            self.names[r.choice(["text", "int", "list"])].append(p)
        body = self.body(depth)
        if r.random() < 0.2:
            body += "{{ caller() if caller is defined }}"
        if r.random() < 0.15:
            body += "{{ kwargs }}{{ varargs }}"
        self.names, self.loops = names, loops
        self.macros.append((name, count))
        return self.tag(f"macro {name}({signature})") + body + self.tag("endmacro")

    def say_call(self, depth):
        if not self.macros:
            return self.say_print(depth)
        loops, self.loops = self.loops, 0
        text = self.tag(f"call {self.call_macro(1)}") + self.body(depth) + self.tag("endcall")
        self.loops = loops
        return text

    def say_generation(self, depth):
        loops, self.loops = self.loops, 0
        text = self.tag("generation") + self.body(depth) + self.tag("endgeneration")
        self.loops = loops
        return text

    def say_block(self, depth):
        filters = self.r.choice(["", "", " | trim", " | upper | trim"])
        text = self.body(depth)
        return self.tag(f"set {self.fresh('text')}{filters}") + text + self.tag("endset")

    def say_filter(self, depth):
        return (
            self.tag(
                f"filter {self.r.choice(['trim', 'upper', 'indent(2)', 'replace(' + repr('a') + ', ' + repr('b') + ') | trim'])}"
            )
            + self.body(depth)
            + self.tag("endfilter")
        )

    def say_with(self, depth):
        value = self.any(2)
        return self.tag(f"with {self.fresh('text')} = {value}") + self.body(depth) + self.tag("endwith")


def reference(env, template, context):
    try:
        text = env.from_string(template).render(**context)
        text.encode("utf-8")
        return text, None
    except Exception as error:  # whatever Python raises
        return None, f"{type(error).__name__}: {error}"


def write_fixture(path):
    env = environment()
    cases = []
    for case in template_cases.cases():
        text, error = reference(env, case["template"], template_cases.CONTEXT)
        cases.append({**case, "text": text} if error is None else {**case, "error": error})
    seconds = int(NOW.replace(tzinfo=datetime.timezone.utc).timestamp())
    with open(path, "w", encoding="utf-8") as file:
        file.write('{"jinja2": ' + json.dumps(jinja2.__version__) + f', "now": {seconds},\n"context": ')
        file.write(json.dumps(template_cases.CONTEXT, ensure_ascii=False) + ',\n"cases": [\n')
        file.write(",\n".join(json.dumps(case, ensure_ascii=False) for case in cases) + "\n]}\n")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--program", default="build/render_template")
    parser.add_argument("--keep", help="file for the cases that differ")
    parser.add_argument("--fixture", help="file to write")
    options = parser.parse_args()
    if options.fixture:
        return write_fixture(options.fixture)
    env, cases = environment(), []
    seconds = int(NOW.replace(tzinfo=datetime.timezone.utc).timestamp())
    for i in range(options.number):
        maker = Maker(options.seed * 1000003 + i)
        template, context = maker.statements(2), maker.context()
        cases.append({"template": template, "context": context, "now": seconds})
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps(case) + "\n" for case in cases)
        file.flush()
        answers = subprocess.run(
            [options.program, "--batch", file.name], capture_output=True, text=True, check=True
        ).stdout
    counts = dict.fromkeys(["same text", "both refuse", "refused on purpose", "different"], 0)
    different = []
    for case, answer in zip(cases, answers.split("\n"), strict=False):
        answer = json.loads(answer)
        text, error = reference(env, case["template"], case["context"])
        if error is None and "text" in answer and answer["text"] == text:
            outcome = "same text"
        elif error is not None and "error" in answer:
            outcome = "both refuse"
        elif "error" in answer and any(word in answer["error"] for word in ON_PURPOSE):
            outcome = "refused on purpose"
        elif error is None and " object at 0x" in text:
            outcome = "refused on purpose"
        else:
            outcome = "different"
            different.append(
                {
                    **case,
                    "jinja2": text,
                    "error": error,
                    **{"ours": answer.get("text"), "our error": answer.get("error")},
                }
            )
        counts[outcome] += 1
    print(", ".join(f"{number} {what}" for what, number in counts.items()))
    if options.keep:
        with open(options.keep, "w") as file:
            file.writelines(json.dumps(case) + "\n" for case in different)
    for case in different[:5]:
        print(
            "---",
            case["template"],
            case["context"],
            "\njinja2:",
            repr(case["jinja2"]),
            case["error"],
            "\nours:  ",
            repr(case["ours"]),
            case["our error"],
            sep="\n",
        )
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
