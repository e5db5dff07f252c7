"""The driver's side of agents: their messages, and the ranks assigned to them."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import signal
import socket
import sys
import threading
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from farandole.errors import RendezvousError
from farandole.job.launch.agents import boot, bundle, contact
from farandole.job.launch.agents.allocation import AgentAllocation, AgentPlace, deal
from farandole.job.launch.agents.command import Command
from farandole.job.launch.agents.registry import AgentInfo, AgentRegistry
from farandole.job.launch.plan import plan
from farandole.net import liveness
from farandole.net.handshake import new_secret
from farandole.net.interfaces import Interface
from farandole.net.store import StoreClient, StoreServer
from farandole.net.store.exchange import redeem
from tests.job.launch.tools import wait_until
from tests.kits.messages import mentioning, mentions

HELLO = {"host": "a", "place": "", "odd": {}, "gpus": [], "cores": 1, "python": "", "pid": 1}


def test_agents_that_tell_nonsense_are_not_believed(caplog: pytest.LogCaptureFixture) -> None:
    store = StoreServer(new_secret())
    registry = AgentRegistry(store, plan(None, 2), 2, lambda index: None, "task")
    try:
        registry.assign(0, [registry.workers[0].slot], [{}], {})
        with caplog.at_level(logging.WARNING, "farandole"):
            for key in (
                "outcome/9",
                "outcome/x",
                "agent/",
                "agent/x/hello",
                "agent/7/hello",
                "agent/0/hello",
                "agent/0/out",
                "agent/0/out/0",
                "agent/0/exit/0",
                "agent/0/exit/1",
                "agent/0/failed/0",
                "agent/0/song/0",
            ):
                store.receive(key, b"")
        assert len(caplog.records) == 12
        assert registry.agents == {}
        assert registry.workers[0].code is None
    finally:
        registry.close()
        store.close()


def agent(index: int, host: str, place: str) -> AgentInfo:
    return AgentInfo(index, host, place, {}, [], 4, "python", 1)


class TestDeal:
    def test_tasks_that_share_memory_are_one_host(self) -> None:
        agents = [agent(0, "a", "p"), agent(1, "b", "q"), agent(2, "a", "p")]
        slots, dealt = deal([AgentPlace(1)] * 3, agents)
        assert [(slot.rank, slot.host, slot.local_rank, slot.cross_size) for slot in slots] == [
            (0, "a", 0, 2),
            (1, "a", 1, 1),
            (2, "b", 0, 2),
        ]
        assert {index: [slot.rank for slot in mine] for index, mine in dealt.items()} == {
            0: [0],
            2: [1],
            1: [2],
        }

    def test_hosts_are_those_that_the_user_names(self) -> None:
        """Two names of one machine are two hosts."""
        agents = [agent(0, "box", "p"), agent(1, "box", "p")]
        slots, dealt = deal([AgentPlace(2, "localhost"), AgentPlace(2, "127.0.0.1")], agents)
        assert [
            (slot.host, slot.local_rank, slot.local_size, slot.cross_rank) for slot in slots
        ] == [
            ("localhost", 0, 2, 0),
            ("localhost", 1, 2, 0),
            ("127.0.0.1", 0, 2, 1),
            ("127.0.0.1", 1, 2, 1),
        ]
        assert [len(mine) for mine in dealt.values()] == [2, 2]


def test_packages_are_not_taken_from_a_writable_folder(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("notthere/__init__.py", "VALUE = 5\n")
    wanted = {"notthere": "digest"}
    folder, _ = boot.provide(packed.getvalue(), wanted, str(tmp_path))
    assert boot.provide(packed.getvalue(), wanted, str(tmp_path))[0] == folder
    os.chmod(folder, 0o777)
    assert boot.provide(packed.getvalue(), wanted, str(tmp_path))[0] != folder


def test_packages_go_elsewhere_when_the_home_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("notthere/__init__.py", "VALUE = 5\n")
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "local"))
    folder, _ = boot.provide(packed.getvalue(), {"notthere": "digest"}, "/proc/full")
    assert Path(folder).parent == tmp_path / "local"
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/proc/too")
    with pytest.raises(
        OSError,
        match=mentioning("/proc/full", "/proc/too"),
    ):
        boot.provide(packed.getvalue(), {"notthere": "digest"}, "/proc/full")


def test_the_drivers_address_that_knows_the_secret_is_taken() -> None:
    secret = new_secret()
    store, stranger = StoreServer(secret), StoreServer(new_secret())
    try:
        assert (
            contact.contact(["127.0.0.1:1", stranger.address, store.address], secret)
            == store.address
        )
        assert contact.contact(["127.0.0.1:1"], secret) == ""
    finally:
        store.close()
        stranger.close()


def test_a_driver_that_is_silent_is_given_up_when_a_lost_host_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[float] = []

    def silent(host: str, port: int, seconds: float) -> socket.socket:
        given.append(seconds)
        raise TimeoutError

    monkeypatch.setattr(liveness, "connected", silent)
    assert contact.contact(["10.0.0.1:1"], new_secret()) == ""
    assert sum(given) <= liveness.LOST_SECONDS


def test_a_host_without_an_address_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    lo, eth0 = Interface("lo", "127.0.0.1", 8, 0, True), Interface("eth0", "10.0.0.2", 24, 0, False)
    for found, says in (
        ([lo], "no address"),
        ([lo, eth0], r"\(10\.0\.0\.1:7\).*--network-interfaces"),
    ):
        monkeypatch.setattr(contact, "interfaces", lambda found=found: found)
        assert re.search(says, contact.no_contact(["10.0.0.1:7"]))


def test_a_readable_cluster_gets_only_a_token_with_tls() -> None:
    class Open(Command):
        def start(self, facts: Mapping[str, Any]) -> None:
            received.update(facts)

    received: dict[str, Any] = {}
    secret = new_secret(tls=True)
    allocation = AgentAllocation(Open("mpi", ["true"], "here", "lo"), [AgentPlace(1)], 10.0)
    store = allocation.listen(secret)
    try:
        allocation.start(["python"], {})
        assert secret not in str(received)
        assert received["address"] != store.address
        client = redeem(StoreClient(received["address"], received["secret"], timeout=60.0), 0)
        assert (client.address, client.secret) == (store.address, secret)
        client.set("agent/0/hello", json.dumps(HELLO).encode())
        client.close()
        assert allocation.slots() is not None
        with pytest.raises(RendezvousError):  # all are in
            StoreClient(received["address"], received["secret"], timeout=60.0)
    finally:
        allocation.close()
        store.close()


def test_an_agent_runs_processes_next_to_its_rank() -> None:
    other = (
        "import os, sys; print(os.environ['OWN'], os.environ['FARANDOLE_STORE'], flush=True);"
        " sys.exit(3)"
    )
    allocation = AgentAllocation(Command("mpi", ["env"], "here", "lo"), [AgentPlace(1)], 100.0)
    store = allocation.listen(new_secret())
    try:
        (rank,) = allocation.start([sys.executable, "-c", "import signal; signal.pause()"], {})
        assert wait_until(lambda: allocation.slots() is not None, 100)
        workers = allocation.serve(
            [sys.executable, "-c", other], [{"OWN": "1"}, {"OWN": "2"}, {"OWN": "3"}], 2
        )
        assert [(worker.slot.rank, worker.slot.host) for worker in workers] == [
            (number, rank.slot.host) for number in (1, 2, 3)
        ]
        for number, worker in enumerate(workers, start=1):
            assert worker.stdout is not None
            with open(worker.stdout, encoding="utf-8") as out:
                assert out.read() == f"{number} {store.address}\n"
        assert wait_until(lambda: not any(worker.alive() for worker in workers))
        assert [worker.poll() for worker in workers] == [3] * 3
        assert rank.poll() is None
        assert rank.alive()
        rank.terminate()
        assert wait_until(lambda: rank.poll() is not None)
    finally:
        allocation.close()
        store.close()


def test_processes_of_a_lost_agent_are_no_cause() -> None:
    store = StoreServer(new_secret())
    registry = AgentRegistry(store, plan(None, 1), 1, lambda index: "it was preempted", "task")
    try:
        registry.assign(0, [registry.workers[0].slot], [{}], {})
        failed, lost = registry.serve(0, plan(None, 2), [{}, {}], {})
        store.receive(
            "agent/0/failed/1", json.dumps({"message": "python cannot be started"}).encode()
        )
        assert failed.poll() == 1
        assert failed.stderr is not None
        with open(failed.stderr, encoding="utf-8") as err:
            assert err.read() == "python cannot be started\n"
        store.lost[0]("agent/0")
        assert lost.poll() is None
        assert not lost.alive()
        assert registry.workers[0].poll() == 0
        assert b"it was preempted" in (store.pop("outcome/0") or b"")
        assert store.pop("outcome/1") is None
    finally:
        registry.close()
        store.close()


def test_a_process_without_an_agent_is_not_awaited() -> None:
    """The host of a starting rank cannot be reached."""
    store = StoreServer(new_secret())
    registry = AgentRegistry(store, (), 1, lambda index: None, "ssh")
    try:
        worker = registry.add(0, plan(None, 1)[0], {}, {})
        assert worker.alive()
        worker.terminate()
        assert not worker.alive()
        assert worker.poll() == -signal.SIGTERM
        orders = [json.loads(store.pop(f"agent/0/order/{number}") or b"") for number in (0, 1)]
        assert [order["do"] for order in orders] == ["start", "terminate"]
    finally:
        registry.close()
        store.close()


class TestPackages:
    def test_an_agent_without_farandole_fetches_the_drivers(self, tmp_path: Path) -> None:
        """As mpirun or srun starts it, with an interpreter without packages; its rank gets them,
        too.
        """
        hide = f'p=$1; shift; exec env -u PYTHONPATH XDG_CACHE_HOME={tmp_path} "$p" -S "$@"'
        allocation = AgentAllocation(
            Command("mpi", ["sh", "-c", hide, "sh"], "nowhere"), [AgentPlace(1)], 100.0
        )
        store = allocation.listen(new_secret())
        try:
            (worker,) = allocation.start(
                [sys.executable, "-c", "import farandole; print(farandole.__file__)"], {}
            )
            assert wait_until(lambda: allocation.slots() is not None, 100)
            assert worker.stdout is not None
            with open(worker.stdout, encoding="utf-8") as out:
                said = out.read()
        finally:
            allocation.close()
            store.close()
        assert re.fullmatch(
            rf"{tmp_path}/farandole/farandole-[0-9a-f]{{16}}-\d+/farandole/__init__.py\n", said
        )

    def test_an_archive_that_differs_from_the_drivers_is_refused(self) -> None:
        packed = io.BytesIO(bundle.archive())
        assert boot.contents(packed.getvalue()) == bundle.digests()
        with zipfile.ZipFile(packed, "a") as archive:
            archive.writestr("farandole/errors.so", b"")  # Python would take it before errors.py
        with socket.create_server(("127.0.0.1", 0)) as stranger:

            def answer() -> None:
                connection = stranger.accept()[0]
                with connection:
                    connection.sendall(packed.getvalue())

            thread = threading.Thread(target=answer)
            thread.start()
            with pytest.raises(ValueError, match=mentioning("driver's")):
                boot.fetch([f"127.0.0.1:{stranger.getsockname()[1]}"], bundle.digests())
            thread.join()

    def test_an_agent_without_access_to_the_driver_reports_it(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            address = f"127.0.0.1:{closed.getsockname()[1]}"
        assert boot.begin({"wanted": {"farandole": "another"}, "packages": [address]}) == 1
        there = Path(boot.__file__).parents[3]
        assert mentions(capsys.readouterr().err, "driver's", str(there))
