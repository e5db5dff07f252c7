from __future__ import annotations

from collections.abc import Callable
from typing import Any

from farandole.collectives import over
from farandole.transports.inproc import World
from tests.kits.transport import TransportKit


class TestInproc(TransportKit):
    def joiner(self, size: int) -> Callable[[int], Any]:
        world = World(size)
        return lambda rank: over(world.link(rank))


class TestStrictInproc(TransportKit):
    """Every send waits for its receive."""

    def joiner(self, size: int) -> Callable[[int], Any]:
        world = World(size, ahead=0)
        return lambda rank: over(world.link(rank))
