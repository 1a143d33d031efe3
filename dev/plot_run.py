#!/usr/bin/env python3
"""Pictures of a run: loss, speed, waiting and memory from log.jsonl, and one step's compute and transfer from a trace.

    dev/plot_run.py runs RUN [RUN ...] -o runs.png      RUN: a run directory, or a log that --log wrote
    dev/plot_run.py trace TRACE.json --step 4 -o step.png

Needs matplotlib (Debian: python3-matplotlib) and no display. A user's mistake ends with one line and exit status 1, and
leaves no picture.
"""

import argparse
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent / "plot_run.d"))

from runs import draw_runs  # noqa: E402
from style import Refusal  # noqa: E402
from trace_step import draw_trace  # noqa: E402

MOST_OF = {"smooth": 10**6, "rows": 32}


def main():
    parser = argparse.ArgumentParser(
        prog="plot_run.py", description="Draws runs of train_gpt, and the timeline of a traced step."
    )
    modes = parser.add_subparsers(dest="mode", metavar="runs|trace", required=True)
    runs = modes.add_parser("runs", help="loss, tokens/s, waiting and memory of one or several runs")
    runs.add_argument("runs", nargs="+", metavar="RUN", help="run directory, or a log file")
    runs.add_argument("--x", choices=("step", "tokens", "seconds"), default="step", help="what runs along the axis")
    runs.add_argument("--smooth", type=int, metavar="N", help="means over N steps (default: a 40th of the run)")
    runs.add_argument("--title", help="above the picture")
    runs.add_argument("-o", "--output", default="runs.png", help=".png, .svg or .pdf (default %(default)s)")
    runs.set_defaults(draw=draw_runs)
    trace = modes.add_parser("trace", help="compute and transfer in one step")
    trace.add_argument("trace", metavar="TRACE", help="what train_gpt --trace wrote")
    trace.add_argument("--step", type=int, metavar="N", help="a step of --trace-steps (default: the last)")
    trace.add_argument("--rows", type=int, metavar="N", help="fold the step into N rows (default: by its visits)")
    trace.add_argument("--title", help="above the picture")
    trace.add_argument("-o", "--output", default="trace.png", help=".png, .svg or .pdf (default %(default)s)")
    trace.set_defaults(draw=draw_trace)
    arguments = parser.parse_args()
    try:
        if Path(arguments.output).suffix not in (".png", ".svg", ".pdf"):
            raise Refusal(f"-o {arguments.output}: wanted a name that ends in .png, .svg or .pdf")
        for flag in ("smooth", "rows"):
            value = getattr(arguments, flag, None)
            if value is not None and not 1 <= value <= MOST_OF[flag]:
                raise Refusal(f"--{flag} {value}: wanted 1 to {MOST_OF[flag]}")
        arguments.draw(arguments)
    except Refusal as refusal:
        print(f"plot_run.py: {refusal}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
