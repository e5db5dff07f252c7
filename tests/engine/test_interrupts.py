"""A signal's exception goes to the program; ranks go on where they can, or all end with the cause."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farandole.config import Settings
from farandole.engine import Engine, Entry
from farandole.errors import HorovodInternalError
from farandole.types import Buffer, DType, Kind, Request
from tests.kits.worlds import until
from tests.pool import procs, ranks

LARGE = 3_000_000


def summed(engine: Engine, name: str, value: float, count: int = 4) -> float:
    flat = np.full(count, value, np.float32)
    request = Request(name, Kind.ALLREDUCE, DType.FLOAT32, (count,))
    engine.run([Entry(request, Buffer(flat, flat, DType.FLOAT32))])
    assert flat.min() == flat.max()
    return float(flat[0])


@pytest.mark.parametrize("times", [0, 4], ids=["new", "repeated"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_in_the_middle_of_a_collective_it_ends_those_of_all_ranks(error: type[BaseException], times: int) -> None:
    def body(transport: Any) -> str:
        engine = Engine(transport, Settings())
        for _ in range(times):
            summed(engine, "a", 1, LARGE)
        if engine.rank == 0:

            def interrupted(*args: Any, **kwargs: Any) -> None:
                raise error

            transport.allreduce = interrupted
            with pytest.raises(error):
                summed(engine, "a", 1, LARGE)
        with pytest.raises(HorovodInternalError) as caught:
            summed(engine, "a", 1, LARGE)
        engine.shutdown()
        return str(caught.value)

    for said in ranks(2, body):
        assert f"rank 0 was interrupted inside a collective: {error.__name__}" in said


class Preempted(Exception):
    """What programs of Slurm raise when their time is nearly over."""


def preempted(number: int, frame: Any) -> None:
    raise Preempted


@pytest.mark.parametrize("wire", ["shm", "tcp"])
def test_a_handler_may_raise_while_its_rank_waits_for_others(wire: str, tmp_path: Path) -> None:
    told = tmp_path / "interrupted"

    def body(transport: Any) -> list[float]:
        engine = Engine(transport, Settings())
        for _ in range(4):
            summed(engine, "a", 1)
        sums = []
        for name in ("a", "new"):  # the short way and the long one
            if engine.rank:
                until(told.exists, "an interrupt")
                told.unlink()
                sums.append(summed(engine, name, 3))
            else:
                interrupted(engine, lambda name=name: summed(engine, name, 2))
                told.touch()
            sums.append(summed(engine, "next", 1))
        engine.shutdown()
        return sums

    assert procs(2, body, wire=wire) == [[2, 2], [5, 2, 5, 2]]


def interrupted(engine: Engine, call: Callable[[], object]) -> None:
    def send() -> None:
        until(lambda: engine._idle, "waiting")
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, preempted)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        with pytest.raises(Preempted):
            call()
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, before)
