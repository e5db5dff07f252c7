from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from farandole.base.types import Buffer, DType, ReduceOp
from farandole.core.collectives import over
from farandole.core.transports.faulty import Faults
from farandole.core.transports.inproc import World
from farandole.errors import PeerLostError
from tests.kits.link import LinkKit
from tests.kits.messages import mentioning
from tests.kits.transport import BoardKit, FailureKit, MoveKit, SplitKit, check_sum
from tests.pool import Died, procs, ranks


class TestFaultlessTransport(MoveKit, SplitKit, BoardKit, FailureKit):
    """Without a planned fault, it passes the kit like the wrapped transport."""

    def joiner(self, size: int) -> Callable[[int], Any]:
        world = World(size)
        return lambda rank: Faults().over(over(world.link(rank)))


class TestFaultlessLink(LinkKit):
    def joiner(self, size: int) -> Callable[[int], Any]:
        world = World(size)
        return lambda rank: Faults().over(world.link(rank))


def test_kill_and_the_others_notice() -> None:
    faults = Faults()
    faults.at(rank=1, step=3).kill()

    def body(transport: Any) -> int:
        wire = faults.over(transport)
        done = 0
        try:
            for _ in range(5):
                check_sum(wire)
                done += 1
        except PeerLostError:
            return done
        return -1

    assert procs(2, body, deaths=True) == [2, Died(-signal.SIGKILL)]


def test_raise_happens_once_at_its_step_and_rank() -> None:
    faults = Faults()
    faults.at(rank=0, step=2).raise_(ZeroDivisionError("as planned"))

    def body(transport: Any) -> list[int]:
        wire, failed = faults.over(transport), []
        for step in (1, 2, 3):
            try:
                wire.barrier() if step != 2 or transport.rank == 0 else None
            except ZeroDivisionError:
                failed.append(step)
        return failed

    assert ranks(2, body) == [[2], []]


def test_delay_is_in_seconds() -> None:
    faults = Faults()
    faults.at(rank=1, step=1).delay(0.3)

    def body(transport: Any) -> float:
        start = time.monotonic()
        faults.over(transport).barrier()
        return time.monotonic() - start

    assert min(ranks(2, body)) >= 0.25


def test_drop_leaves_the_others_waiting() -> None:
    faults, dropped = Faults(), threading.Event()
    faults.at(rank=1, step=2).drop()

    def body(transport: Any) -> str:
        wire = faults.over(transport)
        check_sum(wire)
        array = np.ones(4, np.float32)
        if transport.rank == 1:
            wire.allreduce([Buffer(array, array, DType.FLOAT32)], ReduceOp.SUM)
            assert (array == 1).all()
            dropped.set()
            wire.abort("rank 1 forgot")
            return ""
        with pytest.raises(PeerLostError) as caught:
            wire.allreduce([Buffer(array, array, DType.FLOAT32)], ReduceOp.SUM)
        assert dropped.is_set()
        return str(caught.value)

    assert ranks(2, body)[0] == "rank 1 forgot"


def test_a_dropped_message_is_lost_on_the_way() -> None:
    faults, world = Faults(), World(2)
    faults.at(rank=0, step=1).drop()
    first, second = faults.over(world.link(0)), world.link(1)
    first.sendrecv(np.full(1, 7, np.uint8), 1, None, 1)
    first.sendrecv(np.full(1, 8, np.uint8), 1, None, 1)
    received = np.zeros(1, np.uint8)
    second.sendrecv(None, 0, received, 0)
    assert received[0] == 8


def test_faults_of_one_moment_happen_in_order_and_splits_count() -> None:
    faults = Faults()
    faults.at(rank=1, step=2).delay(0.2)
    faults.at(rank=1, step=2).raise_(KeyError("late and wrong"))

    def body(transport: Any) -> float:
        wire = faults.over(transport)
        wire.barrier()
        part = wire.split([1])
        start = time.monotonic()
        if part is not None:
            with pytest.raises(KeyError):
                part.barrier()
        return time.monotonic() - start

    assert ranks(2, body)[1] >= 0.15


def test_steps_are_counted_from_one() -> None:
    with pytest.raises(ValueError, match=mentioning("step=0", "1")):
        Faults().at(rank=0, step=0)
