"""Samples per second where one rank is three times slower than the others, by strategy.

    farandole run -np 4 python benchmarks/strategies.py [STRATEGY ...]

A step is a sleep, as long as a computation elsewhere would be, and the exchange of a small net of PyTorch. It is always
the last rank that is slow (stays), or each for one step of it (moves). Rank 0 prints a row for each strategy: the
samples of all ranks in a second, beside the first strategy, and the staleness seen; for both cases.
"""

from __future__ import annotations

import sys
import time
from typing import Any, NamedTuple

import numpy as np
import torch

import farandole.torch as hvd
from farandole.strategies.specs import strategy_of

SPECS = ("allreduce", "ps", "ps:1,backup=1", "ps_async", "ssp:3")
CASES = ("stays", "moves")
BATCH, STEP, SLOWER, SECONDS = 32, 0.02, 3, 4.0


class Row(NamedTuple):
    """Of all ranks."""

    samples: float  # per second
    staleness: float  # mean
    dropped: float  # part of the pushes


def pause(case: str) -> float:
    """The seconds of this rank's next step."""
    turn = int(time.monotonic() / (STEP * SLOWER)) if case == "moves" else -1
    return STEP * (SLOWER if turn % hvd.size() == hvd.rank() else 1)


def measured(spec: str, case: str) -> Row:
    """Every rank trains for ``SECONDS``, as many steps as it can."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.001)
    strategy = strategy_of(spec)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), strategy=strategy)
    torch.manual_seed(hvd.rank())
    x, y = torch.randn(BATCH, 64), torch.randint(10, (BATCH,))
    steps = 0
    for seconds in (1.0, SECONDS):  # the first part warms up
        hvd.join()
        steps, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(pause(case))
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            steps += 1
    hvd.join()
    seen = getattr(strategy, "staleness", None)
    mean, dropped, pushes = (seen.mean, seen.dropped, seen.pushes) if seen is not None else (0.0, 0, 0)
    told = hvd.allgather(torch.tensor([[float(steps), mean, float(dropped), float(pushes)]])).numpy()
    total = told.sum(axis=0)
    return Row(float(total[0]) * BATCH / SECONDS, float(np.mean(told[:, 1])), float(total[2] / max(total[3], 1.0)))


def main() -> None:
    hvd.init()
    torch.set_num_threads(1)
    first: list[float] = []
    for spec in sys.argv[1:] or SPECS:
        rows = [measured(spec, case) for case in CASES]
        first = first or [row.samples for row in rows]
        told = [
            f"{row.samples:.0f} | {row.samples / base:.2f} | {row.staleness:.1f} | {100 * row.dropped:.0f} %"
            for row, base in zip(rows, first, strict=True)
        ]
        if hvd.rank() == 0:
            print(f"| `{spec}` | {' | '.join(told)} |", flush=True)


if __name__ == "__main__":
    main()
