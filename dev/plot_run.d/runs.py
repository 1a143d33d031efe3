"""Loss, speed, waiting and memory of one or several runs, from log.jsonl.

Every step is drawn faintly below its running mean; the legend gives the mean's length. A step far faster than the means leaves
the top of its panel. Means of speed and waiting are weighted by the steps' times. Axes of amounts start at 0.
"""

import json
import math
from pathlib import Path

from style import (
    BLUE, FAINT_INK, GREEN, LEFT, ORANGE, PURPLE, SKY, VERMILION, WIDTH_INCHES,
    Refusal, header, memory_unit, note, pyplot, read_bytes, save,
)  # fmt: skip

RUN_COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
RUN_DASHES = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))
MOST_RUNS = len(RUN_COLOURS) * len(RUN_DASHES)


class Run:
    """One log: lists of equal length, an entry a step; what has no finite value is nan."""

    def __init__(self, path):
        self.path = path
        self.start = {}
        self.steps, self.loss, self.tokens, self.seconds = [], [], [], []
        self.tokens_per_second, self.waiting, self.memory_bytes = [], [], []
        self.not_finite = []  # positions of steps whose loss was not finite
        self.evals = {}  # step -> loss

    def add_step(self, line, where):
        if "loss" not in line:  # a step without targets trains nothing
            return
        self.steps.append(line["step"])
        self.loss.append(number(line, "loss", where, finite=False))
        if math.isnan(self.loss[-1]):
            self.not_finite.append(len(self.steps) - 1)
        self.tokens.append(number(line, "tokens", where))
        self.seconds.append(number(line, "step_seconds", where))
        self.tokens_per_second.append(number(line, "tokens_per_second", where))
        self.waiting.append(100 * number(line, "waiting", where))
        self.memory_bytes.append(number(line, "device_peak_bytes", where))


def number(line, key, where, finite=True):
    """A loss may be NaN or infinite, which is written as text, for JSON has neither."""
    value = line.get(key)
    if not finite and value in ("NaN", "Infinity", "-Infinity"):
        return math.nan
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise Refusal(f"{where}: {key} is {json.dumps(value)}; wanted a number, as train_gpt logs it")
    return float(value)


def log_path(given):
    path = Path(given)
    if not path.is_dir():
        return path
    if not (path / "log.jsonl").exists():
        raise Refusal(f"{given}: holds no log.jsonl; wanted a run directory of train_gpt, or a log file")
    return path / "log.jsonl"


def read_run(given):
    path = log_path(given)
    text = read_bytes(path, "a run directory of train_gpt, or its log.jsonl").decode("utf-8", "replace")
    if not text.strip():
        raise Refusal(f"{path}: is empty; the run has logged nothing yet")
    run = Run(path)
    lines = text.split("\n")
    for i, text_line in enumerate(lines):
        if not text_line.strip():
            continue
        where = f"{path}, line {i + 1}"
        try:
            line = json.loads(text_line)
        except (ValueError, RecursionError):
            if i == len(lines) - 1:  # no newline after it: the run was killed, or is writing
                note(f"{where}: the last line is cut short and left out")
                continue
            raise Refusal(f"{where}: is no JSON; wanted a log of train_gpt, one object a line") from None
        if isinstance(line, dict) and "event" in line:
            if line["event"] == "start":
                run.start = line
            continue
        if not isinstance(line, dict) or not isinstance(line.get("step"), int):
            raise Refusal(f"{where}: has neither step nor event; wanted a log of train_gpt")
        if "eval_loss" in line:
            run.evals[line["step"]] = number(line, "eval_loss", where, finite=False)
        else:
            run.add_step(line, where)
    if not run.steps:
        raise Refusal(f"{path}: holds no training step yet")
    return run


def labels_of(runs):
    """The run directories, by as few of their last parts as tell them apart."""
    names = [r.path.resolve() for r in runs]
    parts = [(n.parent if n.name == "log.jsonl" else n).parts for n in names]
    for count in range(1, max(map(len, parts)) + 1):
        labels = ["/".join(p[-count:]) for p in parts]
        if len(set(labels)) == len(set(parts)):
            break
    if len(set(labels)) < len(labels):
        raise Refusal("the same log is given twice")
    return labels


def positions(run, x):
    """Where each step lies on the axis, and a function that says it of an evaluation's step."""
    if x == "step":
        return run.steps, lambda step: step
    ends, total = [], 0.0
    for amount in run.tokens if x == "tokens" else run.seconds:
        total += amount if math.isfinite(amount) else 0
        ends.append(total)
    at = dict(zip(run.steps, ends))
    before_first = min(run.steps)

    def place(step):
        done = [at[s] for s in at if s <= step] if step not in at else [at[step]]
        return done[-1] if done and step >= before_first else 0.0

    return ends, place


def running_mean(values, count):
    """Over `count` steps around each, fewer at the ends; steps without a value do not count."""
    if count <= 1:
        return values
    sums, counts = [0.0], [0]
    for v in values:
        finite = math.isfinite(v)
        sums.append(sums[-1] + (v if finite else 0))
        counts.append(counts[-1] + finite)
    means = []
    for i in range(len(values)):
        first, last = max(0, i - (count - 1) // 2), min(len(values), i + count // 2 + 1)
        n = counts[last] - counts[first]
        means.append((sums[last] - sums[first]) / n if n else math.nan)
    return means


def ratios(above, below):
    return [a / b if b else math.nan for a, b in zip(above, below)]


def about(runs):
    """What all runs have in common, as their logs say it."""

    def common(text_of):
        texts = {text_of(r.start) for r in runs}
        return [texts.pop()] if len(texts) == 1 and "" not in texts else []

    def streaming(start):
        if start.get("offload") != "active":
            return "all layers resident" if "offload" in start else ""
        return f"{start['streamed_layers']} layers streamed through {start['slots']} slots"

    return "   ".join(
        common(lambda s: ", ".join(s.get("model", "").split(", ")[:3]))
        + common(lambda s: ", ".join(s[k] for k in ("device", "precision") if k in s))
        + common(streaming)
    )


def style_of(index, runs):
    """Colour and dashes: each says it alone while there are few runs."""
    return RUN_COLOURS[index % len(RUN_COLOURS)], RUN_DASHES[(index if runs <= 4 else index // len(RUN_COLOURS)) % 4]


def draw_runs(arguments):
    if len(arguments.runs) > MOST_RUNS:
        raise Refusal(f"{len(arguments.runs)} runs in one picture cannot be told apart; wanted at most {MOST_RUNS}")
    runs = [read_run(given) for given in arguments.runs]
    labels = labels_of(runs)
    plt = pyplot()
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    smooth = arguments.smooth or max(1, max(len(r.steps) for r in runs) // 40)
    unit, unit_bytes = memory_unit(max(max(r.memory_bytes) for r in runs))
    digits = 2 if unit == "GiB" else 1
    lines_above = math.ceil(len(runs) / 4)
    figure = plt.figure(figsize=(WIDTH_INCHES, 4.95 + 0.185 * lines_above + (0.27 if arguments.title else 0)))
    height = figure.get_size_inches()[1]
    named = []
    for i in range(len(runs)):
        colour, dashes = style_of(i, len(runs))
        named.append(Line2D([], [], color=colour, linestyle=dashes, linewidth=1.9))
    top = header(figure, arguments.title, (named, labels), about(runs))
    grid = figure.add_gridspec(
        2, 3, height_ratios=(1.45, 1), left=LEFT, right=0.975, top=top - 0.27 / height, bottom=0.47 / height,
        hspace=0.45, wspace=0.22,
    )  # fmt: skip
    loss = figure.add_subplot(grid[0, :])
    speed, waiting, memory = (figure.add_subplot(grid[1, i], sharex=loss) for i in range(3))
    loss.set_title("Loss, nats per token")
    speed.set_title("Tokens per second")
    waiting.set_title("Waiting for the link, % of the step")
    memory.set_title(f"Device memory, peak so far, {unit}")

    most = {speed: 0.0, waiting: 0.0}  # of the means
    for i, run in enumerate(runs):
        colour, dashes = style_of(i, len(runs))
        line = {"color": colour, "linestyle": dashes, "linewidth": 1.7}
        x, place = positions(run, arguments.x)
        seconds = running_mean(run.seconds, smooth)
        waits = running_mean([w * s for w, s in zip(run.waiting, run.seconds)], smooth)
        for axes, values, means in (
            (loss, run.loss, running_mean(run.loss, smooth)),
            (speed, run.tokens_per_second, ratios(running_mean(run.tokens, smooth), seconds)),
            (waiting, run.waiting, ratios(waits, seconds)),
        ):
            if smooth > 1:
                axes.plot(x, values, color=colour, linewidth=0.7, alpha=0.28)
            axes.plot(x, means, **line, marker="." if len(x) == 1 else "")
            if axes in most:
                most[axes] = max([most[axes], *filter(math.isfinite, means)])
        memory.plot(x, [b / unit_bytes for b in run.memory_bytes], **line, marker="." if len(x) == 1 else "")
        evals = sorted((place(s), v) for s, v in run.evals.items() if math.isfinite(v))
        loss.plot(
            [e[0] for e in evals], [e[1] for e in evals], color=colour, linestyle="", marker="D",
            markersize=6 + 2 * min(len(runs) - 1 - i, 3),  # runs that are equal lie on each other, and all show
            markeredgecolor="white", markeredgewidth=0.8, zorder=3, clip_on=False,
        )  # fmt: skip
        loss.plot(
            [x[position] for position in run.not_finite], [0.97] * len(run.not_finite), color=colour, linestyle="",
            marker="x", markersize=6, markeredgewidth=1.6, transform=loss.get_xaxis_transform(),
        )  # fmt: skip

    loss.margins(x=0.012)
    loss.autoscale_view()
    right_edge = loss.get_xlim()[1]
    for i, run in enumerate(runs):
        x, _ = positions(run, arguments.x)
        memory.annotate(
            f"{run.memory_bytes[-1] / unit_bytes:.{digits}f}", (x[-1], run.memory_bytes[-1] / unit_bytes),
            xytext=(0, 3), textcoords="offset points", ha="right" if x[-1] > right_edge / 4 else "left", va="bottom",
            color=style_of(i, len(runs))[0], fontsize=8.5,
        )  # fmt: skip
    memory.set_ylim(0, max(memory.dataLim.y1 * 1.2, 1e-9))
    speed.set_ylim(0, max(min(1.1 * speed.dataLim.y1, 2 * most[speed]), 1e-9))
    waiting.set_ylim(0, next(limit for limit in (5, 10, 20, 40, 60, 80, 100) if limit >= min(100, most[waiting] * 1.1)))
    x_name = {"step": "Step", "tokens": "Tokens trained on", "seconds": "Seconds of training"}[arguments.x]
    thousands = FuncFormatter(lambda v, _: f"{v:,.0f}" if v >= 10 or v == 0 else f"{v:g}")
    for axes in (loss, speed, waiting, memory):
        axes.grid(axis="x", visible=False)
        axes.xaxis.set_major_locator(MaxNLocator(8 if axes is loss else 4, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(5 if axes in (loss, waiting) else 4))
        axes.set_xlabel(x_name, labelpad=2)
    loss.xaxis.set_major_formatter(thousands)
    speed.yaxis.set_major_formatter(thousands)

    kinds = [(Line2D([], [], color=FAINT_INK, linewidth=1.7), "training" + (f", mean of {smooth} steps" * (smooth > 1)))]
    mark = {"color": FAINT_INK, "linestyle": "", "markersize": 6}
    if any(r.evals for r in runs):
        kinds.append((Line2D([], [], marker="D", **mark), "validation"))
    if any(r.not_finite for r in runs):
        kinds.append((Line2D([], [], marker="x", **mark), "not finite"))
    loss.legend(
        *zip(*kinds), loc="lower right", bbox_to_anchor=(1, 1.01), ncol=len(kinds), handlelength=1.8, borderaxespad=0
    )
    save(figure, arguments.output)
