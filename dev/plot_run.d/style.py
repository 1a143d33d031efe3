"""What the pictures share: colours, type, the lines above the panels, files, and how a mistake is told.

Colours are Okabe and Ito's, which colour-blind readers tell apart; line styles, hatching and markers say the same again.
"""

import math
import os
import shlex
import sys
from pathlib import Path

BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7"
INK, FAINT_INK = "#222222", "#666666"
WIDTH_INCHES, DPI = 9.0, 160  # 1440 pixels: twice what a README page shows
LEFT = 0.062  # of what stands above the panels, as a share of the width


class Refusal(Exception):
    """A user's mistake: what was given, what is wanted."""


def note(text):
    print(f"plot_run.py: note: {text}", file=sys.stderr)


def read_bytes(path, what):
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise Refusal(f"{path}: {error.strerror}; wanted {what}") from None


def remedy_without_matplotlib():
    """Debian's package is for /usr/bin/python3 alone; another python (pyenv, conda, a venv) has packages of its own."""
    debian = "/usr/bin/python3"
    if Path(sys.prefix) == Path("/usr") or not Path(debian).exists():
        return "install it with: apt-get install python3-matplotlib"
    if any(Path("/usr/lib/python3/dist-packages").glob("matplotlib/__init__.py")):
        return f"{debian} has it: {debian} {shlex.join(sys.argv)}"
    pip = f"{shlex.quote(sys.executable)} -m pip install matplotlib"
    return f"install it with: {pip}, or use {debian} and apt-get install python3-matplotlib"


def pyplot():
    try:
        import matplotlib
    except ImportError:
        missing = f"matplotlib is missing from this python, {sys.executable}"
        raise Refusal(f"{missing}; {remedy_without_matplotlib()}") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {
            "font.family": "sans-serif",
            "font.size": 9,
            "text.color": INK,
            "axes.edgecolor": "#999999",
            "axes.linewidth": 0.8,
            "axes.labelcolor": FAINT_INK,
            "axes.labelsize": 8.5,
            "axes.titlesize": 9.5,
            "axes.titlelocation": "left",
            "axes.titlepad": 7,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "axes.formatter.useoffset": False,
            "grid.color": "#E6E6E6",
            "grid.linewidth": 0.8,
            "xtick.color": FAINT_INK,
            "ytick.color": FAINT_INK,
            "xtick.labelsize": 8.5,
            "ytick.labelsize": 8.5,
            "xtick.major.size": 3,
            "ytick.major.size": 0,
            "lines.solid_capstyle": "round",
            "hatch.linewidth": 0.7,
            "legend.frameon": False,
            "legend.fontsize": 9,
            "figure.facecolor": "white",
        }
    )
    return plt


def save(figure, output):
    """Whole or not at all."""
    output = Path(output)
    temporary = output.with_name(f".tmp-{os.getpid()}-{output.name}")
    try:
        figure.savefig(temporary, dpi=DPI)
        os.replace(temporary, output)
    except OSError as error:
        raise Refusal(f"-o {output}: cannot be written: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)
    print(f"wrote {output}")


def memory_unit(largest_bytes):
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if largest_bytes >= size:
            return unit, size
    return "KiB", 2**10


def memory_text(count_bytes):
    unit, size = memory_unit(count_bytes)
    return f"{count_bytes / size:.{2 if unit == 'GiB' else 1}f} {unit}"


def header(figure, title, legend, about_text):
    """Title, legend and what was run on, below each other from the top; returns where the panels may begin (0 to 1)."""
    height = figure.get_size_inches()[1]
    left, y = LEFT, 1 - 0.1 / height
    if title:
        figure.text(left, y, title, fontsize=11.5, weight="bold", va="top")
        y -= 0.27 / height
    handles, names = legend
    columns = min(len(names), 4)
    figure.legend(
        handles, names, loc="upper left", bbox_to_anchor=(left, y), ncol=columns, handlelength=2.4, columnspacing=1.8,
        borderaxespad=0, borderpad=0, handletextpad=0.7,
    )  # fmt: skip
    y -= (0.07 + 0.185 * math.ceil(len(names) / columns)) / height
    if about_text:
        figure.text(left, y, about_text, fontsize=8.5, color=FAINT_INK, va="top")
        y -= 0.22 / height
    return y
