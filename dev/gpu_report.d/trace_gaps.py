#!/usr/bin/env python3
"""Says whether the copies of a train_gpt --trace lie back to back: trace_gaps.py TRACE.json.

A gap is time between two copies in which the transfer stream stood still. At a turn (the copy before it was of the
lowest or the highest layer) one is expected: no slot is free yet. Exits 1 when another gap exceeds 0.1 ms.
"""

import json
import sys

LONGEST_GAP_MS = 0.1


def main():
    with open(sys.argv[1]) as f:
        events = json.load(f)["traceEvents"]
    copies = sorted((e for e in events if e.get("cat") == "copy"), key=lambda e: e["ts"])
    if len(copies) < 3:
        sys.exit(f"{sys.argv[1]}: {len(copies)} copies, too few to say anything")
    layers = [e["args"]["layer"] for e in copies]
    sizes = {e["args"]["bytes"] for e in copies}
    turns, between = [], []
    for i, (one, two) in enumerate(zip(copies, copies[1:])):
        gap_ms = (two["ts"] - one["ts"] - one["dur"]) / 1e3
        (turns if layers[i] in (min(layers), max(layers)) else between).append((gap_ms, layers[i], layers[i + 1]))
    bad = [gap for gap in between if gap[0] > LONGEST_GAP_MS]
    mean_ms = sum(e["dur"] for e in copies) / len(copies) / 1e3
    print(
        f"{len(copies)} copies of {', '.join(f'{s:,}' for s in sorted(sizes))} bytes, {mean_ms:.2f} ms each on average "
        f"({sum(e['args']['bytes'] for e in copies) / sum(e['dur'] for e in copies) / 1e3:.1f} GB/s); "
        f"gaps at {len(turns)} turns: {', '.join(f'{g[0]:.2f}' for g in turns)} ms; "
        f"the longest of the other {len(between)}: {max(between)[0]:.3f} ms"
    )
    for gap_ms, before, after in bad[:10]:
        print(f"gap of {gap_ms:.3f} ms between the copies of layer {before} and layer {after}")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
