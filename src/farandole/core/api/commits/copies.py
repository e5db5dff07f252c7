"""Copies of each rank's own values in the memory of other ranks, sent in the background.

A commit is sent while the next step runs: first its description, then the chunks that differ from
the last acknowledged commit. The next commit waits until all holders have acknowledged it, so a
copy is at most one commit old.
"""

from __future__ import annotations

import json
import struct
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from farandole.base import threads
from farandole.base.log import logger
from farandole.core.api.commits.chunks import Delta, PackedValues, Parts, applied, values_of
from farandole.errors import HorovodInternalError

if TYPE_CHECKING:
    from farandole.core.groups.messages import Messages

_HEADER = struct.Struct("<qq")  # bytes of the description, bytes of the chunks
_FIRST, _DESCRIPTION, _CHUNKS, _DONE = range(1, 5)  # tags
_EVER = float("inf")
_KEPT = 2  # complete commits of each rank


class Copy(NamedTuple):
    """A complete commit of another rank's own values.

    - ``number``: The number of the commit.
    - ``rank``: The rank that made the commit.
    - ``absorbed``: The lost processes whose values were merged into these.
    - ``parts``: The packed values.
    """

    number: int
    rank: int
    absorbed: frozenset[int]
    parts: Parts

    @property
    def values(self) -> Any:
        """The values."""
        return values_of(self.parts)


class Shelf:
    """The copies held by this rank, by process: at most two per process, the newest last."""

    def __init__(self) -> None:
        self._copies: dict[int, list[Copy]] = {}
        self._lock = threading.Lock()

    def put(self, process: int, copy: Copy) -> None:
        """Keep ``copy`` as the newest one of ``process``."""
        with self._lock:
            self._copies[process] = [*self._copies.get(process, ()), copy][-_KEPT:]

    def newest(self) -> dict[int, Copy]:
        """Return the newest copy of each process."""
        with self._lock:
            return {process: copies[-1] for process, copies in self._copies.items()}

    def drop(self, processes: frozenset[int]) -> None:
        """Remove all copies of ``processes``."""
        with self._lock:
            for process in processes & self._copies.keys():
                del self._copies[process]


class CopyReceiver:
    """Receives the copies that ``ward`` sends to this rank, until the channel ends."""

    def __init__(self, messages: Messages, ward: int, process: int, shelf: Shelf) -> None:
        self._messages, self._ward, self._process, self._shelf = messages, ward, process, shelf
        self._parts: Parts = []
        self._await_first()

    def _await_first(self) -> None:
        header = np.empty(_HEADER.size, np.uint8)

        def then() -> None:
            described, chunks = _HEADER.unpack(header.tobytes())
            description, data = np.empty(described, np.uint8), np.empty(chunks, np.uint8)
            self._receive(_DESCRIPTION, description)
            self._receive(_CHUNKS, data, lambda: self._finish(description, data))

        self._receive(_FIRST, header, then)

    def _receive(self, tag: int, into: Any, then: Any = None) -> None:
        def guarded() -> None:
            try:
                then()
            except Exception as error:
                # Otherwise the sender would wait for the acknowledgement.
                self._messages.abort(f"a copy of a commit could not be kept: {error!r}")
                raise

        self._messages.receive(self._ward, tag, into, 0, _EVER, then and guarded)

    def _finish(self, description: Any, data: Any) -> None:
        facts = json.loads(description.tobytes())
        delta = Delta(facts["sizes"], facts["changed"], facts["lengths"])
        self._parts = applied(self._parts, delta, memoryview(data))
        absorbed = frozenset(facts["absorbed"])
        copy = Copy(facts["number"], facts["rank"], absorbed, self._parts)
        self._shelf.put(self._process, copy)
        self._messages.send(self._ward, _DONE, np.empty(0, np.uint8), 0, _EVER)
        self._await_first()


class CopySender:
    """Sends this rank's own values to its holders, on its own thread.

    ``holders``: the holders' ranks. ``rank``: this rank.
    """

    def __init__(self, messages: Messages, rank: int, holders: list[int]) -> None:
        self._messages, self._rank, self._holders = messages, rank, holders
        self._known: list[list[bytes]] = []  # the digests of the acknowledged chunks
        self._changed = threading.Condition()
        self._next: tuple[int, frozenset[int], Any] | None = None
        self._failed = self._closed = False
        self._thread = threading.Thread(target=self._serve, name="farandole-copies", daemon=True)
        threads.start(self._thread)

    def send(self, number: int, absorbed: frozenset[int], values: Any) -> None:
        """Start to send the commit ``number`` once the previous one is acknowledged.

        ``values`` must not be changed until the next call.
        """
        self.flush()
        with self._changed:
            self._next = number, absorbed, values
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all holders have the last commit."""
        with self._changed:
            self._changed.wait_for(lambda: self._next is None or self._failed or self._closed)

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _serve(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._next is not None or self._closed)
                    if self._closed or self._next is None:
                        return
                    number, absorbed, values = self._next
                self._send(number, absorbed, values)
                with self._changed:
                    self._next = None
                    self._changed.notify_all()
        except HorovodInternalError as error:  # the next collective will fail, too
            logger.debug("copies of commits ended: %s", error)
        except Exception as error:
            logger.warning("commits are no longer copied to other ranks: %r", error)
        finally:
            with self._changed:
                self._failed = True
                self._changed.notify_all()

    def _send(self, number: int, absorbed: frozenset[int], values: Any) -> None:
        packed = PackedValues(values)
        delta, chunks = packed.since(self._known)
        facts = {
            **delta._asdict(),
            "number": number,
            "rank": self._rank,
            "absorbed": sorted(absorbed),
        }
        description = np.frombuffer(json.dumps(facts).encode(), np.uint8)
        data = np.frombuffer(b"".join(chunks), np.uint8)
        first = np.frombuffer(_HEADER.pack(len(description), len(data)), np.uint8)
        pending = []
        for holder in self._holders:
            done = np.empty(0, np.uint8)
            pending.append(self._messages.receive(holder, _DONE, done, 0, _EVER))
            for tag, content in ((_FIRST, first), (_DESCRIPTION, description), (_CHUNKS, data)):
                pending.append(self._messages.send(holder, tag, content, 0, _EVER))
        for transfer in pending:
            self._messages.wait(transfer)
            if transfer.error is not None:
                raise transfer.error
        self._known = packed.digests
