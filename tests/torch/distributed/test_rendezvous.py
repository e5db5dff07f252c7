"""The store of torch.distributed, through which the ranks of a group connect."""

from __future__ import annotations

import signal
import time
from datetime import timedelta
from typing import Any

import pytest

from farandole.errors import RendezvousError, SettingsError
from tests.kits.messages import mentioning
from tests.torch.distributed.tools import members

pytest.importorskip("torch")


def test_polling_for_late_ranks_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """torch's ``wait`` prints two warnings each time, and a rank polls twice a second for late
    ranks.
    """
    from torch import distributed as dist

    from farandole.torch.distributed.rendezvous import GroupStore

    store = GroupStore(dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False))
    store.set("said/1", b"here")
    assert store.gather("said", 2, 0.3) == [None, b"here"]
    with pytest.raises(RendezvousError, match=mentioning("'said/0'", "0 s")):
        store.get("said/0", 0.0)
    assert capfd.readouterr().err == ""


def test_a_handler_of_a_signal_ends_the_wait_for_others() -> None:
    from torch import distributed as dist

    from farandole.torch.distributed.rendezvous import GroupStore

    def preempt(number: int, frame: Any) -> None:
        raise ValueError("preempted")

    before = signal.signal(signal.SIGALRM, preempt)
    begin = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(ValueError, match="preempted"):
            GroupStore(dist.HashStore()).get("key", 10.0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize("named", ["env://", "tcp://127.0.0.1:9", "store"])
def test_a_rank_outside_the_world_size_is_refused(
    named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch would wait for rank 0."""
    from torch import distributed as dist

    import farandole.torch.distributed  # noqa: F401

    for name, value in {
        "RANK": "2",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "9",
    }.items():
        monkeypatch.setenv(name, value)
    given: dict[str, Any] = {"init_method": named}
    if named != "env://":
        given = {
            "rank": 2,
            "world_size": 1,
            **(given if named != "store" else {"store": dist.HashStore()}),
        }
    with pytest.raises(SettingsError, match=mentioning("rank 2", "1", "rank 0")):
        dist.init_process_group("farandole", **given)
    assert not dist.is_initialized()


def one_catches_its_error(rank: int, wrong: int) -> None:
    """Catch the error and leave."""
    from torch import distributed as dist

    if rank == wrong:
        with pytest.raises(ValueError, match="out of range"):
            dist.new_group([0, 5])
        return
    with pytest.raises(
        RendezvousError,
        match=mentioning(f"members {wrong}", "group of 3"),
    ):
        dist.new_group(timeout=timedelta(hours=1))


@pytest.mark.parametrize("wire", ["auto", "tcp"])
@pytest.mark.parametrize("wrong", [0, 1])
def test_no_rank_waits_for_a_departed_one(wrong: int, wire: str) -> None:
    members(3, lambda rank: one_catches_its_error(rank, wrong), wire=wire)


def one_gives_up(rank: int, wrong: int, where: str) -> None:
    """Give up and continue: the next group is made."""
    import torch
    from torch import distributed as dist

    def fail(*_: Any, **__: Any) -> Any:
        raise MemoryError("no room")

    expected = pytest.raises(
        RendezvousError,
        match=mentioning(f"member {wrong}", "MemoryError: no room"),
    )
    with pytest.MonkeyPatch.context() as patch:
        if rank == wrong:
            expected = pytest.raises(MemoryError, match="no room")
            patch.setattr(where, fail)
        with expected:
            dist.new_group(timeout=timedelta(hours=1))
    total = torch.ones(1)
    dist.all_reduce(total, group=dist.new_group())
    assert total.item() == 3


@pytest.mark.parametrize(
    "where",
    ["farandole.job.context.wiring.connect", "farandole.core.transports.shm.segment.memory.create"],
)
@pytest.mark.parametrize("wrong", [0, 1])
def test_no_rank_waits_for_one_that_gives_up(wrong: int, where: str) -> None:
    members(3, lambda rank: one_gives_up(rank, wrong, where))
