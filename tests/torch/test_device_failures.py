"""Ranks that die, hang or fail while tensors are on a device."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests import pool
from tests.kits.messages import mentions
from tests.run_job import stored
from tests.torch.device_jobs import WAYS, device_job
from tests.torch.pretend import Pretend, pretending

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.slow


def killed(
    n: int, fn: Callable[[Any, Pretend], Any], pretend_of: Callable[[int], Pretend], wire: str = ""
) -> Any:
    """Run ``fn(engine, pretend)`` on all ranks, some of which kill themselves; return rank 0's
    result.
    """

    def body(transport: Any) -> Any:
        from farandole.job import context
        from farandole.job.config import Connection, Placement, Settings
        from farandole.job.context import lifecycle

        import farandole.torch  # noqa: F401  isort: skip

        placement = Placement(rank=transport.rank, size=n, local_rank=transport.rank, local_size=n)
        lifecycle.enter(placement, Settings(), transport, Connection())
        with pretending(pretend_of(transport.rank)) as pretend:
            try:
                return fn(transport.rank, pretend)
            finally:
                context.shutdown()

    with stored() as having:
        results = pool.procs(n, having(body), wire=wire, deaths=True)
    assert results[1] == pool.Died(-signal.SIGKILL)
    return results[0]


class Dies(Pretend):
    """Ends its process at its second use of the stream, when all ranks have agreed on a collective."""

    streams = 0

    def stream(self, events: Any) -> Any:
        self.streams += 1
        if self.streams == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().stream(events)


class Hangs(Pretend):
    """A device on which a collective ends only when all ranks run it, or when it is aborted."""

    def __init__(self, identity: str, *, blocks: bool) -> None:
        super().__init__(identity)
        self.blocks = blocks
        self.given_up = threading.Event()

    def connect(self, store: Any, rank: int, size: int) -> Any:
        return _Backend(super().connect(store, rank, size), self)

    def follow(self, work: Any) -> None:
        if work is not None:
            work.wait()


class _Backend:
    """Blocks, in the second collective, either the thread (as NCCL does while it connects) or the
    device.
    """

    def __init__(self, backend: Any, hangs: Hangs) -> None:
        self._backend, self._hangs, self._count = backend, hangs, 0

    def allreduce(self, tensors: Any, options: Any) -> Any:
        self._count += 1
        if self._count < 3:  # one to connect, one that goes well
            return self._backend.allreduce(tensors, options)
        if self._hangs.blocks:
            assert self._hangs.given_up.wait(60)
            raise RuntimeError("the communicator was aborted")
        return None

    def abort(self) -> None:
        self._hangs.calls.append("abort")
        self._hangs.given_up.set()
        self._backend.abort()

    def shutdown(self) -> None:
        raise AssertionError("what was given up is not ended in order")


def survived(rank: int, pretend: Pretend) -> tuple[str, list[str]]:
    """Return the error of the collective in which a peer dies, or of the next one if the device
    would have waited.
    """
    import farandole.torch as hvd

    assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [2.0] * 3

    def collectives() -> None:
        hvd.allreduce(torch.ones(3), op=hvd.Sum, name="the last")
        assert isinstance(pretend, Hangs)
        assert pretend.given_up.wait(60), "nobody has noticed"
        hvd.allreduce(torch.ones(3), name="another")

    with pytest.raises(hvd.HorovodInternalError) as caught:
        collectives()
    with pytest.raises(hvd.HorovodInternalError):
        hvd.allreduce(torch.ones(3), name="one more")
    return f"{type(caught.value).__name__} {caught.value.rank}: {caught.value}", pretend.calls


@pytest.mark.parametrize("wire", ["shm", "tcp"])
@pytest.mark.parametrize("way", WAYS)
def test_a_peer_that_dies_in_a_collective_is_named(way: str, wire: str) -> None:
    said, _ = killed(
        2,
        survived,
        lambda rank: (Dies if rank else Pretend)(f"GPU-{rank * (way == 'direct')}"),
        wire,
    )
    assert said.startswith("PeerLostError 1: rank 1 ")


@pytest.mark.parametrize("wire", ["shm", "tcp"])
@pytest.mark.parametrize("blocks", [True, False], ids=["thread", "device"])
def test_device_waits_for_a_dead_peer_are_abandoned(blocks: bool, wire: str) -> None:
    said, calls = killed(
        2, survived, lambda rank: Dies("GPU-1") if rank else Hangs("GPU-0", blocks=blocks), wire
    )
    assert said.startswith("PeerLostError 1: rank 1 ")
    assert calls.count("abort") == 1


def test_a_device_that_fails_on_one_rank_fails_everywhere() -> None:
    def check(rank: int, pretend: Pretend) -> str:
        import farandole.torch as hvd

        hvd.allreduce(torch.ones(1))
        if rank:
            pretend.wait_event = lambda events: 1 / 0  # type: ignore[method-assign,assignment,return-value]
        with pytest.raises(hvd.HorovodInternalError) as caught:
            [hvd.allreduce(torch.ones(1), name=f"{number}") for number in range(3)]
        return str(caught.value)

    for said in device_job(2, check):
        assert mentions(said, "rank 1", "ZeroDivisionError")


def test_unreachable_ranks_get_the_cure() -> None:
    def check(rank: int, pretend: Pretend) -> str:
        import farandole.torch as hvd

        def connect(*_: Any) -> Any:
            raise RuntimeError("unhandled system error")

        pretend.connect = connect  # type: ignore[method-assign]
        with pytest.raises(hvd.HorovodInternalError) as caught:
            hvd.allreduce(torch.ones(1))
        return str(caught.value)

    for said in device_job(2, check):
        assert mentions(said, "GPUs", "--nccl=off", "FARANDOLE_NCCL=off")
