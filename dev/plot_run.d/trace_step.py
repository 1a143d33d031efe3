"""Compute and transfer in one step, from a Chrome trace that train_gpt --trace wrote.

A box is a visit of a layer, a wait for its copy, a copy, or the decoding of a slab that travels encoded. The line from a copy ends
at the visit that reads what it brought.
The trace times layers only: what lies between them (head, optimizer, embedding) is left white.
"""

import json
import math

from style import (
    BLUE, FAINT_INK, GREEN, INK, ORANGE, SKY, VERMILION, WIDTH_INCHES,
    Refusal, header, memory_text, pyplot, read_bytes, save,
)  # fmt: skip


class Box:
    def __init__(self, kind, layer, step, start_ms, end_ms, size_bytes):
        self.kind, self.layer, self.step = kind, layer, step
        self.start_ms, self.end_ms, self.bytes = start_ms, end_ms, size_bytes


def read_boxes(path):
    text = read_bytes(path, "a trace that train_gpt --trace wrote").decode("utf-8", "replace")
    if not text.strip():
        raise Refusal(f"{path}: is empty; wanted a trace that train_gpt --trace wrote")
    try:
        events = json.loads(text)["traceEvents"]
    except (ValueError, RecursionError) as error:
        raise Refusal(f"{path}: is no JSON ({error}); is the file cut short? Wanted a trace of train_gpt") from None
    except (KeyError, TypeError):
        raise Refusal(f"{path}: has no traceEvents; wanted a trace that train_gpt --trace wrote") from None
    if not isinstance(events, list):
        raise Refusal(f"{path}: traceEvents is no list; wanted a trace that train_gpt --trace wrote")
    boxes = []
    for i, event in enumerate(events):
        if not isinstance(event, dict) or event.get("cat") not in ("visit", "wait", "copy", "decode"):
            continue
        try:
            start, length = float(event["ts"]) / 1e3, float(event["dur"]) / 1e3
            arguments = event["args"]
            box = Box(event["cat"], int(arguments["layer"]), arguments.get("step"), start, start + length,
                      int(arguments.get("bytes", 0)))  # fmt: skip
            if not (math.isfinite(start) and 0 <= length < math.inf):
                raise ValueError
        except (KeyError, TypeError, ValueError, OverflowError):
            raise Refusal(f"{path}: event {i} has no time, length or layer; wanted a trace of train_gpt") from None
        boxes.append(box)
    return boxes


def is_forward(visits):
    """For each visit of a step, in order: do its neighbours say that it goes up through the layers?"""
    layers = [v.layer for v in visits]
    if len(set(layers)) == 1:
        return [i % 2 == 0 for i in range(len(layers))]
    return [
        (i + 1 < len(layers) and layers[i + 1] == layer + 1) or (i > 0 and layers[i - 1] == layer - 1)
        for i, layer in enumerate(layers)
    ]


def choose_step(path, boxes, wanted):
    steps = sorted({b.step for b in boxes if isinstance(b.step, int) and b.kind == "visit"})
    if not steps:
        raise Refusal(f"{path}: holds no step; wanted a trace that train_gpt --trace wrote, with --trace-steps in the run")
    if wanted is None:
        return steps[-1]
    if wanted not in steps:
        held = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
        raise Refusal(f"--step {wanted}: is not in {path}, which holds {held}")
    return wanted


def step_summary(visits, waits, copies, span_ms):
    waited_ms = sum(w.end_ms - w.start_ms for w in waits)
    text = f"{span_ms:,.1f} ms, of which compute waited {waited_ms:,.1f} ms ({100 * waited_ms / span_ms:.0f}%)"
    if not copies:
        return text + "   no slab was copied"
    moved_bytes, copying_ms = sum(c.bytes for c in copies), sum(c.end_ms - c.start_ms for c in copies)
    count = "1 slab" if len(copies) == 1 else f"{len(copies)} slabs"
    speed = f", at {moved_bytes / 1e6 / copying_ms:.1f} GB/s" if copying_ms > 0 else ""
    return f"{text}   {count} copied, {memory_text(moved_bytes)}{speed}   {len(visits)} visits of layers"


class Timeline:
    """Lanes of boxes over a row of time; a long step is folded into several rows."""

    COMPUTE, TRANSFER, BOX = 1.0, 0.0, 0.62  # middle of a lane, height of a box

    def __init__(self, axes, first_ms, last_ms, zero_ms):
        self.axes, self.first, self.last, self.zero = axes, first_ms, last_ms, zero_ms
        axes.set_xlim(first_ms - zero_ms, last_ms - zero_ms)
        axes.set_ylim(-0.48, 1.48)
        axes.set_yticks([self.COMPUTE, self.TRANSFER], ["compute", "transfer"])
        axes.tick_params(axis="y", length=0, labelsize=9, pad=6)
        axes.xaxis.set_major_formatter(lambda ms, _: f"{ms:,g}")
        axes.grid(False)
        axes.spines["left"].set_visible(False)
        inches = axes.figure.get_size_inches()[0] * axes.get_position().width
        self.ms_per_inch = (last_ms - first_ms) / inches

    def holds(self, start_ms, end_ms):
        return end_ms > self.first and start_ms < self.last

    def text(self, start_ms, end_ms, middle, text, **style):
        """Written where it fits, else left out: the legend says what the colours mean."""
        start, end = max(start_ms, self.first), min(end_ms, self.last)
        if (end - start) / self.ms_per_inch > 0.01 + 0.066 * len(text) * style.get("fontsize", 8) / 8:
            self.axes.text((start + end) / 2 - self.zero, middle, text, ha="center", va="center_baseline",
                           **{"fontsize": 8, **style})  # fmt: skip

    def box(self, box, colour, ink="white", alpha=1.0, hatch=None):
        if not self.holds(box.start_ms, box.end_ms):
            return
        middle = self.TRANSFER if box.kind == "copy" else self.COMPUTE
        narrow = box.end_ms - box.start_ms < 0.03 * self.ms_per_inch  # a white edge would leave nothing of it
        self.axes.broken_barh(
            [(box.start_ms - self.zero, box.end_ms - box.start_ms)], (middle - self.BOX / 2, self.BOX),
            facecolor=colour, edgecolor=colour if narrow else "white", linewidth=0.6, alpha=alpha,
            hatch=None if narrow else hatch,
        )  # fmt: skip
        if box.kind in ("visit", "copy"):
            self.text(box.start_ms, box.end_ms, middle, str(box.layer), color=ink, fontsize=7.5)

    def arrival(self, copy, visit):
        """From the end of a copy to the visit that reads what it brought."""
        if self.holds(copy.end_ms, visit.start_ms):
            self.axes.plot(
                [copy.end_ms - self.zero, visit.start_ms - self.zero],
                [self.TRANSFER + self.BOX / 2, self.COMPUTE - self.BOX / 2],
                color=GREEN, linewidth=0.9, solid_capstyle="butt",
            )  # fmt: skip


def draw_trace(arguments):
    boxes = read_boxes(arguments.trace)
    step = choose_step(arguments.trace, boxes, arguments.step)
    boxes.sort(key=lambda b: b.start_ms)
    compute = [b for b in boxes if b.kind != "copy"]
    mine = [b for b in compute if b.step == step]
    all_visits = [b for b in compute if b.kind == "visit"]
    visits = [b for b in mine if b.kind == "visit"]
    waits = [b for b in mine if b.kind == "wait"]
    decodes = [b for b in mine if b.kind == "decode"]
    copies = [b for b in boxes if b.kind == "copy" and b.step == step]
    forward = is_forward(visits)
    # A step goes on to the next one's first visit: between them lies the optimizer.
    zero_ms = min(b.start_ms for b in mine)
    after = [b.start_ms for b in compute if b.step != step and b.start_ms >= visits[-1].end_ms]
    follows = any(b.step == step + 1 for b in compute)
    last_ms = min(after) if follows and after else max(b.end_ms for b in mine)

    if last_ms <= zero_ms:
        raise Refusal(f"{arguments.trace}: step {step} took no time; wanted a trace that train_gpt --trace wrote")

    plt = pyplot()
    from matplotlib.patches import Patch

    rows = arguments.rows or max(1, min(8, math.ceil(len(visits) / 40)))
    row_inches = 1.12
    figure = plt.figure(figsize=(WIDTH_INCHES, 1.15 + row_inches * rows))
    height = figure.get_size_inches()[1]
    kinds = [
        (Patch(color=SKY), "forward"),
        (Patch(color=BLUE), "backward"),
        (Patch(facecolor=VERMILION, edgecolor="white", hatch="/////"), "waiting for a copy"),
        (Patch(color=GREEN), "copy of a layer to the device"),
    ]
    if decodes:
        kinds.insert(2, (Patch(color=ORANGE), "decoding"))
    title = arguments.title or f"Step {step}: one layer a box, with its number"
    top = header(figure, title, tuple(zip(*kinds)), step_summary(visits, waits, copies, last_ms - zero_ms))
    grid = figure.add_gridspec(rows, 1, left=0.085, right=0.985, top=top - 0.05 / height, bottom=0.42 / height,
                               hspace=0.3)  # fmt: skip
    row_ms = (last_ms - zero_ms) / rows
    for row in range(rows):
        axes = figure.add_subplot(grid[row])
        timeline = Timeline(axes, zero_ms + row * row_ms, zero_ms + (row + 1) * row_ms, zero_ms)
        for wait in waits:
            timeline.box(wait, VERMILION, hatch="/////")
        for decode in decodes:
            timeline.box(decode, ORANGE)
        for visit, up in zip(visits, forward):
            timeline.box(visit, SKY if up else BLUE, INK if up else "white")
        for copy in (b for b in boxes if b.kind == "copy"):
            timeline.box(copy, GREEN, alpha=1.0 if copy.step == step else 0.45)
            reader = next((v for v in all_visits if v.layer == copy.layer and v.start_ms >= copy.end_ms - 0.01), None)
            if reader is not None and reader.step == step:  # an earlier step's slabs have left the ring
                timeline.arrival(copy, reader)
        for before, following, up, next_up in zip(visits, visits[1:], forward, forward[1:]):
            if up and not next_up:
                timeline.text(before.end_ms, following.start_ms, Timeline.COMPUTE, "head", color=FAINT_INK)
        timeline.text(visits[-1].end_ms, last_ms, Timeline.COMPUTE, "optimizer", color=FAINT_INK)
    axes.set_xlabel("Milliseconds since the step's first layer began", labelpad=2)
    save(figure, arguments.output)
