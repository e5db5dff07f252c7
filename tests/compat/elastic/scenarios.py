"""The eight elastic histories of Horovod's integration suite, for the training program of any
framework: a job under ``horovodrun`` whose hosts change and whose ranks fail.

``localhost`` and ``127.0.0.1`` are two hosts. The discovery script counts the epochs in the log of
the training.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.compat.tools import horovodrun

BOTH = ("localhost:2", "127.0.0.1:2")
Schedule = Sequence[tuple[int | None, Sequence[str]]]


class End(NamedTuple):
    """The end of a job: exit code, errors, and the log's lines."""

    code: int
    errors: str
    epochs: list[dict[str, Any]]

    def column(self, *names: str) -> list[tuple[Any, ...]]:
        return [tuple(line[name] for name in names) for line in self.epochs]


class Elastic:
    """Runs the training ``program`` in ``folder`` with ``python``."""

    def __init__(self, program: Path, folder: Path, python: str = sys.executable) -> None:
        self._program, self._folder, self._python = program, folder, python

    def run(
        self,
        *flags: str,
        hosts: str = "",
        schedule: Schedule = (),
        exits: Mapping[str, Sequence[int]] | None = None,
        kill: bool = False,
    ) -> End:
        """Run a job of ``hosts``, or of the hosts of ``schedule``: pairs of a number of finished
        epochs (None: to the end) and the hosts until then.
        """
        log = self._folder / "log"
        source = ["-H", hosts]
        changes = [epochs - 1 for epochs, _ in schedule if epochs]
        if schedule:
            source = ["--host-discovery-script", self._script(schedule, log)]
        done = horovodrun(
            *source,
            *flags,
            self._python,
            self._program,
            f"--logfile={log}",
            f"--exit-schedule={json.dumps(exits or {})}",
            f"--exit-mode={'kill' if kill else 'exception'}",
            f"--changes={json.dumps(changes)}",
        )
        lines = log.read_text().splitlines() if log.exists() else []
        return End(done.returncode, done.stderr + done.stdout, [json.loads(each) for each in lines])

    def _script(self, schedule: Schedule, log: Path) -> str:
        cases = [f"epochs=$(cat {log} 2>/dev/null | wc -l)"]
        for epochs, hosts in schedule:
            lines = "; ".join(f"echo {host}" for host in hosts) or "true"
            cases.append(
                f"{{ {lines}; exit; }}"
                if epochs is None
                else f"if [ $epochs -lt {epochs} ]; then {lines}; exit; fi"
            )
        path = self._folder / "discover.sh"
        path.write_text("\n".join(["#!/bin/sh", *cases, ""]))
        path.chmod(0o755)
        return str(path)


def hosts_added_and_removed(elastic: Elastic) -> None:
    end = elastic.run(
        *("-np", "2", "--min-np", "2", "--max-np", "4"),
        schedule=[(1, BOTH[:1]), (2, BOTH), (None, BOTH[1:])],
    )
    assert end.code == 0, end.errors
    assert end.column("epoch", "size", "hostname") == [
        (0, 2, "localhost"),
        (1, 4, "localhost"),
        (2, 2, "127.0.0.1"),
    ]
    assert end.column("rank", "rendezvous") == [(0, 1), (0, 2), (0, 3)]
    assert [line["start_rank"] for line in end.epochs] == [0, 0, 2]


def single_rank_failure(elastic: Elastic) -> None:
    end = elastic.run(
        *("-np", "2", "--min-np", "2", "--max-np", "4"),
        schedule=[(None, BOTH)],
        exits={"1,0": [0]},
    )
    assert end.code == 0, end.errors
    assert end.column("epoch", "size", "hostname", "rendezvous") == [
        (0, 4, "localhost", 1),
        (1, 2, "127.0.0.1", 2),
        (2, 2, "127.0.0.1", 2),
    ]
    assert [line["commits"] for line in end.epochs] == [4, 9, 14]


def fault_tolerance_without_scaling(elastic: Elastic) -> None:
    end = elastic.run(
        *("-np", "4", "--min-np", "2", "--max-np", "4"),
        hosts=",".join(BOTH),
        exits={"1,2": [1]},
        kill=True,
    )
    assert end.code == 0, end.errors
    assert end.column("epoch", "size", "hostname", "commits") == [
        (0, 4, "localhost", 4),
        (1, 2, "127.0.0.1", 9),
        (2, 2, "127.0.0.1", 14),
    ]


def all_ranks_failure(elastic: Elastic) -> None:
    end = elastic.run(
        *("-np", "4", "--min-np", "2", "--max-np", "4"),
        hosts=",".join(BOTH),
        exits={"1,0": [0, 1, 2, 3]},
    )
    assert end.code == 1, end.errors
    assert end.column("epoch", "size") == [(0, 4)]
    assert "fails as scheduled" in end.errors


def all_hosts_blacklisted(elastic: Elastic) -> None:
    end = elastic.run(
        *("-np", "4", "--min-np", "2", "--max-np", "4"),
        hosts=",".join(BOTH),
        exits={"1,0": [0], "2,0": [2]},
    )
    assert end.code == 1, end.errors
    assert end.column("epoch", "size") == [(0, 4), (1, 2)]
    assert "rank 2 fails as scheduled" in end.errors


def min_hosts_timeout(elastic: Elastic) -> None:
    end = elastic.run(
        *("-np", "4", "--min-np", "4", "--max-np", "4", "--elastic-timeout", "2"),
        schedule=[(None, BOTH)],
        exits={"1,0": [0]},
    )
    assert end.code == 1, end.errors
    assert end.column("epoch", "size") == [(0, 4)]


def reset_limit(elastic: Elastic) -> None:
    end = elastic.run(
        *("-np", "2", "--min-np", "2", "--max-np", "4", "--reset-limit", "1"),
        schedule=[(1, BOTH[:1]), (2, BOTH), (None, BOTH[1:])],
    )
    assert end.code == 1, end.errors
    assert end.column("epoch", "size") == [(0, 2), (1, 4)]


def cooled_host_returns(elastic: Elastic) -> None:
    end = elastic.run(
        *("-np", "4", "--min-np", "4", "--max-np", "4"),
        *("--blacklist-cooldown-range", "1", "2"),
        schedule=[(None, BOTH)],
        exits={"1,0": [1]},
    )
    assert end.code == 0, end.errors
    assert end.column("epoch", "size", "hostname") == [
        (0, 4, "localhost"),
        (1, 4, "127.0.0.1"),
        (2, 4, "127.0.0.1"),
    ]


SCENARIOS = (
    hosts_added_and_removed,
    single_rank_failure,
    fault_tolerance_without_scaling,
    all_ranks_failure,
    all_hosts_blacklisted,
    min_hosts_timeout,
    reset_limit,
    cooled_host_returns,
)
