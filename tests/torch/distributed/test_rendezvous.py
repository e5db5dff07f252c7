"""The store of torch.distributed, by which the ranks of a group meet."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from farandole.errors import RendezvousError

pytest.importorskip("torch")


def test_looking_for_who_has_not_come_yet_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """torch's own ``wait`` prints two warnings each time, and a rank looks twice a second for those that are late."""
    from torch import distributed as dist

    from farandole.torch.distributed.rendezvous import GroupStore

    store = GroupStore(dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False))
    store.set("said/1", b"here")
    assert store.gather("said", 2, 0.3) == [None, b"here"]
    with pytest.raises(RendezvousError, match=r"'said/0' was not set in .* within 0 s"):
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
