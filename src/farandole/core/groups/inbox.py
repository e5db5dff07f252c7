"""A message on its way, and the incoming messages of one rank."""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from farandole.core.groups.calls import Call
from farandole.errors import HorovodInternalError

if TYPE_CHECKING:
    from farandole.base.types import Array

# tag, bytes, dtype; as long as a cache line, so that what follows is aligned
HEADER = struct.Struct("<qQq40x")


class Transfer(Call):
    """A message to be sent, or to be received into ``data``. ``peer``: the other rank; None: any.
    ``source``: the sender, once it is known.
    """

    __slots__ = ("begin", "data", "dtype", "ended", "head", "peer", "source", "tag", "timeout")

    def __init__(
        self,
        peer: int | None,
        tag: int,
        data: Array,
        dtype: int,
        timeout: float,
        last: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(lambda: None, last)
        self.peer = peer
        self.tag = tag
        self.data = data
        self.dtype = dtype
        self.timeout = timeout
        self.begin = time.monotonic()
        self.source = -1
        self.ended = False  # nothing moves any more, and somebody is about to finish it
        # the part of its header that has not gone; None: it has not begun
        self.head: Array | None = None


class StoredMessage(NamedTuple):
    """A message that came before it was wanted."""

    tag: int
    dtype: int
    data: Array


class Inbox:
    """The incoming messages of one rank."""

    def __init__(self, overhead: int) -> None:
        self.header = np.empty(HEADER.size + overhead, np.uint8)
        self.filled = 0  # bytes of the header, then of what it announces
        self.into: Array | None = None
        self.tag = self.dtype = 0
        self.message: Transfer | None = None  # whose memory is filled; None: it is stored
        self.stored: deque[StoredMessage] = deque()


def error_text(error: BaseException) -> str:
    """An error, for messages."""
    return (
        str(error)
        if isinstance(error, HorovodInternalError)
        else f"{type(error).__name__}: {error}".rstrip(": ")
    )
