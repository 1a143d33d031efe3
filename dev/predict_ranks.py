#!/usr/bin/env python3
"""Predicts a step's time on several ranks from what build/bench_ranks and a run's plan show.

    dev/predict_ranks.py --micro-batch-ms 212 --micro-batches 8 --gradient-mb 160 --ranks 1 2 4 8
    dev/predict_ranks.py ... --ranks-per-machine 2 --network-gbps 12.5      # bytes, not bits: 100 Gb/s are 12.5 GB/s

A step has M micro-batches of `--micro-batch-ms` each, on N ranks in ceil(M / (N K)) rounds of K. After each round a rank
gets its 1/N of the gradients from every other rank; after the last one the sums are spread. Within a machine a rank
receives at `--peer-gbps`. Between machines n ranks send (N - n) / N of each one's gradients through one port.
`--round-ms` replaces the first term by what bench_ranks measured on N ranks of one machine.
"""
import argparse
import math


def round_ms(a, ranks):
    """Of one exchange, in milliseconds."""
    here = min(ranks, a.ranks_per_machine)
    if ranks == 1:
        return 0.0
    within = a.round_ms if a.round_ms is not None else a.gradient_mb * (here - 1) / ranks / a.peer_gbps
    between = here * a.gradient_mb * (ranks - here) / ranks / a.network_gbps
    return max(within, between)


def step_ms(a, ranks):
    """Rounds of computing and exchanging, and the spread of the sums, which moves as many bytes as a round."""
    rounds = math.ceil(a.micro_batches / (ranks * a.exchange_every))
    computed = min(a.exchange_every, math.ceil(a.micro_batches / ranks)) * a.micro_batch_ms
    return rounds * (computed + round_ms(a, ranks)) + round_ms(a, ranks) + a.update_ms


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--micro-batch-ms", type=float, required=True, help="forward and backward of one micro-batch on one rank")
    add("--micro-batches", type=int, required=True, help="of a step, over all ranks")
    add("--gradient-mb", type=float, required=True, help="bytes of gradients, in MB: 4 for each trained parameter")
    add("--ranks", type=int, nargs="+", default=[1, 2, 4, 8])
    add("--exchange-every", type=int, default=1)
    add("--ranks-per-machine", type=int, default=8)
    add("--round-ms", type=float, help="measured by bench_ranks")
    add("--peer-gbps", type=float, default=300.0, help="GB/s that a rank receives from ranks of its machine")
    add("--network-gbps", type=float, default=12.5, help="GB/s of a machine's port")
    add("--update-ms", type=float, default=0.0, help="norm and AdamW")
    a = parser.parse_args()
    one = step_ms(a, 1)
    print(f"{'ranks':>5} {'round ms':>9} {'step ms':>9} {'speed-up':>9} {'of ideal':>9}")
    for ranks in a.ranks:
        step = step_ms(a, ranks)
        print(f"{ranks:5} {round_ms(a, ranks):9.2f} {step:9.1f} {one / step:9.2f} {one / step / ranks:9.2f}")


if __name__ == "__main__":
    main()
