"""Conformance kit of launchers. A new launcher runs it by a class with its options:

    class TestMine(LauncherKit):
        options = {"launcher": "mine"}

The driver is a separate process, which starts three jobs by ``farandole.run``, one after the other.
If it cannot run directly on this machine, the class overrides the fixture ``drive``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

LINES = 200
DRIVER = """
import json, os, signal, sys
import farandole
{before}
def main(what):
    import numpy as np
    import farandole.numpy as hvd

    hvd.init()
    for number in range({lines}):
        print(f"line {{number}} of {{hvd.rank()}}")
    total = hvd.allreduce(np.full(3, hvd.rank() + 1.0), op=hvd.Sum)
    if hvd.rank() == 1 and what == "an exception":
        raise ValueError("no more data")
    if hvd.rank() == 1 and what == "a signal":
        os.kill(os.getpid(), signal.SIGKILL)
    hvd.barrier()
    return {{
        "rank": hvd.rank(), "size": hvd.size(), "local": [hvd.local_rank(), hvd.local_size()],
        "cross": [hvd.cross_rank(), hvd.cross_size()], "total": total.tolist(), "what": what,
        "variables": {{name: os.environ.get(name) for name in {names}}},
    }}

for what in ["nothing", "an exception", "a signal"]:
    try:
        found = farandole.run(main, args=(what,), np={np}, env={{"OF_THE_JOB": "a b=c"}}, **{options})
    except farandole.errors.JobFailedError as error:
        found = {{"text": str(error), "rank": error.rank, "exit_code": error.exit_code}}
    sys.stdout.flush()
    print(f"\\n{mark}" + json.dumps(found), flush=True)
"""
MARK = "outcome of a job: "
NAMES = (
    "OF_THE_JOB",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "HOROVOD_RANK",
)


Drive = Callable[[Path, Mapping[str, str]], str]


def here(command: Sequence[str], env: Mapping[str, str]) -> str:
    """Run a command to its end and return its output."""
    done = subprocess.run(
        list(command),
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


class LauncherKit:
    np: ClassVar[int] = 2
    options: ClassVar[Mapping[str, Any]] = {}  # of ``farandole.run``
    before: ClassVar[str] = ""  # what a driver needs first

    @pytest.fixture(scope="class")
    @classmethod
    def drive(cls) -> Drive:
        """Return the function that runs a driver and returns its output."""
        return lambda driver, env: here([sys.executable, str(driver)], env)

    @pytest.fixture(scope="class")
    @classmethod
    def printed(cls, drive: Drive, tmp_path_factory: pytest.TempPathFactory) -> str:
        """Return the output of the driver."""
        driver = tmp_path_factory.mktemp("driver") / "driver.py"
        text = DRIVER.format(
            np=cls.np,
            options=dict(cls.options),
            before=textwrap.dedent(cls.before),
            lines=LINES,
            names=NAMES,
            mark=MARK,
        )
        driver.write_text(text)
        return drive(driver, {"OMP_NUM_THREADS": "1"})

    @pytest.fixture(scope="class")
    @classmethod
    def outcomes(cls, printed: str) -> list[Any]:
        return [
            json.loads(line.removeprefix(MARK))
            for line in printed.splitlines()
            if line.startswith(MARK)
        ]

    def test_results_come_in_the_order_of_ranks(self, outcomes: list[Any]) -> None:
        found = outcomes[0]
        assert [result["rank"] for result in found] == list(range(self.np))
        total = [float(sum(range(1, self.np + 1)))] * 3
        for result in found:
            assert (result["size"], result["total"], result["what"]) == (self.np, total, "nothing")

    def test_ranks_know_their_places(self, outcomes: list[Any]) -> None:
        places = {(*result["local"], *result["cross"]) for result in outcomes[0]}
        assert len(places) == self.np, "no two ranks are in one place"
        for rank, result in enumerate(outcomes[0]):
            (local, of_host), (cross, hosts) = result["local"], result["cross"]
            assert 0 <= local < of_host
            assert 0 <= cross < hosts
            of = result["variables"]
            assert of["RANK"] == of["HOROVOD_RANK"] == str(rank)
            assert of["WORLD_SIZE"] == str(self.np)
            assert [of["LOCAL_RANK"], of["LOCAL_WORLD_SIZE"], of["GROUP_RANK"]] == [
                str(local),
                str(of_host),
                str(cross),
            ]

    def test_ranks_have_the_jobs_variables(self, outcomes: list[Any]) -> None:
        assert {result["variables"]["OF_THE_JOB"] for result in outcomes[0]} == {"a b=c"}

    def test_all_output_of_ranks_is_printed_in_order(self, printed: str) -> None:
        first = printed.partition(MARK)[0]
        for rank in range(self.np):
            own = [
                line.partition(">:")[2]
                for line in first.splitlines()
                if line.startswith(f"[{rank}]<stdout>:")
            ]
            assert own == [f"line {number} of {rank}" for number in range(LINES)]

    def test_an_exception_is_reported_with_its_rank(self, outcomes: list[Any]) -> None:
        _, found, _ = outcomes
        assert found["rank"] == 1, found["text"]
        assert found["text"].startswith("Rank 1 on ")
        assert "failed: ValueError: no more data" in found["text"].splitlines()[0]
        assert "in main" in found["text"], "where it was raised"

    def test_a_killed_rank_is_named_with_the_signal(self, outcomes: list[Any]) -> None:
        *_, found = outcomes
        assert found["rank"] == 1, found["text"]
        assert "SIGKILL" in found["text"].splitlines()[0], found["text"]
        assert found["exit_code"] == 128 + signal.SIGKILL
