"""A message in transfer, and the incoming messages of one rank."""

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

# tag, bytes, dtype; padded to a cache line so that the payload is aligned
HEADER = struct.Struct("<qQq40x")


class Transfer(Call):
    """A message to send, or to receive into ``data``. ``peer``: the other rank; None: any rank.
    ``source``: the sender once known, else -1.
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
        self.ended = False  # the transfer has ended, but ``finish`` has not been called
        # the unsent part of the header; None: sending has not begun
        self.head: Array | None = None


class StoredMessage(NamedTuple):
    """A message that arrived before it was requested."""

    tag: int
    dtype: int
    data: Array


class Inbox:
    """The incoming messages of one rank."""

    def __init__(self, overhead: int) -> None:
        self.header = np.empty(HEADER.size + overhead, np.uint8)
        self.filled = 0  # bytes received of the header, then of the payload
        self.into: Array | None = None
        self.tag = self.dtype = 0
        # the message being filled; None: the payload is stored for later
        self.message: Transfer | None = None
        self.stored: deque[StoredMessage] = deque()


def error_text(error: BaseException) -> str:
    """Return an error as text for messages."""
    return (
        str(error)
        if isinstance(error, HorovodInternalError)
        else f"{type(error).__name__}: {error}".rstrip(": ")
    )
