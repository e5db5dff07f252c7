from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from farandole.core.collectives import over
from farandole.core.transports.inproc import World
from farandole.errors import HorovodInternalError
from tests.kits.link import LinkKit
from tests.kits.messages import mentioning
from tests.kits.transport import MoveKit, ReduceKit, TransportKit


class TestInproc(TransportKit):
    def joiner(self, size: int) -> Callable[[int], Any]:
        world = World(size)
        return lambda rank: over(world.link(rank))


class TestStrictInproc(ReduceKit, MoveKit):
    """Every send waits for its receive."""

    def joiner(self, size: int) -> Callable[[int], Any]:
        world = World(size, ahead=0)
        return lambda rank: over(world.link(rank))


class TestInprocLink(LinkKit):
    def joiner(self, size: int) -> Callable[[int], Any]:
        return World(size).link


class TestStrictInprocLink(LinkKit):
    def joiner(self, size: int) -> Callable[[int], Any]:
        return World(size, ahead=0).link

    def test_unequal_lengths_raise_on_both_ranks(self) -> None:
        def body(link: Any) -> None:
            array, other = np.zeros(3 if link.rank == 0 else 5, np.uint8), 1 - link.rank
            send, recv = (array, None) if link.rank == 0 else (None, array)
            with pytest.raises(HorovodInternalError, match=mentioning("3 bytes", "rank 1", "5")):
                link.sendrecv(send, other, recv, other)

        self.run(2, body)
