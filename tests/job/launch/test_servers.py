"""Parameter servers as processes of a job."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from farandole.job.launch.servers import name, verdict
from tests.job.launch.tools import Marked
from tests.kits.messages import mentions

PY = sys.executable
# Trains without end, or 30 steps; at step 5, rank 0 kills the first server, or a replica of it.
PROGRAM = """
import os, signal, sys
import numpy as np
import farandole.numpy as hvd
from farandole.job import context
from farandole.strategies.options import gradient_options
from farandole.strategies.weights import WeightExchange
hvd.init()
options = gradient_options()
exchange = WeightExchange("test", options, options.strategy)
weights = [np.zeros(1000), np.zeros(3, dtype=np.float32)]
slots, steps = exchange.slots(weights), int(sys.argv[1])
for step in range(1, steps + 1):
    for weight in weights:
        weight += 1
    exchange(weights, slots, step)
    if step == 5 and hvd.rank() == 0:
        os.kill(context.servers().servers[0]._addresses[int(*sys.argv[2:])]["pid"], signal.SIGKILL)
exchange.average(weights, slots)
print(float(weights[0][0]), float(weights[1][2]))
"""


def test_the_loss_of_all_replicas_of_a_server_is_the_cause() -> None:
    hosts, begun = ["a", "b", "b", "b"], range(4)
    assert verdict({}, 1, {}, hosts, begun) is None
    assert verdict({0: -9, 3: -9}, 2, {}, hosts, begun) is None
    found = verdict({1: -9}, 1, {1: "Traceback\nboom\n"}, hosts, begun)
    assert found is not None
    assert (found.rank, found.exit_code) == (-1, 137)
    assert found.message.startswith("Parameter server 1 on b died")
    assert " died of signal 9 (SIGKILL)" in found.message
    assert "boom" in found.message
    assert mentions(found.message, "--replicas 2")
    lost = verdict({2: 1, 0: 0, 3: -9}, 2, {}, hosts, begun)
    assert lost is not None
    assert "Parameter server 1 on" in lost.message
    assert mentions(lost.message, "replica")
    early = verdict({3: -9}, 2, {}, hosts, {0, 1, 2})
    assert early is not None
    assert mentions(early.message, "server 1", "signal 9", "SIGKILL")
    assert mentions(early.message, "job")
    assert (name(3, 2), name(2, 2)) == ("parameter server 1, replica 1,", "parameter server 1")


@pytest.mark.slow
def test_a_killed_primary_with_a_replica_costs_nothing(jobs: Marked, tmp_path: Path) -> None:
    done = jobs.run(
        "run",
        "-np",
        "2",
        "--servers",
        "2",
        "--replicas",
        "2",
        "--strategy",
        "ps_async",
        "--output-dir",
        str(tmp_path),
        PY,
        "-c",
        PROGRAM,
        "30",
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}]<stdout>:60.0 60.0" for rank in range(2)]
    assert "parameter server 0 on " in done.stderr
    assert mentions(done.stderr, "replica")
    assert {path.name for path in tmp_path.iterdir()} >= {"rank.0", "server.0", "server.3"}


@pytest.mark.slow
def test_a_killed_replica_is_reported_by_its_server(jobs: Marked) -> None:
    flags = ("--replicas", "2", "--strategy", "ps_async", "--log-without-timestamp")
    done = jobs.run("run", "-np", "2", *flags, PY, "-c", PROGRAM, "30", "1")
    assert done.returncode == 0, done.stderr
    assert mentions(done.stderr, "[server 0]<stderr>:[W farandole server 0]", "replica")


@pytest.mark.slow
def test_without_a_replica_the_error_names_the_server(jobs: Marked) -> None:
    done = jobs.run(
        "run", "-np", "2", "--tls", "--strategy", "ssp:3", PY, "-c", PROGRAM, "100000000"
    )
    assert done.returncode == 128 + signal.SIGKILL
    assert "farandole: Parameter server 0 on " in done.stderr
    assert "died of signal 9 (SIGKILL)" in done.stderr
    assert mentions(done.stderr, "model", "--replicas 2")


@pytest.mark.slow
def test_a_server_that_ends_during_its_start_is_the_cause(
    jobs: Marked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks must not wait for its address until the start timeout."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os\nif os.environ.get('FARANDOLE_SERVER') == '1': os._exit(3)\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    done = jobs.run(
        "run", "-np", "2", "--replicas", "2", "--strategy", "ps", PY, "-c", PROGRAM, "30"
    )
    assert done.returncode == 3
    assert "farandole: Parameter server 0, replica 1, on " in done.stderr
    assert mentions(done.stderr, "address", "job")
