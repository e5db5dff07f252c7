"""The client of PMI-1, with a process manager of the tests."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from farandole.errors import HorovodInternalError, RendezvousError, WireError
from farandole.job.bootstrap import pmi
from farandole.job.config import Placement
from tests.kits.messages import mentioning


class Manager:
    """A process manager for ``size`` processes, each a thread here."""

    def __init__(self, size: int, longest: int = 1024) -> None:
        self.values: dict[str, str] = {}
        self.finalized = 0
        self._longest, self._barrier = longest, threading.Barrier(size)
        pairs = [socket.socketpair() for _ in range(size)]
        self.ours, self.theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        self.threads = [
            threading.Thread(target=self._serve, args=(sock,), daemon=True) for sock in self.ours
        ]
        for thread in self.threads:
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, sock.makefile("r") as lines:
            for line in lines:
                words = dict(word.partition("=")[::2] for word in line.split())
                sock.sendall(f"{self._answer(words)}\n".encode())

    def _answer(self, words: dict[str, str]) -> str:
        match words["cmd"]:
            case "init":
                return "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1"
            case "get_maxes":
                return f"cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max={self._longest}"
            case "get_my_kvsname":
                return "cmd=my_kvsname rc=0 kvsname=kvs_1"
            case "put" if words["kvsname"] == "kvs_1" and len(words["value"]) < self._longest:
                self.values[words["key"]] = words["value"]
                return "cmd=put_result rc=0"
            case "barrier_in":
                self._barrier.wait(60)
                return "cmd=barrier_out rc=0"
            case "get" if words["key"] in self.values:
                return f"cmd=get_result rc=0 value={self.values[words['key']]}"
            case "finalize":
                self.finalized += 1
                return "cmd=finalize_ack rc=0"
        return f"cmd={words['cmd']}_result rc=-1 msg=no"

    def close(self) -> None:
        self._barrier.abort()
        for sock in self.theirs:
            sock.close()
        for thread in self.threads:
            thread.join(60)


@pytest.fixture
def manager_of() -> Iterator[Callable[..., Manager]]:
    made: list[Manager] = []

    def make(*arguments: int) -> Manager:
        made.append(Manager(*arguments))
        return made[-1]

    yield make
    for manager in made:
        manager.close()


@pytest.mark.parametrize("longest", [1024, 8], ids=["whole", "in parts"])
def test_all_get_the_text_of_rank_0(
    longest: int, manager_of: Callable[..., Manager], monkeypatch
) -> None:
    manager = manager_of(3, longest)
    fds = threading.local()

    class Environment(dict[str, str]):
        def __getitem__(self, name: str) -> str:
            return str(fds.fd) if name == "PMI_FD" else super().__getitem__(name)

    monkeypatch.setattr(pmi.os, "environ", Environment())
    received: dict[int, str] = {}

    def body(rank: int) -> None:
        fds.fd = manager.theirs[rank].fileno()
        received[rank] = pmi.broadcast(
            Placement(rank=rank, size=3), lambda: f"host:5,5ec{'r' * 20}et-of-{rank}", 10.0
        )

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert received == dict.fromkeys(range(3), f"host:5,5ec{'r' * 20}et-of-0")
    assert manager.finalized == 3, "else the end of a process would count as a failure"


@pytest.fixture
def manager_that_says(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], None]]:
    ours, theirs = socket.socketpair()
    monkeypatch.setenv("PMI_FD", str(theirs.fileno()))

    def says(text: bytes) -> None:
        ours.sendall(text)
        ours.shutdown(socket.SHUT_WR)

    yield says
    ours.close()
    theirs.close()


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (
            b"cmd=response_to_init rc=-1\n",
            WireError,
            ("'init'", "'cmd=response_to_init rc=-1'"),
        ),
        (b"cmd=who_are_you\n", WireError, ("'init'", "'cmd=who_are_you'")),
        (b"", HorovodInternalError, ("process manager", "init")),
    ],
    ids=["refusal", "another", "end"],
)
def test_an_answer_of_another_kind(
    answer: bytes, error: type, says: str | tuple[str, ...], manager_that_says
) -> None:
    manager_that_says(answer)
    with pytest.raises(error, match=mentioning(says)):
        pmi.broadcast(Placement(size=2), lambda: "x", 10.0)


def test_ranks_that_do_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    monkeypatch.setenv("PMI_FD", str(theirs.fileno()))
    with (
        ours,
        theirs,
        pytest.raises(RendezvousError, match=mentioning("4", "init()", "0.1")),
    ):
        pmi.broadcast(Placement(rank=2, size=4), lambda: "x", 0.1)


ENDS = """
from farandole.job.bootstrap import pmi
pmi.abort_at_exit()
raise RuntimeError("job ends")
"""


def test_the_job_is_not_ended_before_the_traceback_has_been_read() -> None:
    """Hydra reads its own socket before the output, and then reads no more."""
    ours, theirs = socket.socketpair()
    env = {**os.environ, "PMI_FD": str(theirs.fileno())}
    with (
        ours,
        theirs,
        subprocess.Popen(
            [sys.executable, "-c", ENDS],
            env=env,
            pass_fds=[theirs.fileno()],
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stderr is not None
        select.select([process.stderr], [], [], 60)
        ours.settimeout(0.5)
        with pytest.raises(TimeoutError):
            ours.recv(100)
        assert "job ends" in process.stderr.read()
        ours.settimeout(60)
        assert ours.recv(100) == b"cmd=abort exitcode=1\n"


def test_output_is_forwarded_before_the_job_is_aborted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """srun reads no more once it learns of a killed rank."""
    done: list[object] = []
    ours, theirs = socket.socketpair()
    with ours, theirs:
        monkeypatch.setattr(pmi.time, "sleep", done.append)
        monkeypatch.setattr(pmi.Manager, "abort", lambda manager: done.append("abort"))
        monkeypatch.setattr(pmi, "wait_until_read", lambda fds, timeout: done.append("read"))
        manager = pmi.Manager(theirs.fileno(), 1.0)
        pmi._abort(manager)
        manager.close()
    assert done == ["read", pmi._FORWARD, "abort"]


def test_an_abort_does_not_wait_forever() -> None:
    end, begin = os.pipe()
    try:
        os.write(begin, b"nobody reads this")
        pmi.wait_until_read([begin], 0.1)
    finally:
        os.close(end)
        os.close(begin)
    pmi.wait_until_read([begin], 60)  # closed
