"""The cost of elasticity without faults: ``python -m benchmarks.elastic.cost``.

Steps of a job of 2 ranks (by default on 2 hosts joined by a link of 10 Gbit/s; root) are timed in
turns: without a commit, with a commit of a small state, and with a commit whose per-rank values are
copied to the other host. A part of these values changes in each step. Each rank computes with
numpy, so that the copying threads compete with the step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import hosts

MODES = ("nothing", "commit", "copies")
_PROGRAM = """
import json, os, sys, time
import numpy as np
import farandole.numpy as hvd
from farandole.core.api import elastic
from farandole.core.api.state import ObjectState
seconds, rounds, megabytes, changed = map(float, sys.argv[2:])
hvd.init()
small = ObjectState(step=0)
class Referenced(ObjectState):  # saves without a copy: the program makes new arrays
    def _values(self):
        return {name: getattr(self, name) for name in self._saved}
large = Referenced(own=[np.zeros(1 << 17) for _ in range(int(megabytes))])
large.register_per_rank("own")
matrix = np.random.default_rng(0).random((700, 700))
def compute():
    begin = time.perf_counter()
    matrix @ matrix
    return time.perf_counter() - begin
def steps_for(seconds):
    taken = sorted(compute() for _ in range(20))[5]
    return max(1, int(seconds / taken))
@elastic.run
def train(large):
    number = int(hvd.allreduce(np.array([float(steps_for(seconds))]), name="number")[0])
    times = {mode: [] for mode in ("nothing", "commit", "copies")}
    for index in range(int(rounds)):
        for mode in list(times)[index % 3 :] + list(times)[: index % 3]:
            hvd.allreduce(np.zeros(1), name="begin")
            begin = time.perf_counter(), time.process_time()
            for _ in range(3):
                for _ in range(number):
                    matrix @ matrix
                hvd.allreduce(np.zeros(1), name="gradients")
                if mode == "commit":
                    small.step += 1
                    small.commit()
                elif mode == "copies":
                    fresh = int(len(large.own) * changed)
                    new = [np.full(1 << 17, float(index)) for _ in range(fresh)]
                    large.own = new + large.own[fresh:]
                    large.commit()
            taken = time.perf_counter() - begin[0], time.process_time() - begin[1]
            times[mode].append([each / 3 for each in taken])
    if hvd.rank() == 0:
        with open(sys.argv[1], "w") as file:
            json.dump(times, file)
train(large)
"""


Times = dict[str, list[tuple[float, float]]]


def measure(arguments: argparse.Namespace) -> Times:
    """Return, for each mode and turn, the seconds of a step, and rank 0's seconds on a core."""
    with tempfile.TemporaryDirectory() as place:
        program, found = Path(place, "cost.py"), Path(place, "found.json")
        program.write_text(_PROGRAM)
        numbers = (arguments.seconds, arguments.rounds, arguments.megabytes, arguments.changed)
        command = [sys.executable, str(program), str(found), *map(str, numbers)]
        if arguments.rate:
            _run_on_hosts(command, arguments.rate)
        else:
            words = ["-np", "2", "--min-np", "1", "-H", "localhost:1,127.0.0.1:1"]
            _run([sys.executable, "-m", "farandole", "run", *words, *command])
        times: Times = json.loads(found.read_text())
        return times


def _run_on_hosts(command: Sequence[str], rate: str) -> None:
    """Run the program on two of three hosts, started from the third."""
    from tests.kits.hosts import hosts as made

    with made(3, rate) as among:
        ssh = f"--ssh-options=-F {among.config}"
        words = ["-np", "2", "--min-np", "1", "-H", "b:1,c:1", ssh]
        _run(among[0].command(sys.executable, "-m", "farandole", "run", *words, *command))


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise RuntimeError(f"the job ended with {done.returncode}: {done.stderr[-2000:]}")


def main() -> int:
    """Measure and print the cost of each mode."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.elastic.cost")
    options.add_argument("--seconds", type=float, default=0.3, help="seconds of a step")
    options.add_argument("--rounds", type=int, default=15, help="turns, of 3 steps in each mode")
    options.add_argument("--megabytes", type=int, default=1, help="size of the own values")
    options.add_argument("--changed", type=float, default=1.0, help="part that changes in a step")
    options.add_argument("--rate", default="10gbit", help="of the links; empty: on this host")
    arguments = options.parse_args()
    reason = hosts.obstacle(ssh=True) if arguments.rate else ""
    if reason:
        sys.stderr.write(f"{reason}; --rate '' measures on this host\n")
        return 1
    times = measure(arguments)
    for column, name in enumerate(("per step", "of a core per step, with all threads of rank 0")):
        alone = [turn[column] for turn in times["nothing"]]
        base = statistics.median(alone)
        sys.stdout.write(f"{base * 1e3:.1f} ms {name} without a commit\n")
        for mode in MODES[1:]:
            with_mode = [turn[column] for turn in times[mode]]
            more = statistics.median(a - b for a, b in zip(with_mode, alone, strict=True))
            sys.stdout.write(f"  {mode}: {more * 1e3:+.2f} ms ({more / base:+.2%})\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
