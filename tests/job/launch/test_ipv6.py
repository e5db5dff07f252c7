"""Hosts with only IPv6 addresses, and hosts with both versions that reach each other by one."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from tests.job.bootstrap import tools
from tests.job.bootstrap.test_mpi import BESIDE, MPIRUN
from tests.job.launch.test_servers import PROGRAM
from tests.job.launch.test_ssh import REDUCE, SOURCES, run
from tests.kits.hosts import Hosts, address_of, hosts
from tests.kits.messages import mentions

pytestmark = pytest.mark.slow

PEERS = """
import numpy as np
import farandole.numpy as hvd
from farandole.strategies.options import GradientOptions
from farandole.strategies.specs import strategy_of
from farandole.strategies.weights import WeightExchange
hvd.init()
exchange = WeightExchange("gossip_async", GradientOptions(), strategy_of("gossip_async"))
weights = [np.full(8, hvd.rank() + 1.0)]
slots = exchange.slots(weights)
exchange(weights, slots, 1)
exchange.average(weights, slots)
print(weights[0].round(1).tolist()[:2])
"""
# Both kinds of calls; all ranks fail in their first turn.
TORCH = """
import os, sys
import torch
import torch.distributed as dist
import farandole.torch as hvd
hvd.init()
dist.init_process_group("farandole")
theirs = torch.ones(3)
dist.all_reduce(theirs)
assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == theirs.tolist() == [2.0] * 3
assert (hvd.rank(), hvd.local_rank()) == (dist.get_rank(), dist.get_node_local_rank())
turn = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if turn == 0:
    raise SystemExit(3)
dist.destroy_process_group()
hvd.shutdown()
sys.stdout.write(f"fine {turn}\\n")
"""


@pytest.fixture(scope="module")
def two() -> Iterator[Hosts]:
    with hosts(2, families=(6,)) as made:
        yield made


def places(out: str) -> list[list[object]]:
    """Return the output of ``REDUCE`` on three ranks: host, rank, sum."""
    return [json.loads(line.partition(">:")[2])[:3] for line in sorted(out.splitlines())]


TWO_AND_ONE = [
    ["a", [0, 3, 0, 2, 0, 2], 6.0],
    ["a", [1, 3, 1, 2, 0, 1], 6.0],
    ["b", [2, 3, 0, 1, 1, 2], 6.0],
]


@pytest.mark.parametrize(
    ("listed", "more"), [("[fd99::1]:2,root@[fd99::2]:1", []), ("a:2,b:1", ["--tls"])]
)
def test_a_job_by_ssh(two: Hosts, listed: str, more: list[str]) -> None:
    status, out, err = run(
        two, "run", "-np", "3", "-H", listed, *more, sys.executable, "-c", REDUCE
    )
    encrypted = ", encrypted (--tls)" if more else ""
    assert (status, err) == (
        0,
        f"farandole: 3 ranks on {listed.replace(',', ', ')}, by ssh{encrypted}\n",
    )
    assert places(out) == TWO_AND_ONE


def test_a_host_without_farandole_is_sent_it(two: Hosts, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("[fd99::1] slots=2\nfd99::2\n")
    words = ["run", "-np", "3", "--hostfile", str(tmp_path / "hosts"), sys.executable, "-c", REDUCE]
    status, out, err = run(two, *words, path="", folder=str(tmp_path))
    assert status == 0, err
    assert places(out) == TWO_AND_ONE


def test_the_hosts_are_checked_and_measured(two: Hosts) -> None:
    status, out, err = run(two, "hosts", "-H", "[fd99::1]:2,[fd99::2]:1", "--json")
    assert status == 0, err
    found = json.loads(out)
    assert found["hosts"].keys() == {"fd99::1", "fd99::2"}
    assert found["pairs"]["fd99::1 fd99::2"]["address"] == "fd99::1"
    status, out, err = run(
        two, "hosts", "-H", "[fd99::1]:2,[fd99::2]:1,[fd99::3]:1", options="-o ConnectTimeout=1"
    )
    assert (status, out) == (1, "")
    assert re.search(r"\n  fd99::3: .* on port 22 \(", err)


def test_parameter_servers_and_background_averaging(two: Hosts) -> None:
    words = ("run", "-np", "2", "-H", "a:1,b:1")
    servers = ("--servers", "2", "--replicas", "2", "--strategy", "ps_async")
    status, out, err = run(two, *words, *servers, sys.executable, "-c", PROGRAM, "30")
    assert (status, sorted(out.splitlines())) == (
        0,
        ["[0]<stdout>:60.0 60.0", "[1]<stdout>:60.0 60.0"],
    ), err
    alone = PROGRAM.replace("step == 5", "0")  # on the driver's host; no driver ends it
    status, out, err = run(two, *words, "--strategy", "ps_async", sys.executable, "-c", alone, "30")
    assert (status, sorted(out.splitlines())) == (
        0,
        ["[0]<stdout>:60.0 60.0", "[1]<stdout>:60.0 60.0"],
    ), err
    status, out, err = run(two, *words, sys.executable, "-c", PEERS)
    assert (status, sorted(out.splitlines())) == (
        0,
        ["[0]<stdout>:[1.5, 1.5]", "[1]<stdout>:[1.5, 1.5]"],
    ), err


class TestMpirun(tools.TwoHosts):
    """mpirun of Open MPI."""

    command: ClassVar[list[str]] = [*MPIRUN[:-1], "3", "--host", "a:2,b:1", "-x", "PYTHONPATH"]
    environment: ClassVar[dict[str, str]] = {"PRTE_MCA_plm_ssh_agent": "{ssh}"}

    @pytest.fixture
    def two_hosts(self, two: Hosts) -> Hosts:
        pytest.importorskip("mpi4py")
        if not BESIDE.exists():
            pytest.skip("no mpirun is installed beside this Python")
        return two


def test_torchrun_starts_both_kinds_of_calls_again(two: Hosts, tmp_path: Path) -> None:
    """With its own store for all hosts, at an IPv6 address."""
    pytest.importorskip("torch")
    (tmp_path / "both.py").write_text(TORCH)
    clean = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith((*tools.OURS, "TORCHELASTIC"))
    }
    env = {**clean, "OMP_NUM_THREADS": "1", "PYTHONPATH": SOURCES}
    words = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes=2",
        "--nproc-per-node=1",
        "--max-restarts=1",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=[fd99::1]:29511",
        "--rdzv-id=7",
        str(tmp_path / "both.py"),
    ]
    agents = [
        subprocess.Popen(
            host.command(*words), env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for host in two
    ]
    said = [agent.communicate(timeout=200) for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], said
    assert [out for out, _ in said] == ["fine 1\n"] * 2


@pytest.mark.parametrize(("lost", "taken"), [(4, "fd99::/64"), (6, "10.99.0.0/24")])
def test_hosts_with_one_unreachable_kind_of_address(lost: int, taken: str) -> None:
    with hosts(2, families=(10 - lost, lost)) as made:
        for host, other in ((made[0], 1), (made[1], 0)):
            host.lose(dataclasses.replace(made[other], address=address_of(other, lost)))
        words = (
            "run",
            "-np",
            "3",
            "-H",
            "a:2,b:1",
            "--log-level",
            "info",
            sys.executable,
            "-c",
            REDUCE,
        )
        status, out, err = run(made, *words, options="-o ConnectTimeout=5")
        assert (status, places(out)) == (0, TWO_AND_ONE), err
        assert mentions(err, "TCP", f"{taken} (of 10.99.0.1/24, fd99::1/64)")
