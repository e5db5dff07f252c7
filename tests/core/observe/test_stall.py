"""An absent or stopped rank is named with its location; the job ends if that is set."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from farandole.base.contracts import Waiting
from farandole.core.observe.stall import StallCheck, StoreQuery, process, report, stacks
from farandole.core.observe.stall.names import listed, shown
from farandole.core.observe.stall.stack_query import Answer
from farandole.errors import RendezvousError
from farandole.job.config import Settings
from tests.job.launch.tools import marked
from tests.kits.messages import mentions


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the report of the stall check."""
    lines: list[str] = []
    monkeypatch.setattr(
        "farandole.core.observe.stall.check.logger.warning",
        lambda text, *args: lines.append(text % args),
    )
    return lines


class TestReports:
    def test_names_ranks_and_tensors(self, said: list[str]) -> None:
        stall = StallCheck(Settings(stall_warning_seconds=5, stall_shutdown_seconds=9), rank=0)
        waiting = [
            Waiting("grad.a", 6.0, (1, 3)),
            Waiting("grad.b", 6.0, (3,)),
            Waiting("young", 1.0, (2,)),
        ]
        assert stall.waiting(waiting) == ""
        assert stall.waiting(waiting) == ""
        (text,) = said  # once, not every second
        first, _, rest = text.partition("\n")
        assert mentions(first, "5 seconds")
        assert rest.startswith(
            "Missing ranks:\n1: [grad.a]\n3: [grad.a, grad.b]\n--stall-check-shutdown-time-seconds "
        )
        why = stall.waiting([Waiting("grad.a", 9.5, (1, 3))])
        assert mentions(why, "ranks 1, 3", "grad.a", "9 s")
        assert "1!: [grad.a]\n3!: [grad.a]\n" in said[1]

    def test_come_again_whenever_the_wait_has_doubled(self, said: list[str]) -> None:
        stall = StallCheck(Settings(stall_warning_seconds=60), rank=0)
        for seconds in range(30, 1000):
            assert stall.waiting([Waiting("a", float(seconds), (1,))]) == ""
        assert [int(text.partition("for more than ")[2].partition(" ")[0]) for text in said] == [
            60,
            120,
            240,
            480,
            960,
        ]
        assert all("--stall-check-shutdown-time-seconds" in text for text in said)
        stall.waiting([])
        stall.waiting([Waiting("a", 61.0, (1,))])
        assert len(said) == 6, "another stall"

    def test_a_warning_time_of_0_doubles_too(self, said: list[str]) -> None:
        stall = StallCheck(Settings(stall_warning_seconds=0), rank=0)
        for tenth in range(1, 1000):
            stall.waiting([Waiting("a", tenth / 10, (1,))])
        assert len(said) == 10
        assert "for more than 0.1 seconds" in said[0]

    def test_only_the_lowest_waiting_rank_speaks(self, said: list[str]) -> None:
        stall = StallCheck(Settings(stall_warning_seconds=5), rank=2)
        stall.waiting([Waiting("a", 6.0, (1,))])
        assert not said
        stall.waiting([Waiting("b", 6.0, (0, 1))])
        assert len(said) == 1

    def test_a_limit_below_the_warning_holds(self, said: list[str]) -> None:
        stall = StallCheck(Settings(stall_warning_seconds=60, stall_shutdown_seconds=5), rank=0)
        assert stall.waiting([Waiting("a", 4.9, (1,))]) == ""
        assert not said
        assert mentions(stall.waiting([Waiting("a", 5.1, (1,))]), "rank 1", "5 s")
        assert "for more than 5 seconds" in said[0]
        silent = StallCheck(Settings(stall_shutdown_seconds=5), rank=2)
        assert silent.waiting([Waiting("a", 5.1, (1,))]) == "", "rank 0 is to say why"
        assert silent.waiting([Waiting("a", 9.0, (1,))]) != "", "but somebody has to"

    def test_ranks_of_a_set_are_called_by_their_numbers_in_the_job(self, said: list[str]) -> None:
        StallCheck(Settings(stall_warning_seconds=5), rank=0, ranks=(3, 5, 9)).waiting(
            [Waiting("a", 6.0, (1, 2))]
        )
        assert "Missing ranks:\n5: [a]\n9: [a]\n" in said[0]

    def test_growing_detail(self) -> None:
        outer, inner = (
            stacks.Frame("train.py", 9, "<module>", "main()"),
            stacks.Frame("train.py", 5, "main", "step()"),
        )
        answers = {
            0: Answer(waits=("optimizer.2.extremes.MIN",), stack=(outer, inner)),
            1: Answer(stack=(outer,)),
            2: Answer(silent="its process 7 is stopped"),
        }
        stalled = [Waiting("optimizer.2.extremes.MIN", 60.0, (1, 2))]
        short = report.report(stalled, 60, 0, answers).splitlines()
        assert short[2:7] == [
            "1: [gradients of DistributedOptimizer 2]",
            "2: [gradients of DistributedOptimizer 2]",
            "Where the ranks are:",
            "rank 2 does not answer: its process 7 is stopped",
            "rank 1 is at train.py, line 9, in <module>: main()",
        ]
        assert (
            short[7]
            == "rank 0 waits with [gradients of DistributedOptimizer 2] at train.py, line 5, in"
            " main: step()"
        )
        long = report.report(stalled, 120, 0, answers, detailed=True).splitlines()
        assert long[-3:-1] == [
            "    train.py, line 9, in <module>: main()",
            "    train.py, line 5, in main: step()",
        ]

    def test_a_rank_that_a_missing_one_holds_is_not_blamed(self) -> None:
        answers = {
            1: Answer(silent="its process 7 is stopped"),
            2: Answer(stuck=("grad",), awaited=(1,)),
        }
        over = [Waiting("grad", 9.0, (1, 2))]
        assert mentions(report.reason(over, 9, answers), "rank 1", "9 s")
        crossed = {
            1: Answer(stuck=("grad",), awaited=(2,)),
            2: Answer(stuck=("grad",), awaited=(1,)),
        }
        assert mentions(report.reason(over, 9, crossed), "ranks 1, 2")


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("allreduce.loss", "allreduce.loss"),
        ("allreduce.noname.7", "allreduce.noname.7"),
        ("optimizer.2.extremes.MIN", "gradients of DistributedOptimizer 2"),
        ("allocate.optimizer.2.0", "gradients of DistributedOptimizer 2"),
        ("DistributedGradientTape.digest", "gradients of DistributedGradientTape"),
        ("process_set.add.1", "add_process_set"),
        ("DistributedOptimizer.weights.1.digest", "weights of DistributedOptimizer"),
        ("broadcast.optimizer_state.4.17", "broadcast_optimizer_state"),
    ],
)
def test_names_are_those_that_the_program_knows(name: str, wanted: str) -> None:
    assert shown(name) == wanted


def test_a_list_of_names_has_each_once_and_six_at_most() -> None:
    assert (
        listed(["optimizer.2.filled", "a", "optimizer.2.extremes.MIN"])
        == "gradients of DistributedOptimizer 2, a"
    )
    assert listed("abcdefgh") == "a, b, c, d, e, f"


class DoubleStore:
    """A store in which some ranks have set nothing."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def try_get(self, key: str) -> bytes | None:
        return self.values.get(key)

    def get(self, key: str, timeout: float) -> bytes:
        if key not in self.values:
            raise RendezvousError(key)
        return self.values[key]

    def close(self) -> None: ...


def test_a_process_that_does_not_answer_is_looked_up() -> None:
    store = DoubleStore()
    query = StoreQuery(store, lambda: store, "1", 0, 3, 60.0, lambda: ())
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    )
    try:
        os.kill(child.pid, signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        _, host, space = json.loads(process.here())
        store.set("stall/1/process/1", json.dumps([child.pid, host, space]).encode())
        store.set("stall/1/process/2", json.dumps([4, "far", "another kernel"]).encode())
        answers = query.ask(query.ranks, 0.1)
    finally:
        child.kill()
        child.communicate()
        query.close()
    assert answers[1].silent.startswith(f"its process {child.pid} is stopped (SIGSTOP")
    assert mentions(answers[2].silent, "process 4 on far", "network")
    assert process.state(child.pid) == "is gone"


def run(path: Path, program: str, np: int, *flags: str) -> tuple[int, str]:
    path.write_text(program)
    with marked() as found:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "farandole",
                "run",
                "-np",
                str(np),
                *flags,
                sys.executable,
                str(path),
            ],
            capture_output=True,
            text=True,
            timeout=200,
            env=found.env,
            check=False,
        )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_a_deadlock_is_reported_with_the_line_of_each_rank(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    program = """
import time
import numpy as np
import farandole.numpy as hvd

def evaluate():
    hvd.allreduce(np.ones(4), name="accuracy")

def lost():
    time.sleep(600)

hvd.init()
hvd.barrier()
(lambda: hvd.allreduce(np.ones(4), name="loss"), evaluate, lost)[hvd.rank()]()
"""
    times = ("--stall-check-warning-time-seconds", "3", "--stall-check-shutdown-time-seconds", "8")
    code, text = run(path, program, 3, *times)
    assert code != 0
    assert "Missing ranks:\n[0]<stderr>:2: [allreduce.loss]\n" in text
    assert f"rank 2 is at {path}, line 10, in lost: time.sleep(600)" in text
    assert (
        f"rank 1 waits with [allreduce.accuracy] at {path}, line 7, in evaluate: hvd.allreduce("
        in text
    )
    assert "[1]<stderr>:Missing ranks" not in text, "one rank speaks"
    assert f"{path}, line 14, in <module>: (lambda" in text, "whole stacks in the end"
    cause = (
        "Rank 0 on localhost failed: StalledError: rank 2 stayed away from allreduce.loss for more"
        " than 8 s"
    )
    assert cause in text


@pytest.mark.slow
@pytest.mark.parametrize("wire", ["shm", "tcp"])
def test_a_rank_that_stops_inside_a_collective(wire: str, tmp_path: Path) -> None:
    program = """
import os, signal, threading
import numpy as np
import farandole.numpy as hvd

hvd.init()
weights = np.ones(1 << 20, np.float32)
hvd.allreduce(weights, name="weights")
if hvd.rank() == 1:
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGSTOP)).start()
while True:
    hvd.allreduce(weights, name="weights")
"""
    flags = ("--transport", wire, "--stall-check-shutdown-time-seconds", "5")
    code, text = run(tmp_path / "train.py", program, 3, *flags)
    assert code != 0
    assert (
        "Rank 0 on localhost failed: StalledError: rank 1 stopped inside allreduce.weights" in text
        or mentions(text, "Rank 0", "StalledError", "rank 1", "allreduce.weights")
    )
    assert "is stopped (SIGSTOP" in text


def test_a_wait_inside_a_collective_is_reported(said: list[str]) -> None:
    stall = StallCheck(Settings(stall_warning_seconds=5, stall_shutdown_seconds=9), rank=0)
    assert stall.waiting([Waiting("grad", 6.0, (2,), inside=True)]) == ""
    assert mentions(said[0], "5 seconds", "rank 2")
    assert stall.now()[0].inside
    why: Any = stall.waiting([Waiting("grad", 9.1, (2,), inside=True)])
    assert (
        why == "rank 2 stopped inside grad for more than 9 s (--stall-check-shutdown-time-seconds)"
    )
