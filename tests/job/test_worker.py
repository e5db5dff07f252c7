from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from farandole.base.package import PYTHON
from farandole.job.config import Connection, Placement, Settings
from farandole.job.launch.driver import worker_command
from farandole.job.launch.plan import plan
from farandole.job.report import keys
from farandole.job.report.outcome import Outcome
from farandole.job.worker import _store_of_first, environment, identify
from farandole.net.handshake import new_secret
from farandole.net.store import StoreClient, StoreServer
from tests.kits.messages import mentions


def run_worker(**env: str) -> subprocess.CompletedProcess[str]:
    clean = {
        key: text
        for key, text in os.environ.items()
        if not key.startswith(("FARANDOLE_", "HOROVOD_"))
    }
    return subprocess.run(
        worker_command(),
        env={**clean, **env},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_identity_of_a_rank_on_uneven_hosts() -> None:
    placement = identify(plan("a:1,b:2", 3), Placement(rank=2, generation=7))
    assert placement == Placement(
        rank=2,
        size=3,
        local_rank=1,
        local_size=2,
        cross_rank=0,
        cross_size=1,
        hostname="b",
        homogeneous=False,
        generation=7,
    )
    assert identify(plan("a:1,b:1", 2), Placement(rank=1)).homogeneous


def variables_of(np: int, settings: Settings | None = None) -> dict[str, str]:
    """Return the variables of rank 0 of ``np`` on this host."""
    placement = identify(plan(None, np), Placement())
    return environment(
        placement, Connection(store="h:1", secret="5e", launcher="local"), settings or Settings()
    )


def test_all_variables_of_rank_0_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    env = variables_of(1, Settings(cycle_time=3.0))
    assert {
        name: env[f"HOROVOD_{name}"] for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    } == {"RANK": "0", "SIZE": "1", "LOCAL_RANK": "0", "LOCAL_SIZE": "1"}
    assert env["HOROVOD_HOSTNAME"] == "localhost"
    assert env["HOROVOD_CYCLE_TIME"] == env["FARANDOLE_CYCLE_TIME"] == "3"
    assert "OMP_NUM_THREADS" not in env, "one rank may have all cores"
    assert Settings.from_env(env) == Settings(cycle_time=3.0)
    assert Placement.from_env(env) == Placement(hostname="localhost")
    assert Connection.from_env(env) == Connection(store="h:1", secret="5e", launcher="local")


def test_ranks_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert variables_of(3)["OMP_NUM_THREADS"] == "2"
    assert variables_of(16)["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert "OMP_NUM_THREADS" not in variables_of(3), "the user knows better"


def test_by_hand() -> None:
    done = run_worker()
    assert done.returncode == 2
    assert mentions(done.stderr, "launcher")


def test_the_driver_is_gone() -> None:
    secret = new_secret()
    store = StoreServer(secret)
    store.close()
    done = run_worker(
        FARANDOLE_STORE=store.address,
        FARANDOLE_SECRET=secret,
        FARANDOLE_LAUNCHER="local",
        FARANDOLE_RANK="3",
        FARANDOLE_LOCAL_RANK="3",
    )
    assert done.returncode == 1
    assert mentions(done.stderr, "rank 3", store.address)
    assert "Traceback" not in done.stderr


def test_another_jobs_store() -> None:
    store = StoreServer(new_secret())
    try:
        done = run_worker(
            FARANDOLE_STORE=store.address,
            FARANDOLE_SECRET=new_secret(),
            FARANDOLE_LAUNCHER="local",
            FARANDOLE_RANK="0",
            FARANDOLE_LOCAL_RANK="0",
        )
        assert done.returncode == 1
        assert mentions(done.stderr, "rank 0")
    finally:
        store.close()


def test_a_function_from_another_python_is_refused() -> None:
    secret = new_secret()
    store = StoreServer(secret)
    job = {
        "command": [],
        "python": "3.9",
        "elsewhere": False,
        "port": 1,
        "slots": [list(plan(None, 1)[0])],
    }
    store.set(keys.JOB, json.dumps(job).encode())
    try:
        done = run_worker(
            FARANDOLE_STORE=store.address,
            FARANDOLE_SECRET=secret,
            FARANDOLE_LAUNCHER="local",
            FARANDOLE_RANK="0",
            FARANDOLE_LOCAL_RANK="0",
        )
        outcome = Outcome.from_bytes(store.get(keys.outcome(0)) or b"")
    finally:
        store.close()
    assert done.returncode == 1
    assert mentions(outcome.message, "Python 3.9", f"Python {PYTHON}", sys.executable)


def test_starting_a_command_imports_nothing_heavy() -> None:
    code = "import sys, farandole.job.worker; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=True
    ).stdout
    assert not {
        "numpy",
        "cloudpickle",
        "psutil",
        "rich",
        "subprocess",
        "asyncio",
        "argparse",
    } & set(loaded.split())


@pytest.mark.parametrize(
    ("hosts", "elsewhere", "is_first"),
    [("a:2", False, False), ("a:2", True, True), ("a:1,b:1", True, True)],
)
def test_rank_0_finds_the_port_for_torchs_store_on_its_own_host(
    hosts: str, elsewhere: bool, is_first: bool
) -> None:
    """Unless the host is the driver's, which has found a port."""
    server = StoreServer("5e" * 32)
    client = StoreClient(server.address, "5e" * 32)
    job = {"elsewhere": elsewhere, "port": 1}
    try:
        found = [_store_of_first(plan(hosts, 2), rank, client, Settings(), job) for rank in (0, 1)]
        assert (client.try_get(keys.FIRST) is not None) == is_first
    finally:
        client.close()
        server.close()
    assert found[0] == found[1]
    assert (found[0][1] != 1) == is_first
    assert "," in hosts or found[0][0] == "127.0.0.1"
