"""Worlds in which the kits of wires run functions, and helpers for these functions."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from farandole.base.contracts import Transport
from farandole.base.types import Buffer, DType, ReduceOp
from farandole.core.collectives import over
from farandole.core.collectives.hierarchical import Hierarchical
from farandole.core.transports import shm
from farandole.core.transports.inproc import World
from farandole.net.handshake import new_secret
from tests import pool

OPS = (ReduceOp.SUM, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT)
SIZES = (1, 2, 3, 4, 5)
_scopes = itertools.count()


def fresh_scope() -> str:
    return f"kit{next(_scopes)}"


def until(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Poll with a deadline."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen within {seconds} s"
        time.sleep(0.001)


def in_place(array: Any, dtype: DType) -> Buffer:
    return Buffer(array, array, dtype)


class Worlds:
    """Creates worlds of one wire and runs functions on all ranks."""

    deadline = 90.0

    def joiner(self, size: int) -> Callable[[int], Any]:
        raise NotImplementedError

    def run(self, size: int, fn: Callable[[Any], Any], *, close: bool = True) -> list[Any]:
        return pool.threads(size, self.joiner(size), fn, deadline=self.deadline, close=close)


def check_sum(transport: Any, length: int = 1000) -> None:
    array = np.full(length, transport.rank + 1, np.float32)
    transport.allreduce([in_place(array, DType.FLOAT32)], ReduceOp.SUM)
    assert (array == sum(range(1, transport.size + 1))).all()


def rounds(transport: Any, messages: list[bytes]) -> None:
    """Run one round per message, to which every rank adds its number."""
    board = transport.board
    for message in messages:
        board.post(message + bytes([transport.rank]))
        got = collect(board)
        assert got == [message + bytes([rank]) for rank in range(transport.size)]


def collect(board: Any, seconds: float = 60.0) -> list[bytes]:
    end = time.monotonic() + seconds
    while (messages := board.collect()) is None:
        assert time.monotonic() < end, f"still missing after {seconds} s: {board.missing()}"
        board.wait(1.0, spin=True)
    return messages  # type: ignore[no-any-return]


def wait_until(board: Any, condition: Callable[[], bool], what: str, pause: float = 0.5) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, f"{what} did not come"
        board.wait(pause, spin=False)


def wait_forever(board: Any) -> None:
    while True:
        board.wait(20.0, spin=False)


def wait_in(transport: Any, where: str) -> None:
    """Wait for peers that never arrive."""
    if where == "board":
        transport.board.post(b"hello")
    if "board" in where:
        wait_forever(transport.board)
    if where == "barrier":
        transport.barrier()
    if where == "broadcast":
        transport.broadcast(np.zeros(1000, np.uint8), 1)
        transport.barrier()  # a root may be through before its data are taken
    array = np.ones(1000 if where == "allreduce" else 3_000_000, np.float32)
    transport.allreduce([in_place(array, DType.FLOAT32)], ReduceOp.SUM)


HOSTS = {1: [1], 2: [1, 1], 3: [2, 1], 4: [2, 2], 5: [2, 3], 6: [1, 3, 2]}  # ranks per host


def two_levels(size: int, *, share: bool = False) -> Callable[[int], Any]:
    """Join a world of ``HOSTS[size]``: hosts and a network between threads. ``share``: whether
    hosts have shared memory.
    """
    ends = np.cumsum(HOSTS[size]).tolist()
    hosts = [list(range(end - count, end)) for end, count in zip(ends, HOSTS[size], strict=True)]
    flat = World(size)
    local = [World(len(host), names=host) for host in hosts]
    cross = [
        World(len(hosts), names=[host[index] for host in hosts])
        for index in range(min(HOSTS[size]))
    ]
    secret, scope = new_secret(), fresh_scope()

    def within(place: int, index: int) -> Transport:
        if share:
            return shm.connect(
                index, len(hosts[place]), secret, f"{scope}/{place}", names=hosts[place]
            )
        return over(local[place].link(index))

    def join(rank: int) -> Hierarchical:
        place = next(place for place, host in enumerate(hosts) if rank in host)
        index = hosts[place].index(rank)
        between = over(cross[index].link(place)) if index < len(cross) else None
        return Hierarchical(over(flat.link(rank)), within(place, index), between, hosts)

    return join
